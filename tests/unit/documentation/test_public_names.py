"""What programs written for celery-redbeat 2.x import and call; and what the package itself imports."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import distribution
from typing import Any

import kombu.exceptions
import redis.exceptions
from celery.beat import Scheduler
from celery.signals import beat_init

from redbeat import errors, schedulers

#: errors to the classes that callers of 2.x, of redis-py and of Python catch
CAUGHT_AS: dict[type[BaseException], type[BaseException]] = {
    errors.StoreUnavailable: redis.exceptions.ConnectionError,
    errors.StoreRefused: redis.exceptions.ResponseError,
    errors.LayoutChanged: errors.StoreRefused,
    errors.RedBeatKeyExpiryError: errors.ConfigurationError,
    errors.DeclarationError: errors.ConfigurationError,
    errors.EntryNotFound: KeyError,
    errors.EntryCorrupt: ValueError,
    errors.MessageNotStored: kombu.exceptions.OperationalError,
    errors.MessageRefused: ValueError,
    errors.CalendarError: ValueError,
    errors.CalendarNotFound: KeyError,
    errors.FileError: ValueError,
    errors.LockNotAcquired: AttributeError,
    errors.LockLost: redis.exceptions.LockNotOwnedError,
}
IMPORT_WITHOUT_NETWORK = """
import socket, sys
def refuse(*args, **kwargs):
    raise SystemExit("a connection was tried")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
import redbeat, redbeat.schedulers, redbeat.decoder, redbeat.schedules
from celery import _state
assert _state._tls.current_app is None, "an app was made"
assert not {"rich", "redbeat.cli"} & set(sys.modules), "who runs no command needs no tables"
"""


def test_error_is_caught_by_what_callers_of_2x_catch() -> None:
    assert all(issubclass(getattr(errors, name), errors.RedBeatError) for name in errors.__all__)
    assert [error for error, base in CAUGHT_AS.items() if not issubclass(error, base)] == []


def test_import_connects_nothing_and_makes_no_app() -> None:
    command = [sys.executable, "-c", IMPORT_WITHOUT_NETWORK]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stderr) == (0, "")


def test_beat_with_another_scheduler_is_left_alone() -> None:
    class Untouchable(Scheduler):
        def __init__(self) -> None:
            pass

        def __getattribute__(self, name: str) -> Any:
            assert name == "__class__", f"{name} was read"
            return super().__getattribute__(name)

        def __setattr__(self, name: str, value: Any) -> None:
            raise AssertionError(f"{name} was set")

    class Service:
        scheduler = Untouchable()

    service = Service()
    attributes = dict(vars(service))
    for _, result in beat_init.send_robust(sender=service):
        assert result is None
    schedulers.acquire_distributed_beat_lock(service)
    assert vars(service) == attributes


def test_package_has_the_extras_and_entry_points_of_the_readme() -> None:
    package = distribution("celery-redbeat")
    extras = {"calendar", "django", "metrics", "otel", "sentry", "testing", "web"}
    assert extras <= set(package.metadata.get_all("Provides-Extra") or ())
    found = {(one.group, one.name): one.load() for one in package.entry_points}
    assert found.keys() == {
        ("celery.beat_schedulers", "redbeat"),
        ("celery.commands", "redbeat"),
        ("console_scripts", "redbeat-singleton"),
        ("pytest11", "redbeat"),
    }
    assert found["celery.beat_schedulers", "redbeat"] is schedulers.RedBeatScheduler
