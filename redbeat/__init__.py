"""RedBeat: a Celery beat scheduler whose schedule lives in Redis or Valkey.

The names below are loaded when they are first used: an application that imports ``redbeat.scheduled`` does
not load the scheduler.
"""

from importlib import import_module
from pkgutil import iter_modules
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


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value
    module = f"{__name__}.{name}"
    if not name.startswith("_"):
        try:
            return import_module(module)  # as in redbeat.schedulers after `import redbeat` alone
        except ModuleNotFoundError as exc:
            if exc.name != module:
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *(module.name for module in iter_modules(__path__))})
