"""What programs written for celery-redbeat 2.x import and call; and what the package itself imports."""

from __future__ import annotations

import ast
import importlib
import inspect
import logging
import re
import subprocess
import sys
from importlib.metadata import distributions, requires
from pathlib import Path
from typing import Any

import kombu.exceptions
import pytest
import redis.exceptions
from celery.beat import ScheduleEntry, Scheduler
from celery.signals import beat_init

import redbeat
from redbeat import RedBeatScheduler, RedBeatSchedulerEntry, errors, schedulers

NAMES = {
    "redbeat": ["RedBeatScheduler", "RedBeatSchedulerEntry"],
    "redbeat.schedulers": [
        "RedBeatScheduler", "RedBeatSchedulerEntry", "RedBeatConfig", "RetryingConnection", "get_redis",
        "ensure_conf", "acquire_distributed_beat_lock", "logger",
    ],
    "redbeat.decoder": ["RedBeatJSONEncoder", "RedBeatJSONDecoder", "to_timestamp", "from_timestamp"],
    "redbeat.schedules": ["rrule"],
}  # fmt: skip


#: error to what it is caught by, too
BASES: dict[str, tuple[type[BaseException], ...]] = {
    "RedBeatError": (Exception,),
    "ConfigurationError": (errors.RedBeatError,),
    "RedBeatKeyExpiryError": (errors.ConfigurationError,),
    "StoreUnavailable": (errors.RedBeatError, redis.exceptions.ConnectionError),
    "LayoutChanged": (errors.StoreRefused,),
    "StoreRefused": (errors.RedBeatError, redis.exceptions.ResponseError),
    "ReshardRefused": (errors.RedBeatError,),
    "StoreCorrupt": (errors.RedBeatError,),
    "EntryError": (errors.RedBeatError,),
    "DeclarationError": (errors.EntryError, errors.ConfigurationError),
    "EntryNotFound": (errors.EntryError, KeyError),
    "EntryBusy": (errors.EntryError,),
    "EntryChanged": (errors.EntryError,),
    "EntryCorrupt": (errors.EntryError, ValueError),
    "EntryTooExpensive": (errors.EntryError,),
    "RunNotSent": (errors.RedBeatError,),
    "BrokerUnavailable": (errors.RunNotSent,),
    "CallRefused": (errors.RunNotSent,),
    "MessageNotStored": (errors.RedBeatError, kombu.exceptions.OperationalError),
    "MessageRefused": (errors.RedBeatError, ValueError),
    "CalendarError": (errors.RedBeatError, ValueError),
    "CalendarNotFound": (errors.CalendarError, KeyError),
    "FileError": (errors.RedBeatError, ValueError),
    "OwnedByOthers": (errors.FileError,),
    "AccessDenied": (errors.RedBeatError,),
    "CommandFailed": (errors.RedBeatError,),
    "LockError": (errors.RedBeatError,),
    "LockNotAcquired": (errors.LockError, AttributeError),
    "LockLost": (errors.LockError, redis.exceptions.LockNotOwnedError),
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


def parameters(function: Any) -> list[str]:
    """Those that code for 2.x may give; what can only be given by name is new."""
    found = inspect.signature(function).parameters.values()
    return [one.name for one in found if one.name != "self" and one.kind is not one.KEYWORD_ONLY]


BROUGHT_BY_CELERY = {"amqp", "billiard", "click", "kombu"}


#: for type checkers only; for who moves from django-celery-beat, who is told what to install; and what Django
#: brings along
OPTIONAL = {"typing_extensions", "sqlalchemy", "asgiref"}


def test_every_name_of_2x_is_importable_from_its_module() -> None:
    for module, names in NAMES.items():
        assert [name for name in names if not hasattr(importlib.import_module(module), name)] == []
    exported = ["RedBeatScheduler", "RedBeatSchedulerEntry", "scheduled", "track_runs"]
    assert sorted(redbeat.__all__) == exported
    assert schedulers.logger is logging.getLogger("celery.beat")
    assert issubclass(RedBeatScheduler, Scheduler)
    assert issubclass(RedBeatScheduler.Entry, RedBeatSchedulerEntry)
    assert issubclass(RedBeatSchedulerEntry, ScheduleEntry)
    for name in ("key", "score", "rank", "due_at"):
        assert isinstance(getattr(RedBeatSchedulerEntry, name), property)
    assert all(hasattr(RedBeatScheduler, name) for name in ("schedule", "info", "producer", "lock"))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (
            RedBeatSchedulerEntry.__init__,
            ["name", "task", "schedule", "args", "kwargs", "enabled", "options", "clsargs"],
        ),
        (RedBeatSchedulerEntry.from_key, ["key", "app"]),
        (RedBeatSchedulerEntry.generate_key, ["app", "name"]),
        (RedBeatSchedulerEntry.load_definition, ["key", "app", "definition"]),
        (RedBeatSchedulerEntry.load_meta, ["key", "app"]),
        (RedBeatSchedulerEntry.decode_definition, ["definition"]),
        (RedBeatSchedulerEntry.decode_meta, ["meta", "app"]),
        (RedBeatSchedulerEntry.save, []),
        (RedBeatSchedulerEntry.delete, []),
        (RedBeatSchedulerEntry.reschedule, ["last_run_at"]),
        (RedBeatSchedulerEntry.is_due, []),
        (RedBeatSchedulerEntry.next, ["last_run_at", "only_update_last_run_at"]),
        (RedBeatScheduler.__init__, ["app", "lock_key", "lock_timeout", "kwargs"]),
        (RedBeatScheduler.update_from_dict, ["dict_"]),
        (RedBeatScheduler.reserve, ["entry"]),
        (RedBeatScheduler.maybe_due, ["entry", "kwargs"]),
        (RedBeatScheduler.apply_async, ["entry", "producer", "advance", "kwargs"]),
        (RedBeatScheduler.setup_schedule, []),
        (RedBeatScheduler.close, []),
        (schedulers.acquire_distributed_beat_lock, ["sender", "kwargs"]),
        (schedulers.get_redis, ["app"]),
        (schedulers.ensure_conf, ["app"]),
        (schedulers.RedBeatConfig, ["app"]),
        (schedulers.RetryingConnection, ["retry_period", "wrapped_connection"]),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_parameters_are_named_and_ordered_as_in_2x(function: Any, expected: list[str]) -> None:
    assert parameters(function) == expected


def test_error_is_caught_by_what_callers_of_2x_catch() -> None:
    for name, bases in BASES.items():
        assert issubclass(getattr(errors, name), bases), name
    assert set(errors.__all__) == BASES.keys()


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


def test_package_imports_only_what_it_declares() -> None:
    imported: set[str] = set()
    for path in Path(redbeat.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom):
                imported.add(str(node.module))
            elif isinstance(node, ast.Import):
                imported |= {name.name for name in node.names}
    foreign = {name.split(".")[0] for name in imported} - sys.stdlib_module_names - {"redbeat"}
    declared = {re.split(r"[^\w-]", line)[0].lower() for line in requires("celery-redbeat") or ()}
    # not packages_distributions(): in Python 3.10 it knows those alone that have a top_level.txt
    provided = {
        file.parts[0].removesuffix(".py")
        for one in distributions()
        if one.metadata["Name"].lower().replace("_", "-") in declared
        for file in one.files or ()
    }
    undeclared = foreign - provided
    assert undeclared == BROUGHT_BY_CELERY | OPTIONAL
