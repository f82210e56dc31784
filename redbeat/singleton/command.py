"""``redbeat-singleton``: any command, on one machine at a time.

Owns the command line, also that of ``celery redbeat singleton`` and ``python -m redbeat.singleton``, and the
default names of locks. Invariant: wrong input ends with one sentence, before anything is started.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from celery import Celery

from redbeat.config.config import RedBeatConfig, ensure_conf
from redbeat.errors import CommandFailed, ConfigurationError, RedBeatError, StoreCorrupt
from redbeat.keys import has_hash_tag
from redbeat.log.text import as_stored
from redbeat.process import exit_codes as exits
from redbeat.process.exit_codes import CommandLineError, ExitingCommand, Seconds, not_empty
from redbeat.singleton.beatcop import BeatCopSettings, read_beatcop

if TYPE_CHECKING:
    from redbeat.singleton.runner import Times

DEFAULT_TIMEOUT_SECONDS = 10.0
DEFAULT_GRACE_SECONDS = 5.0

#: used if there is no --url: everybody on the machine can see a command line, but not this variable
URL_VARIABLE = "REDBEAT_REDIS_URL"

_OPTIONS = (
    click.option(
        "--lock",
        metavar="NAME",
        callback=not_empty,
        help="The lock's key in Redis.  [default: made of the command]",
    ),
    click.option(
        "--timeout",
        "timeout_seconds",
        type=Seconds(min=1),
        help="A lock that nobody renews is free after this long.  [default: 10]",
    ),
    click.option(
        "--grace",
        "grace_seconds",
        type=Seconds(min=0),
        help="When the lock is lost, the command gets SIGTERM, and SIGKILL after this long.  "
        "[default: 5, or half of --timeout if that is less]",
    ),
    click.option(
        "--lock-lost",
        type=click.Choice(["standby", "exit"]),
        default="standby",
        show_default=True,
        help="When the lock is lost, wait for it again, or exit.",
    ),
    click.option(
        "-l",
        "--loglevel",
        type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], case_sensitive=False),
        default="INFO",
        show_default=True,
        help="The lowest level of what is written to standard error.",
    ),
    click.argument("command", nargs=-1, type=click.UNPROCESSED),
)


def add_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a click command the options of a singleton."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


@click.command(cls=ExitingCommand, context_settings={"allow_interspersed_args": False})
@click.option(
    "--url",
    metavar="URL",
    callback=not_empty,
    help="URL of the Redis or Valkey server. Default: the variable "
    f"{URL_VARIABLE}, which other users of the machine can't read.",
)
@click.option(
    "--redis-options",
    metavar="JSON",
    help='Options of the connection, as in redbeat_redis_options: \'{"service_name": "mymaster"}\'.',
)
@click.option("--config", metavar="FILE", help="Read a beatcop.ini. Options given here override it.")
@add_options
@click.version_option(package_name="celery-redbeat")
def main(url: str | None, redis_options: str | None, config: str | None, **options: Any) -> None:
    """Run COMMAND on one machine at a time.

    Waits for the lock, runs COMMAND, and exits with its exit code, or with 128 and the number of the signal
    that ended it. When the lock is lost, COMMAND is stopped before another machine can run it.

    \b
    Other exit codes: 64 wrong options, 66 the file of --config can't be read,
    69 COMMAND can't be started, 75 the lock was lost (with --lock-lost exit),
    77 Redis refuses, 78 wrong settings.
    """
    settings = _read_config(config) if config else BeatCopSettings()
    url = url or settings.url or os.environ.get(URL_VARIABLE)
    if not url:
        raise _usage(f"No Redis server: give --url, or set {URL_VARIABLE}.")
    connection = {
        "redbeat_redis_url": url,
        "redbeat_redis_options": {**settings.redis_options, **_json_object("--redis-options", redis_options)},
    }
    run_singleton(connection, settings, **options)


def run_singleton(
    connection: dict[str, Any],
    settings: BeatCopSettings,
    *,
    lock: str | None,
    timeout_seconds: float | None,
    grace_seconds: float | None,
    lock_lost: str,
    loglevel: str,
    command: tuple[str, ...],
    client: Any = None,
) -> None:
    """Run the command and leave with its exit code.

    Arguments:
        connection: the ``redbeat_*`` settings of the connection; their key prefix is that of the default
            lock.
        settings: values for options that aren't given.
        client: an injected redis client; None: one is made.
        command: the program and its arguments.

    All others are the options of the same names.
    """
    if os.name != "posix":
        raise CommandLineError(
            "This system has no process groups, which a singleton needs.", exits.UNAVAILABLE
        )
    from redbeat.singleton.runner import Runner  # it needs POSIX's signals

    program = list(command) or settings.command
    if not program:
        raise _usage("No command: give it after the options, as -- COMMAND ARG...")
    times = _times_of(timeout_seconds, grace_seconds, settings)
    if shutil.which(program[0]) is None:
        raise CommandLineError(
            f"{program[0]}: there is no such program, or it may not be run.", exits.UNAVAILABLE
        )
    logging.basicConfig(format=Celery().conf.worker_log_format, level=loglevel.upper())
    try:
        config = ensure_conf(_app(connection))
        is_named = settings.has_lock or not command
        key = lock or (settings.lock if is_named else "") or _default_key(config, program)
        app = _app({**connection, "redbeat_key_prefix": _own_prefix(config, key)})
        if client is not None:
            app.redbeat_redis = client
        code = Runner(app, key, program, times, exits_when_lost=lock_lost == "exit").run()
    except ConfigurationError as exc:
        raise CommandLineError(str(exc), exits.CONFIG) from None
    except CommandFailed as exc:
        raise CommandLineError(str(exc), exits.UNAVAILABLE) from None
    except StoreCorrupt as exc:
        message = f"{exc.key} holds something that is no lock: choose another --lock."
        raise CommandLineError(message, exits.CONFIG) from None
    except RedBeatError as exc:
        raise CommandLineError(str(exc), exits.NO_PERMISSION) from None
    click.get_current_context().exit(exits.TRY_AGAIN if code is None else code)


def _times_of(timeout_seconds: float | None, grace_seconds: float | None, settings: BeatCopSettings) -> Times:
    """Return the times of the lock; a usage error if the command couldn't be stopped before the lock ends."""
    from redbeat.singleton.runner import Times  # it needs POSIX's signals

    timeout = timeout_seconds or settings.timeout_seconds or DEFAULT_TIMEOUT_SECONDS
    grace = min(DEFAULT_GRACE_SECONDS, timeout / 2) if grace_seconds is None else grace_seconds
    times = Times(timeout, grace)
    if not times.is_sound:
        raise _usage(
            f"--timeout {timeout:g} is too short for --grace {grace:g}: the command couldn't be stopped in "
            f"time. Use --timeout {math.ceil(times.smallest_timeout())} or more."
        )
    return times


def _app(connection: dict[str, Any]) -> Celery:
    """Return an app with these settings and nothing else."""
    app = Celery("redbeat-singleton", set_as_current=False)
    options = {"retry_period": -1, **connection["redbeat_redis_options"]}
    app.conf.update(**{**connection, "redbeat_redis_options": options})
    return app


def _own_prefix(config: RedBeatConfig, key: str) -> str:
    """Return the prefix of the keys beside the lock; in a cluster they must be in the lock's slot."""
    return f"{{{key}}}:" if config.is_cluster and not has_hash_tag(key) else f"{key}:"


def _default_key(config: RedBeatConfig, command: list[str]) -> str:
    """Return a key for ``command``: the same on every machine, and without a password that may be in it."""
    digest = hashlib.sha256(as_stored("\0".join(command))).hexdigest()
    return config.keys.singleton(f"{Path(command[0]).name}-{digest[:8]}")


def _read_config(path: str) -> BeatCopSettings:
    try:
        return read_beatcop(path)
    except OSError as exc:
        raise CommandLineError(f"{path} can't be read: {exc.strerror}.", exits.NO_INPUT) from None
    except ConfigurationError as exc:
        raise CommandLineError(str(exc), exits.CONFIG) from None


def _usage(message: str) -> CommandLineError:
    return CommandLineError(message, exits.USAGE)


def _json_object(option: str, text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except ValueError as exc:
        raise _usage(f"{option}: no JSON: {exc}.") from None
    if not isinstance(value, dict):
        raise _usage(f"{option}: no JSON object, like {{}}.")
    return value
