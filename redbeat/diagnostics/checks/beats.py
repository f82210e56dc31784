"""Checks of the beats, of the locks that they hold, and of the shards that the schedule is divided into.

Invariant: while entries are moved, what is on its way isn't out of place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from redbeat.config.config import spelled
from redbeat.diagnostics.checks.context import Context, Row
from redbeat.diagnostics.facts import SILENT
from redbeat.diagnostics.findings import Finding, Severity, found
from redbeat.errors import StoreCorrupt
from redbeat.keys import Keys
from redbeat.layout import MAX_SHARDS, Layout
from redbeat.leadership.status import LATE_AFTER_SECONDS, Leader
from redbeat.log.text import counted
from redbeat.schedules.durations import seconds_in_words
from redbeat.schedules.timezones import in_utc, shown
from redbeat.store.layouts import find_latest, read_contents, read_layout
from redbeat.store.store import Store
from redbeat.store.strays import hiding_in

_TOKEN_OF_2X = re.compile("[0-9a-f]{32}")


def check_leader(context: Context) -> Iterator[Finding]:
    """Find shards that no beat leads, and a leader that is too slow."""
    status = context.status
    unled = status.unled
    if not status.leaders:  # nothing is being handed over
        unled = [one for one in status.parts if one.lock_key and not one.problem]
    for one in unled:
        if one.backlog or (status.beats and status.is_divided):  # else nothing is to be done now
            what = f"shard {one.name}" if status.is_divided else "the schedule"
            due = _due(one.backlog, status.seconds_since(one.oldest_due))
            beats = counted(len(status.beats or ()), "beat runs", "beats run")
            key = "no-leader/beats" if status.beats else "no-leader"
            yield found(key, one.lock_key or context.place, what=what, due=due, beats=beats)
    if unled:
        return
    oldest = status.seconds_since(status.oldest_due)
    due = _due(status.backlog, oldest)
    if status.obstacle and status.silent_leader is None:
        yield found("blocked", context.place, due=due, obstacle=status.obstacle)
    elif oldest is not None and oldest > LATE_AFTER_SECONDS:
        yield found("late", context.place, due=due)


def _due(backlog: int, oldest_seconds: float | None) -> str:
    since = f", the oldest for {seconds_in_words(oldest_seconds)}" if oldest_seconds else ""
    return f"{counted(backlog)} {'is' if backlog == 1 else 'are'} due{since}"


def check_lock_name(context: Context) -> Iterator[Finding]:
    """Find a lock whose key looks like an entry's, so that a user who may write entries may write it."""
    lock_key, keys = context.store.config.lock_key, context.store.keys
    if lock_key is not None and keys.may_be_entry(lock_key):
        better = context.config.base_keys.lock
        yield found("open-lock", "redbeat_lock_key", lock_key=lock_key, better=better)


def check_lock(context: Context) -> Iterator[Finding]:
    """Find locks whose holder isn't alive, or isn't a RedBeat 3."""
    for one in context.status.parts:
        if one.leader is not None and one.lock_key is not None:
            yield from _check_lock(context, one.leader, one.lock_key)


def _check_lock(context: Context, leader: Leader, lock_key: str) -> Iterator[Finding]:
    silent_seconds = context.status.seconds_since(leader.last_tick) or 0.0
    if leader.ttl_seconds is None:
        yield found("lock-for-ever", lock_key, token=leader.token, lock_key=lock_key)
    elif leader.host is None:
        is_2x = _TOKEN_OF_2X.fullmatch(leader.token) is not None
        what = "its token seems to be a celery-redbeat 2.x's" if is_2x else f"its token is {leader.token}"
        yield found("foreign-leader", lock_key, seconds=leader.ttl_seconds, what=what)
    elif silent_seconds > SILENT.total_seconds():
        since = seconds_in_words(silent_seconds)
        yield found("silent-leader", lock_key, pid=leader.pid, host=leader.host, since=since)


def check_writer(context: Context, row: Row) -> Iterator[Finding]:
    """Find runs that a beat of celery-redbeat 2.x seems to have recorded while RedBeat 3 leads.

    2.x leaves a meta without our mark, a score of whole seconds, and a run that was counted.
    """
    leader, entry, score = context.status.leader, row.entry, row.stored.score or 0.0
    if leader is None or leader.since is None or entry is None or entry.last_run_at is None:
        return
    ran_at = in_utc(entry.last_run_at)
    is_by_2x = row.stored.is_meta_foreign and score > 0 and float(score).is_integer()
    if is_by_2x and entry.total_run_count and leader.since + SILENT < ran_at <= context.now:
        yield found("mixed-versions", row.name, at=shown(ran_at.replace(microsecond=0)), host=leader.host)


def find_wrong_layout(store: Store) -> Iterator[Finding]:
    """Find a layout that was lost, or overwritten, or is earlier than a generation key: nothing else can be
    looked at then.
    """
    base, problem, advice = store.config.base_keys, "", ""
    try:
        layout = read_layout(store, is_slot_checked=True)
    except StoreCorrupt as exc:
        layout, advice = Layout(base), "Delete it. "
        problem = f"It{str(exc).removeprefix(base.layout).partition(':')[0]}."
    is_known = layout.generation or problem or store.config.shards
    if not is_known and not read_contents(store, [base])[0].guard:
        return  # it was never divided, and this user may have no right to shards
    latest = find_latest(store, layout, store.config.shards)
    if latest.generation > layout.generation:
        told = f"generation keys tell of generation {latest.generation}, of {latest.words}"
        says = f"It says generation {layout.generation}" if layout.generation else "It is missing"
        problem = f"{problem[:-1] or says}, and {told}."
        advice += f"celery redbeat reshard --to {latest.shards or 'none'} writes it again. "
    if problem:
        yield found("layout", base.layout, problem=problem, advice=advice)


def check_layout(context: Context) -> Iterator[Finding]:
    """Find a setting that isn't what the schedule is."""
    layout, shards = context.config.layout, context.config.shards
    if not layout.generation:
        return
    if not layout.is_moving and shards != layout.shards:
        name = spelled(context.config.app, "redbeat_shards")
        is_older = layout.generation > 1
        yield found(
            "layout/setting",
            "redbeat_shards",
            severity=Severity.WARNING if is_older else Severity.ERROR,
            effect="it is ignored" if is_older else "no beat starts with it",
            setting=shards or "not set",
            layout=_divided(layout.shards),
            remedy=f"Leave {name} out" if layout.shards is None else f"Set {name} = {layout.shards}",
            shards=shards or "none",
        )


def check_hidden(context: Context) -> Iterator[Finding]:
    """Find what a mover that was killed has left hidden, where no beat runs it."""
    layout = read_layout(context.store)
    if layout.generation:
        hiding = hiding_in(context.store, layout.with_ending)
        is_moved = context.server.which_exist([part.mover for part in hiding])
        for part, has_mover in zip(hiding, is_moved, strict=True):
            if not has_mover:
                yield found("hidden", part.moving, target=part.moving)


def check_place(context: Context, row: Row) -> Iterator[Finding]:
    """Find entries in a shard in which they aren't looked for, as other programs have written them there."""
    parts, layout = context.store.parts, context.config.layout
    if not parts.is_divided or layout.is_moving or not row.stored.exists:
        return
    here, home = parts.of(row.key), parts.home(row.name)
    if here.prefix != home.prefix:
        here_name, home_name = _named(layout, here), _named(layout, home)
        yield found("misplaced", row.name, target=row.key, here=here_name, home=home_name)


def check_former_parts(context: Context) -> Iterator[Finding]:
    """Find entries in places that aren't part of the schedule; a writer may know any number of shards."""
    layout = context.config.layout
    if not layout.generation or layout.is_moving:
        return
    here, keys = {part.prefix for part in layout.parts}, layout.former_keys
    parts = [
        part for part in (keys.undivided, *map(keys.of_shard, range(MAX_SHARDS))) if part.prefix not in here
    ]
    is_used = context.server.which_exist([key for part in parts for key in (part.schedule, part.later)])
    used = [part for place, part in enumerate(parts) if any(is_used[2 * place : 2 * place + 2])]
    for part, content in zip(used, read_contents(context.store, used), strict=True):
        if content.entries:
            entries = f"{'is' if content.entries == 1 else 'are'} {counted(content.entries)}"
            divided = _divided(layout.shards)
            yield found("former-part", part.schedule, target=part.prefix, entries=entries, layout=divided)


def _divided(shards: int | None) -> str:
    return "isn't divided into shards" if shards is None else f"has {counted(shards, 'shard', 'shards')}"


def _named(layout: Layout, part: Keys) -> str:
    shard = layout.shard_of(part)
    return part.prefix if shard is None else f"shard {shard}"
