"""Hints for a user who has just stored an entry: it is valid, but perhaps not what was meant. Each function
returns a sentence; '': no hint.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import compress
from typing import Any

from redbeat.config.config import ensure_conf
from redbeat.config.ping_urls import is_allowed, parse_ping_url
from redbeat.config.suggestions import did_you_mean
from redbeat.declared.collection import collect_declared, load_tasks
from redbeat.entries.wording import one_line
from redbeat.errors import RedBeatError
from redbeat.store.owners import are_static
from redbeat.store.store import Store


def known_tasks(app: Any) -> list[str]:
    """Return the names of the application's tasks, sorted; [] if its modules can't be imported."""
    try:
        load_tasks(app)
        return sorted(name for name in app.tasks if not name.startswith("celery."))
    except Exception:  # noqa: BLE001 - the application's own code; names are only suggested
        return []


def hint_at_task(app: Any, task: str) -> str:
    """Return a hint that the application has no such task; it may be right, if only the workers have it."""
    try:
        load_tasks(app)
    except Exception as exc:  # noqa: BLE001 - the application's own code; the entry is stored
        return f"The tasks are unknown, as the modules can't be imported: {one_line(repr(exc))}"
    known = known_tasks(app)
    if not known or task in app.tasks:
        return ""
    return f"The application has no task {one_line(task)!r}.{did_you_mean(task, known)}"


def hint_at_ping_host(app: Any, ping_url: str) -> str:
    """Return a hint that beat won't call ``ping_url``, if it has the same settings as this program."""
    url = parse_ping_url(ping_url)
    if is_allowed(url, ensure_conf(app).ping_hosts):
        return ""
    return (
        f"redbeat_ping_hosts doesn't have {url.authority} in the settings here. If beat has the same, it "
        "won't call this ping_url."
    )


def hint_at_beat_schedule(app: Any, names: Iterable[str]) -> str:
    """Return a hint that changes of entries that come from the code don't last."""
    sources = _sources_of(app, names)
    if not sources:
        return ""
    name, source = next(iter(sources.items()))
    more = len(sources) - 1
    what = f"and {more} more come" if more else "comes"
    return (
        f"{one_line(name)} {what} from {source if len(set(sources.values())) == 1 else 'the code'}: this "
        "change lasts until a beat starts or becomes leader, unless you make it there, too. (A pause would "
        "last.)"
    )


def source_of(app: Any, name: str) -> str:
    """Return where an entry stands in the code, in words; '': it doesn't come from the code."""
    return _sources_of(app, [name]).get(name, "")


def _sources_of(app: Any, names: Iterable[str]) -> dict[str, str]:
    """Return where entries stand in the code, in words; entries that don't come from it are left out."""
    try:
        given = sorted(names)
        static = [*compress(given, are_static(Store(app), given))]
    except RedBeatError:  # a right that is missing, say
        return {}
    try:
        load_tasks(app)
        declared = collect_declared(app).entries if static else {}
    except Exception:  # noqa: BLE001 - the application's own code; the doctor tells what is wrong with it
        declared = {}
    own = dict.fromkeys(app.conf.beat_schedule, "beat_schedule")
    own.update(
        (name, f"@scheduled at {one_line(entry.declaration.place)}") for name, entry in declared.items()
    )
    return {name: own.get(name, "the code (beat_schedule or @scheduled)") for name in static}
