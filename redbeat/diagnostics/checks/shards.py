"""Checks of a schedule that is divided into shards, or was: whether all programs agree on where entries are.

Invariant: while entries are moved, what is on its way isn't out of place.
"""

from __future__ import annotations

from collections.abc import Iterator

from redbeat.config.config import spelled
from redbeat.diagnostics.checks.context import Context, Row
from redbeat.diagnostics.findings import Finding, Severity, found
from redbeat.errors import StoreCorrupt
from redbeat.keys import Keys
from redbeat.layout import MAX_SHARDS, Layout
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
