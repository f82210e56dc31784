"""RedBeat: a Celery beat scheduler whose schedule lives in Redis or Valkey.

The names below are loaded when they are first used: an application that imports ``redbeat.scheduled`` does
not load the scheduler.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from redbeat.diagnostics import other_scheduler as other_scheduler  # connects to the start of beats

if TYPE_CHECKING:
    from redbeat.declared.decorator import scheduled as scheduled
    from redbeat.entries.entry import RedBeatSchedulerEntry as RedBeatSchedulerEntry
    from redbeat.runs.tracking import track_runs as track_runs
    from redbeat.schedulers import RedBeatScheduler as RedBeatScheduler

__all__ = ["RedBeatScheduler", "RedBeatSchedulerEntry", "scheduled", "track_runs"]

_MODULES = {
    "RedBeatScheduler": "redbeat.schedulers",
    "RedBeatSchedulerEntry": "redbeat.entries.entry",
    "scheduled": "redbeat.declared.decorator",
    "track_runs": "redbeat.runs.tracking",
}
#: modules of 2.x, where ``import redbeat`` has them as attributes
_SUBMODULES = ("decoder", "schedulers", "schedules")


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"redbeat.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'redbeat' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_SUBMODULES})
