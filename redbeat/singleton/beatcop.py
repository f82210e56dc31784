"""The file ``beatcop.ini`` of BeatCop, read for its users.

Owns the file's format and nothing else. Invariant: a file means the same server, lock and command as for
BeatCop, so that both can run side by side while one replaces the other.
"""

from __future__ import annotations

import configparser
import shlex
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from redbeat.config.suggestions import nearest_to
from redbeat.errors import ConfigurationError

#: BeatCop's own default, milliseconds
DEFAULT_TIMEOUT_MS = 1000

DEFAULT_PORT = 6379

#: what each section may hold
OPTIONS = {
    "redis": ("host", "port", "database", "password", "startup_nodes"),
    "beatcop": ("command", "shell", "lockname", "timeout"),
}


@dataclass(frozen=True)
class BeatCopSettings:
    """The contents of the file; empty values for what isn't in it.

    Attributes:
        url: the server's URL, its password included.
        redis_options: as for ``redbeat_redis_options``.
        lock: the lock's key.
        has_lock: whether the file names the lock; otherwise its key is made from the command.
        timeout_seconds: the lock's time to live.
        command: the program and its arguments.
    """

    url: str = ""
    redis_options: dict[str, Any] = field(default_factory=dict)
    lock: str = ""
    has_lock: bool = False
    timeout_seconds: float | None = None
    command: list[str] = field(default_factory=list)


def read_beatcop(path: str) -> BeatCopSettings:
    """Return the contents of the file at ``path``.

    Sections and options: ``[redis]`` with host or startup_nodes (host:port, a line each), port, database and
    password; ``[beatcop]`` with command, shell, lockname and timeout in milliseconds.

    Raises:
        OSError: the file can't be read.
        ConfigurationError: it can't be used; the message names the file, the option and what is wrong.
    """
    parser = configparser.ConfigParser()
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - a name from the command line
            parser.read_file(file)
        _check_names(path, parser)
        return _settings(_Section(path, parser, "redis"), _Section(path, parser, "beatcop"))
    except configparser.InterpolationError as exc:
        problem = "a % is written %% there"
        raise ConfigurationError(f"{path}: [{exc.section}] {exc.option}: {problem}.", exc.option) from None
    except (configparser.Error, UnicodeDecodeError) as exc:
        # without Python's own message, which quotes the line, and so perhaps the password
        line = getattr(exc, "lineno", None) or next((line for line, _ in getattr(exc, "errors", ())), None)
        place = f"line {line} can't be understood" if line else "it isn't UTF-8"
        raise ConfigurationError(f"{path} is no beatcop.ini: {place}.") from None


def _check_names(path: str, parser: configparser.ConfigParser) -> None:
    """Raise ConfigurationError for a misspelt option: without its lockname the lock would be another one."""
    for section, known in OPTIONS.items():
        for option in parser.options(section) if parser.has_section(section) else ():
            nearest = None if option in known else nearest_to(option, known)
            if nearest:
                raise ConfigurationError(
                    f"{path}: [{section}] {option}: there is no such option; did you mean {nearest}?", option
                )


def _settings(redis: _Section, beatcop: _Section) -> BeatCopSettings:
    url, options = _server(redis)
    text = beatcop.text("command")
    timeout_ms = beatcop.number("timeout", DEFAULT_TIMEOUT_MS)
    if timeout_ms == 0:
        raise beatcop.fault("timeout", "must be 1 millisecond or more")
    lock = beatcop.text("lockname")
    return BeatCopSettings(
        url=url,
        redis_options=options,
        lock=lock or (f"beatcop:{text}" if text else ""),
        has_lock=bool(lock),
        timeout_seconds=timeout_ms / 1000,
        command=_command(beatcop, text) if text else [],
    )


def _server(redis: _Section) -> tuple[str, dict[str, Any]]:
    host, nodes = redis.text("host"), redis.text("startup_nodes").split()
    if bool(host) == bool(nodes):
        raise redis.fault("host", "give either host or startup_nodes, and not both")
    password = redis.text("password")
    if host:
        login = f":{quote(password, safe='')}@" if password else ""
        host = f"[{host}]" if ":" in host else host
        database = redis.number("database", 0)
        return f"redis://{login}{host}:{redis.number('port', DEFAULT_PORT)}/{database}", {}
    startup_nodes = []
    for node in nodes:
        name, _, port = node.rpartition(":")
        if not name or not port.isdigit():
            raise redis.fault("startup_nodes", f"{node!r} isn't host:port")
        startup_nodes.append({"host": name, "port": int(port)})
    options: dict[str, Any] = {"startup_nodes": startup_nodes}
    return f"redis-cluster://{nodes[0]}", {**options, **({"password": password} if password else {})}


def _command(beatcop: _Section, text: str) -> list[str]:
    if beatcop.is_on("shell"):
        return ["/bin/sh", "-c", text]
    try:
        return shlex.split(text)
    except ValueError as exc:
        raise beatcop.fault("command", f"{exc}") from exc


class _Section:
    """One section of the file; it may be missing."""

    def __init__(self, path: str, parser: configparser.ConfigParser, name: str) -> None:
        self._path = path
        self._parser = parser
        self._name = name

    def text(self, option: str) -> str:
        return self._parser.get(self._name, option, fallback="").strip()

    def number(self, option: str, default: int) -> int:
        text = self.text(option) or str(default)
        if not text.isdecimal():
            raise self.fault(option, f"{text!r} is no whole number")
        return int(text)

    def is_on(self, option: str) -> bool:
        text = self.text(option) or "no"
        try:
            return self._parser.BOOLEAN_STATES[text.lower()]
        except KeyError:
            raise self.fault(option, f"{text!r} is neither yes nor no") from None

    def fault(self, option: str, problem: str) -> ConfigurationError:
        return ConfigurationError(f"{self._path}: [{self._name}] {option}: {problem}.", option)
