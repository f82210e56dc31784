"""Checks of a schedule that is divided into shards, or was: whether everybody agrees on where entries are.

Invariant: while entries are moved, what is on its way isn't out of place.
"""

from __future__ import annotations

from collections.abc import Iterator

from redbeat.config.config import spelled
from redbeat.diagnostics.checks.context import Context, Row
from redbeat.diagnostics.checks.finding import Finding, Repair, Severity
from redbeat.errors import StoreCorrupt
from redbeat.keys import Keys
from redbeat.layout import MAX_SHARDS, Layout
from redbeat.leadership.status import hint_of
from redbeat.log.text import counted
from redbeat.store.layouts import find_latest, read_contents, read_layout
from redbeat.store.store import Store
from redbeat.store.strays import hiding_in


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
        advice += f"celery redbeat reshard --to {latest.shards or 'none'} writes it again."
    if problem:
        yield Finding(Severity.ERROR, "layout", base.layout, problem, f"{advice} Nothing else was looked at.")


def check_layout(context: Context) -> Iterator[Finding]:
    """Find a setting that isn't what the schedule is, and parts that don't know the layout."""
    layout, shards = context.config.layout, context.config.shards
    if not layout.generation:
        return
    in_redis = read_layout(context.store)
    if in_redis.is_moving:
        to = in_redis.shards or "none"
        yield Finding(
            Severity.NOTE,
            "reshard",
            context.store.config.base_keys.layout,
            f"The number of shards is being changed from {in_redis.former or 'none'} to {to}.",
            f"If nobody is at work on it any more, go on: celery redbeat reshard --to {to}.",
        )
    if not layout.is_moving and shards != layout.shards:
        is_older = layout.generation > 1
        follows = (
            "programs warn, and go by what is in Redis" if is_older else "a beat refuses to start with it"
        )
        yield Finding(
            Severity.WARNING if is_older else Severity.ERROR,
            "layout",
            "redbeat_shards",
            f"It is {shards or 'not set'}, and the schedule {_divided(layout.shards)}: {follows}.",
            f"{_set(context, layout.shards)}. If it is the schedule that is to change: celery redbeat "
            f"reshard --to {shards or 'none'}.",
        )
    wrong = [
        (part, found.guard)
        for part, found in zip(layout.parts, read_contents(context.store, layout.parts), strict=True)
        if found.guard != layout.guard and (found.guard or found.entries)  # the first writer makes it
    ]
    if wrong and read_layout(context.store).guard == layout.guard:  # else it was changed meanwhile
        for part, guard in wrong:
            yield Finding(
                Severity.WARNING,
                "generation",
                part.generation,
                f"{f'It holds {guard!r}' if guard else 'It is missing'}; whoever writes there expects "
                f"{layout.guard!r}, and is refused.",
                "A beat that is started mends it; --fix does it now.",
                repair=Repair("raise-generation", part.schedule, part.generation),
            )


def check_hidden(context: Context) -> Iterator[Finding]:
    """Find what a mover that was killed has left hidden, where nobody runs it."""
    layout = read_layout(context.store)
    if not layout.generation:
        return
    hiding = hiding_in(context.store, layout.with_ending)
    movers = [part.mover for part in hiding]
    for part, is_moved in zip(hiding, context.server.which_exist(movers), strict=True):
        if not is_moved:
            yield Finding(
                Severity.ERROR,
                "hidden",
                part.moving,
                "What stands there was on the way to another part when the process that moved it ended: no "
                "beat runs it there.",
                "A beat that is started moves it on within seconds; --fix does it now.",
                repair=Repair("free", part.schedule, part.moving),
            )


def check_spread(context: Context) -> Iterator[Finding]:
    """Find nodes of a cluster that have no shard, or too many."""
    hint = hint_of(context.status)
    if hint:
        problem, _, advice = hint.partition(". ")
        yield Finding(Severity.NOTE, "spread", context.place, f"{problem}.", advice)


def check_place(context: Context, row: Row) -> Iterator[Finding]:
    """Find entries that are in a shard where nobody looks for them, as others have written them there."""
    parts, layout = context.store.parts, context.config.layout
    if not parts.is_divided or layout.is_moving or not row.stored.exists:
        return
    name = context.name_of(row.key)
    here, home = parts.of(row.key), parts.home(name)
    if here.prefix == home.prefix:
        return
    yield Finding(
        Severity.ERROR,
        "misplaced",
        name,
        f"It is in {_named(context, here)}, and belongs in {_named(context, home)}, so nobody finds it by "
        "its name: a program with another number of shards has written it.",
        "Correct that program; --fix moves it where it belongs.",
        repair=Repair("move", row.key, row.key),
    )


def check_former_parts(context: Context) -> Iterator[Finding]:
    """Find entries in parts that are no part of the schedule, where no beat looks."""
    layout = context.config.layout
    if not layout.generation or layout.is_moving:
        return
    parts = _used_elsewhere(context)
    for part, found in zip(parts, read_contents(context.store, parts), strict=True):
        if found.entries:
            is_one = found.entries == 1
            yield Finding(
                Severity.ERROR,
                "former-part",
                part.schedule,
                f"{counted(found.entries)} {'is' if is_one else 'are'} there, where no beat looks any more: "
                f"the schedule {_divided(layout.shards)}, and a program that doesn't know that has written "
                f"{'it' if is_one else 'them'}.",
                "Correct that program; --fix moves what it has written where it belongs.",
                repair=Repair("move", part.schedule, part.prefix),
            )


def _used_elsewhere(context: Context) -> list[Keys]:
    """Return the parts of any other layout in which there is something: who writes there may know one that
    is long gone, or may be about to have the wrong number.
    """
    layout = context.config.layout
    here = {part.prefix for part in layout.parts}
    keys = layout.former_keys
    parts = [keys.undivided, *map(keys.of_shard, range(MAX_SHARDS))]
    others = [part for part in parts if part.prefix not in here]
    found = context.server.which_exist([key for part in others for key in (part.schedule, part.later)])
    return [part for place, part in enumerate(others) if any(found[2 * place : 2 * place + 2])]


def _divided(shards: int | None) -> str:
    return "isn't divided into shards" if shards is None else f"has {counted(shards, 'shard', 'shards')}"


def _set(context: Context, shards: int | None) -> str:
    name = spelled(context.config.app, "redbeat_shards")
    return f"Leave {name} out" if shards is None else f"Set {name} = {shards}"


def _named(context: Context, part: Keys) -> str:
    shard = context.config.layout.shard_of(part)
    return part.prefix if shard is None else f"shard {shard}"


SHARD_CHECKS = (check_layout, check_hidden, check_spread, check_former_parts)
