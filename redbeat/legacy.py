"""The names that the modules of celery-redbeat 2.x have and ours do not use.

Programs import them from there, even what 2.x only imports itself: ``from redbeat.schedulers import json``.
They can still be imported, with a DeprecationWarning that says where they are now.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from redbeat.log.logger import logger

#: a message about an entry that can't be stored: name, error, fields
ADD_ENTRY_ERROR = "Entry %r can't be added to the schedule: %r. Its fields: %r"

#: extends a lock of redis-py to so many milliseconds from now on, instead of by so many. KEYS[1]: the lock.
#: ARGV[1]: its token. ARGV[2]: milliseconds. Returns 1, or 0 when the lock is not held by this token, or does
#: not expire.
LUA_EXTEND_TO_SCRIPT = """
if redis.call('get', KEYS[1]) ~= ARGV[1] or redis.call('pttl', KEYS[1]) < 0 then
    return 0
end
return redis.call('pexpire', KEYS[1], ARGV[2])
"""

#: the attribute of an app that holds its client
REDBEAT_REDIS_KEY = "redbeat_redis"
#: the attribute of an app that held its Sentinels in 2.x
REDBEAT_SENTINEL_KEY = "redbeat_sentinel"
#: the options of ``redbeat_redis_options`` that 2.x read itself
REDBEAT_INTERNAL_OPTIONS = (
    "retry_period",
    "cluster",
    "sentinels",
    "service_name",
    "sentinel_kwargs",
    "startup_nodes",
)


class Old(NamedTuple):
    """Where an old name leads.

    Attributes:
        module, attribute: where its value is; no attribute: the module itself.
    """

    module: str
    attribute: str = ""

    def load(self) -> Any:
        module = import_module(self.module)
        return getattr(module, self.attribute) if self.attribute else module

    def __str__(self) -> str:
        return f"{self.module}.{self.attribute}" if self.attribute else f"the module {self.module}"


def _all_of(module: str, *names: str) -> dict[str, Old]:
    return {name: Old(module, name) for name in names}


_DATEUTIL_FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")

#: module to its old names
NAMES: Mapping[str, Mapping[str, Old]] = {
    "redbeat.schedulers": {
        **_all_of(
            __name__,
            "ADD_ENTRY_ERROR",
            "LUA_EXTEND_TO_SCRIPT",
            "REDBEAT_INTERNAL_OPTIONS",
            "REDBEAT_REDIS_KEY",
            "REDBEAT_SENTINEL_KEY",
            "_log_skipped_broker_options",
            "_set_redbeat_connect",
        ),
        **_all_of("redbeat.decoder", "RedBeatJSONDecoder", "RedBeatJSONEncoder", "to_timestamp"),
        **_all_of("celery.app", "app_or_default"),
        **_all_of("celery.beat", "ScheduleEntry"),
        **_all_of("celery.utils.log", "get_logger"),
        **_all_of("celery.utils.time", "humanize_seconds"),
        **_all_of("datetime", "MINYEAR", "datetime"),
        **_all_of("kombu.utils.objects", "cached_property"),
        **_all_of("kombu.utils.url", "maybe_sanitize_url"),
        **_all_of("redis.client", "Redis"),
        **_all_of("redis.sentinel", "MasterNotFoundError", "Sentinel"),
        **_all_of("tenacity", "retry", "retry_if_exception_type", "stop_after_delay", "wait_exponential"),
        **{name: Old(name) for name in ("json", "redis", "ssl", "warnings")},
    },
    "redbeat.decoder": {
        **_all_of(__name__, "get_utcoffset_minutes"),
        **_all_of("redbeat.schedules", "rrule"),
        **{name: Old(name) for name in ("calendar", "zoneinfo")},
    },
    "redbeat.schedules": {
        **_all_of("dateutil.rrule", *_DATEUTIL_FREQUENCIES),
        "dateutil_rrule": Old("dateutil.rrule", "rrule"),
        "schedstate": Old("celery.schedules", "schedstate"),
        "schedule": Old("celery.schedules", "BaseSchedule"),
    },
}


def lookup_of(
    module: str, own: Mapping[str, Any]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` for ``module``, whose namespace is ``own``.

    A star import takes the old names too, as modules of 2.x have no ``__all__``.
    """
    names = NAMES[module]

    def find(name: str) -> Any:
        old = names.get(name)
        if old is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        where = "has no replacement" if old.module == __name__ else f"is {old}"
        warnings.warn(f"{module}.{name} is a name of celery-redbeat 2.x: it {where}.", DeprecationWarning, 2)
        return old.load()

    def list_all() -> list[str]:
        return sorted({*own, *names})

    return find, list_all, [name for name in list_all() if not name.startswith("_")]


def get_utcoffset_minutes(dt: Any) -> float:
    """Return how many minutes a datetime is east of UTC; 0 for a naive one."""
    offset = dt.utcoffset()
    return offset.total_seconds() / 60 if offset else 0


def _set_redbeat_connect(app: Any, connect_name: str, connection: Any, retry_period: float | None) -> None:
    """Keep ``connection`` as this attribute of ``app``, with a retry period if there is one."""
    wrap: Any = Old("redbeat.connection.retry", "RetryingConnection").load()
    setattr(app, connect_name, connection if retry_period is None else wrap(retry_period, connection))


def _log_skipped_broker_options(skipped_options: Any) -> None:
    """Log which ``broker_transport_options`` the client of the schedule does not get."""
    if skipped_options:
        logger.debug(
            "beat: These broker_transport_options are not for the schedule's client: %s",
            ", ".join(sorted(skipped_options)),
        )
