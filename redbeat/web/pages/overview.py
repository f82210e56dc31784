"""The first page: whether all is well, who leads, what is late or fails, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.routing import BaseRoute

from redbeat.config.masking import sanitize_url
from redbeat.entries.search import StateCounts, count_states
from redbeat.entries.wording import in_words_of
from redbeat.errors import RedBeatError
from redbeat.leadership.status import State, Status, hint_of, judge, read_status
from redbeat.log.text import counted
from redbeat.runs.run import Run, run_of_failure
from redbeat.schedules.durations import seconds_in_words
from redbeat.store.figures import read_streaks
from redbeat.store.runs import Runs
from redbeat.store.store import Store
from redbeat.telemetry.last_hour import read_last_hour
from redbeat.web.charts.minutes import bars_of, lines_of
from redbeat.web.jobs import Pace, Result, Tell
from redbeat.web.pages.doctor import ask_doctor, groups_of
from redbeat.web.routes import RETRY_AFTER_SECONDS, page
from redbeat.web.visit import Visit

Item = TypeVar("Item")

#: how much processor time counting the entries may take, and how old the count may be; seconds
COUNT_SECONDS, FRESH_SECONDS = 15.0, 10.0
#: how many runs that have failed, and findings, are shown
FAILED, FINDINGS = 6, 3
#: how many shards are shown: more make a page that nobody reads
MAX_SHARDS = 256
#: how many entries that fail are looked at
MAX_FAILING = 200

#: what to do about each verdict
ADVICE = {
    State.NO_LEADER: "Start a beat: celery -A proj beat -S redbeat.RedBeatScheduler. If one runs, its log "
    "says what keeps it from leading.",
    State.LATE: "Beat's log says what it is busy with; a beat that hangs is replaced by a standby, if there "
    "is one. The doctor knows the usual reasons.",
    State.UNREACHABLE: "Look whether it runs, and whether it can be reached from here. Beats wait for it, "
    "and go on by themselves.",
    State.BLOCKED: "Due runs wait and are sent as soon as beat can send again. Its log has the error.",
}


def show_overview(visit: Visit) -> Response:
    """Return the page, or its part that changes."""
    template = "overview_part.html" if visit.is_fragment else "overview.html"
    url = sanitize_url(visit.dashboard.config.redis_url)
    try:
        found = read_status(visit.app)
    except RedBeatError as exc:
        problem = exc.plain
        visit.__dict__["now"] = datetime.now(timezone.utc)  # nobody tells the server's clock
        verdict = _verdict(visit, State.UNREACHABLE, problem)
        status_code = 200 if visit.is_fragment else 503
        shown = visit.render(template, status_code, title="Overview", found=None, server=url, **verdict)
        if status_code == 503:
            shown.headers["Retry-After"] = RETRY_AFTER_SECONDS
        return shown
    visit.__dict__["now"] = found.now
    state, problem = judge(found)
    verdict = _verdict(visit, state, problem)
    if state is State.HEALTHY and found.silent_leader:
        verdict = _silence(visit, found)
    parts = _parts(visit, found)
    errors = parts["doctor_counts"].get("error", 0)
    if errors and verdict["tone"] == "good":  # beat is healthy, but not all is well
        verdict["tone"] = "warn"
        verdict["word"] += f"; the doctor has found {counted(errors, 'error', 'errors')}"
        verdict["errors"] = errors
    return visit.render(template, title="Overview", found=found, server=url, **verdict, **parts)


def _verdict(visit: Visit, state: State, problem: str) -> dict[str, Any]:
    return {
        "word": state.name.lower().replace("_", " "),
        "tone": "good" if state is State.HEALTHY else "warn" if state is State.LATE else "danger",
        "problem": in_words_of(problem, visit.zone),
        "advice": ADVICE.get(state, ""),
        "errors": 0,
    }


def _silence(visit: Visit, found: Status) -> dict[str, Any]:
    """Return the verdict about a leader that may be gone, before a standby has taken over."""
    leader, seconds = found.silent_leader, visit.dashboard.config.takeover_after
    which = f"Process {leader.pid} on {leader.host}" if leader is not None and leader.host else "A beat"
    when = "when the lock ends" if seconds is None else f"{seconds_in_words(seconds)} after its last one"
    advice = f"A standby takes over {when}, and loses no run; if none runs, start one."
    problem = f"{which} leads, and gives no sign of life."
    return {"word": "silent", "tone": "warn", "problem": problem, "advice": advice, "errors": 0}


def _parts(visit: Visit, found: Status) -> dict[str, Any]:
    """Return all that is shown besides who leads; each for itself, as a right may be missing."""
    hour = _known(lambda: read_last_hour(visit.app, found.now))
    minutes = () if hour.found is None else hour.found.minutes
    bars = bars_of(minutes)
    doctor = ask_doctor(visit, wait_seconds=0.0)
    return {
        "hour": hour,
        "sent_lately": minutes[-2].sent if minutes else 0,
        "bars": bars,
        "lines": lines_of(bars.bars),
        "counts": _ask_counts(visit),
        "failed": _known(lambda: _failed(visit, found)),
        "failing": _known(lambda: _failing(visit)),
        "doctor": doctor,
        "doctor_counts": {} if doctor.found is None else doctor.found.counts(),
        "doctor_groups": [] if doctor.found is None else groups_of(doctor.found)[:FINDINGS],
        "in_words": lambda sentence: in_words_of(sentence, visit.zone),
        "most_failed": FAILED,
        "unled": len(found.unled),
        "unread": len(found.unread),
        "hint": hint_of(found),
        "most_shards": MAX_SHARDS,
    }


def _known(read: Callable[[], Item]) -> Result[Item]:
    try:
        return Result(read())
    except RedBeatError as exc:
        return Result(problem=str(exc))


def _ask_counts(visit: Visit) -> Result[StateCounts]:
    def count(tell: Tell[StateCounts]) -> StateCounts:
        pace = Pace(COUNT_SECONDS)
        for found in count_states(Store(visit.app)):
            tell(found)
            pace.rest()
            if pace.is_over:
                break
        return found

    return visit.dashboard.jobs.read("states", "", count, fresh_seconds=FRESH_SECONDS)


def _failed(visit: Visit, found: Status) -> list[Run]:
    """Return the last runs that have failed, of an hour."""
    runs = Runs(Store(visit.app)).failures(found.now - timedelta(hours=1), FAILED)
    return [run_of_failure(one) for one in runs]


def _failing(visit: Visit) -> list[tuple[str, int]]:
    """Return the entries whose last runs have failed in a row, those with most first."""
    store = Store(visit.app)
    keys = read_streaks(store, MAX_FAILING, store.parts)
    counts = Runs(store).failing(keys)
    found = [(store.keys.name(key), count) for key, count in zip(keys, counts, strict=True) if count > 1]
    return sorted(found, key=lambda one: -one[1])


ROUTES: list[BaseRoute] = [page("/", show_overview)]
