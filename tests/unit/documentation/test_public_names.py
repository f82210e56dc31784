"""What programs written for celery-redbeat 2.x import and call (docs/design.rst, contract)."""

from __future__ import annotations

import importlib
import inspect
import logging
import subprocess
import sys
from typing import Any

import kombu.exceptions
import pytest
import redis.exceptions
from celery.beat import ScheduleEntry, Scheduler
from celery.schedules import BaseSchedule
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


def test_the_package_exports_the_scheduler_its_entry_scheduled_and_the_tracking_of_runs_and_no_more() -> None:
    assert sorted(redbeat.__all__) == ["RedBeatScheduler", "RedBeatSchedulerEntry", "scheduled", "track_runs"]


@pytest.mark.parametrize(("module", "name"), [(module, name) for module in NAMES for name in NAMES[module]])
def test_a_name_of_2x_is_importable_from_where_it_was(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(module), name)


def test_the_classes_are_celerys_kind() -> None:
    assert issubclass(RedBeatScheduler, Scheduler)
    assert RedBeatScheduler.Entry is RedBeatSchedulerEntry
    assert issubclass(RedBeatSchedulerEntry, ScheduleEntry)
    assert issubclass(importlib.import_module("redbeat.schedules").rrule, BaseSchedule)


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
def test_parameters_are_called_and_ordered_as_in_2x(function: Any, expected: list[str]) -> None:
    assert parameters(function) == expected


@pytest.mark.parametrize("name", ["key", "score", "rank", "due_at"])
def test_an_entry_has_the_properties_of_2x(name: str) -> None:
    assert isinstance(getattr(RedBeatSchedulerEntry, name), property)


@pytest.mark.parametrize("name", ["schedule", "info", "producer", "lock"])
def test_a_scheduler_has_the_attributes_of_2x(name: str) -> None:
    assert hasattr(RedBeatScheduler, name)


@pytest.mark.parametrize(("name", "bases"), BASES.items())
def test_an_error_is_caught_by_what_callers_catch(name: str, bases: tuple[type[BaseException], ...]) -> None:
    assert all(issubclass(getattr(errors, name), base) for base in bases)


def test_every_error_is_exported_and_drawn_in_the_tree() -> None:
    defined = {name for name, value in vars(errors).items() if isinstance(value, type)} - {
        "LockNotOwnedError", "OperationalError", "RedisConnectionError", "ResponseError", "Any",
    }  # fmt: skip
    assert defined == set(errors.__all__) == BASES.keys()
    assert all(name in (errors.__doc__ or "") for name in defined)


@pytest.mark.parametrize("name", sorted(errors.__all__))
def test_the_repr_of_an_error_has_its_message(name: str) -> None:
    kind = getattr(errors, name)
    about_one = (errors.EntryError, errors.RunNotSent, errors.CalendarError, errors.FileError)
    with_key = (*about_one, errors.StoreCorrupt)
    needs_key = issubclass(kind, with_key)
    error = kind("what happened", *(["redbeat:x"] if needs_key else []))
    assert isinstance(error, errors.RedBeatError)
    assert repr(error) == f"{name}('what happened')"
    assert str(error) == "what happened"


def test_the_repr_of_a_lost_lock_has_its_message_only() -> None:
    assert repr(errors.LockLost("gone", "redbeat::lock", "another")) == "LockLost('gone')"


def test_an_error_about_a_missing_entry_reads_as_a_sentence() -> None:
    sentence = "redbeat:x: there is no such entry."
    assert str(errors.EntryNotFound(sentence, "redbeat:x")) == sentence


def test_all_logging_is_done_as_celery_beat() -> None:
    assert schedulers.logger is logging.getLogger("celery.beat")


def test_importing_redbeat_connects_nothing_makes_no_app_and_loads_no_command_line() -> None:
    command = [sys.executable, "-c", IMPORT_WITHOUT_NETWORK]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stderr) == (0, "")


def test_a_beat_with_another_scheduler_is_left_alone() -> None:
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
