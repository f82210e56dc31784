"""What a policy makes of a due time: pauses, exclusions, limits, and the end of an entry. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from redbeat.entries.dropped import Dropped, dropped_until
from redbeat.entries.due import first_after_pause, is_in_pause, is_moved, paused_until, score_after_pause
from redbeat.entries.failures import Failure
from redbeat.entries.saving import dropped_at_rest
from redbeat.errors import EntryError
from redbeat.policy.misfires import Exclusion, exclusion_of
from redbeat.policy.policy import NO_POLICY, PAUSE_FIELDS, Policy, encode_policy
from redbeat.scheduler.decisions import Decision, commit_of, is_asked
from redbeat.schedules.occurrences import next_run
from redbeat.schedules.timezones import in_utc, moment_of
from redbeat.store.records import Commit, Ending, Stored, score_text

if TYPE_CHECKING:
    from redbeat.entries.entry import RedBeatSchedulerEntry
    from redbeat.scheduler.planner import Known

#: seconds until a disabled entry is looked at again, at its first due time after them: it may be
#: enabled by hand, without a new score
DISABLED_SECONDS = 60.0

_INSTANT = timedelta(microseconds=1)


def settle(
    known: Known, row: Stored, failure: Failure | None, nominal: str, moment: datetime, *, is_retried: bool
) -> tuple[str, bool, Sequence[Dropped]] | Decision:
    """Return which due time the score stands for after moves, pauses and exclusions; a decision: for none.

    With it (UNIX seconds as the server writes them): whether that run could not be sent before, and the runs
    before it that the policy excludes.
    """
    entry, bounds = known.entry, known.timetable.bounds
    at = scored_at = moment_of(float(nominal))
    asked = is_asked(row, failure)
    dropped: list[Dropped] = []
    find_own_time = partial(known.timetable.own_time, entry)
    score, is_foreign = float(row.nominal), known.is_meta_foreign
    if not (is_retried or asked) and is_moved(entry, score, is_foreign, at, moment, find_own_time):
        own_time = find_own_time()
        excluded = exclusion_of(entry.schedule, bounds, at)
        if excluded is not None and excluded.field == "exclude":  # since its score was written
            dropped.append(_excluded(known, at, own_time, moment, excluded))
        if own_time is None or own_time > moment:
            return put_off(known, row, own_time, dropped)
        at = own_time
    if not entry.is_enabled_at(moment):
        return Decision(row, commit_of(row, score_text(_score_at_rest(known, at, moment))))
    if not asked and is_in_pause(entry, at):
        is_retried, first = False, first_after_pause(entry, bounds, at)
        if first is None or first > moment:
            return put_off(known, row, first)
        is_made_up_for = bounds.run_missed and first == paused_until(entry) and entry.last_run_at is not None
        at = (entry.due_by_schedule() if is_made_up_for else None) or first
    dropped += _dropped_in_pause(known, at)
    excluded = exclusion_of(entry.schedule, bounds, at)
    if excluded is not None:
        allowed_at = None
        if excluded.field != "end_time":
            allowed_at = next_run(entry.schedule, bounds, at, at)
        dropped.append(_excluded(known, at, allowed_at, moment, excluded))
        if allowed_at is None or allowed_at > moment:
            return put_off(known, row, allowed_at, dropped)
        is_retried, at = False, allowed_at
    return nominal if at == scored_at else score_text(at.timestamp()), is_retried, dropped


def put_off(known: Known, row: Stored, to: datetime | None, dropped: Sequence[Dropped] = ()) -> Decision:
    """Return the decision that makes an entry due at ``to``; None: never, so ``after_finish`` applies."""
    entry, policy = known.entry, known.timetable.bounds
    commit = commit_of(row, score_text(entry.score_of(to)), dropped)
    # saving a calendar gives its entries another revision, and this row is then refused
    commit.is_for_this_definition = policy.exclude is not None
    if to is None and policy.after_finish == "delete":
        commit.new_score = Ending.DELETE
    elif to is None and policy.after_finish == "disable" and entry.enabled:
        disabled = copy(entry)
        disabled.enabled = False
        commit.new_definition, commit.is_for_this_definition = disabled.encode(row), True
    return Decision(row, commit, dropped=dropped)


def why_over(policy: Policy) -> str:
    """Return why an entry that has reached its number of runs has no more, as a phrase."""
    return "it runs once (one_off)" if policy.one_off else f"it has run {policy.max_runs} times (max_runs)"


def why_dropped(entry: RedBeatSchedulerEntry, due_at: datetime, now: datetime) -> str:
    """Return why a run that has waited is not sent any more; '': it is."""
    policy = entry.policy
    waited = "it waited for the run before it"
    if not entry.is_enabled_at(now):
        state = "paused" if policy.paused else "disabled"
        note = f": {policy.pause_note}" if policy.paused and policy.pause_note else ""
        return f"{waited}, and the entry is {state}{note}"
    if policy.is_finished(entry.total_run_count):
        return f"{waited}, and then {why_over(policy)}"
    if policy.expires_after is not None and due_at + timedelta(seconds=policy.expires_after) <= now:
        return f"{waited} for longer than expires_after ({policy.expires_after:g} s)"
    return ""


def end_pause(known: Known, row: Stored, commit: Commit, *, is_over: bool) -> None:
    """Let the row of the first run after a pause record that the pause is over.

    If another program has changed the entry since it was read, its definition and policy stay, and the run is
    recorded.
    """
    resumed, policy = copy(known.entry), known.entry.policy
    resumed.enabled = not (is_over and policy.after_finish == "disable")
    resumed.policy = replace(policy, **{name: getattr(NO_POLICY, name) for name in PAUSE_FIELDS})
    with suppress(EntryError):  # written by hand as RedBeat would not write it: it runs, and its text stays
        commit.new_definition = resumed.encode(row)
        commit.new_policy = encode_policy(resumed.policy, row.policy) or ""


def _dropped_in_pause(known: Known, due_at: datetime) -> list[Dropped]:
    """Return the runs that a pause has prevented, if ``due_at`` is the first run after it."""
    entry, bounds = known.entry, known.timetable.bounds
    until = paused_until(entry)
    if until is None or entry.last_run_at is None or bounds.run_missed or due_at < until:
        return []
    if in_utc(entry.last_run_at) >= until or first_after_pause(entry, bounds) != due_at:
        return []
    dropped = dropped_at_rest(entry, bounds, until, is_paused=True)
    return [] if dropped is None else [dropped]


def _excluded(
    known: Known, due_at: datetime, allowed_at: datetime | None, now: datetime, excluded: Exclusion
) -> Dropped:
    """Return the runs that the policy excludes, from ``due_at`` to ``allowed_at`` or now."""
    end = now if allowed_at is None or allowed_at > now else allowed_at - _INSTANT
    schedule_, bounds = known.entry.schedule, known.timetable.bounds.unbounded()
    return dropped_until(schedule_, bounds, due_at, end, excluded.why, reason=excluded.field)


def _score_at_rest(known: Known, due_at: datetime, now: datetime) -> float:
    """Return the score of a disabled entry: when its pause is over, or when to look at it again."""
    entry, bounds = known.entry, known.timetable.bounds
    if paused_until(entry) is not None:
        return score_after_pause(entry, bounds, due_at)
    look_at = now + timedelta(seconds=DISABLED_SECONDS)
    return entry.score_of(next_run(entry.schedule, bounds, look_at, due_at))
