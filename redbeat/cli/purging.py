"""``celery redbeat purge``: orphans, which are what is left of entries that are gone, shown and removed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from redbeat.cli.confirmation import DRY_RUN, YES, ask
from redbeat.cli.documents import ONE_OBJECT
from redbeat.cli.progress import meter
from redbeat.cli.session import Session, SessionCommand
from redbeat.diagnostics.fixes import KINDS, find_orphans, purge_orphans
from redbeat.entries.wording import one_line

#: how many are shown of each kind
MAX_SHOWN = 20


@click.command(cls=SessionCommand)
@DRY_RUN
@YES
@ONE_OBJECT
@click.pass_context
def purge(ctx: click.Context, /, dry_run: bool, yes: bool, is_json: bool) -> None:
    """Remove what deleted entries have left behind. Shows it, and asks first.

    That is: members of the schedule without a hash, histories and records of backfills without an entry,
    and names of beat_schedule without one. No entry is changed.
    """
    session = Session.of(ctx)
    with meter("Looking") as progress:
        found = list(find_orphans(session.app, progress))
    if not is_json:
        _show(session, Counter(one.kind for one in found), {kind: _names(found, kind) for kind in KINDS})
    removed = 0
    if found and not dry_run:
        ask(f"Remove these {len(found)} from {session.server}?", is_yes=yes)
        counts = Counter(one.kind for one in found)
        with session.audited("purge", [one.name for one in found], counts), meter("Removing") as progress:
            removed = purge_orphans(session.app, found, progress)
    if is_json:
        left = [{"kind": one.kind, "name": one.name, "text": one.text} for one in found]
        session.print_json({"leftovers": left, "removed": removed, "is_dry_run": dry_run})
    elif found and not dry_run:
        session.echo(f"Removed {removed}.")


def _names(found: list[Any], kind: str) -> list[str]:
    return sorted(one.name for one in found if one.kind == kind)


def _show(session: Session, counts: Counter[str], names: dict[str, list[str]]) -> None:
    if not counts:
        session.say("There is nothing to remove.")
    for kind, meaning in KINDS.items():
        if counts[kind]:
            session.say(f"{kind} ({counts[kind]}): {meaning}", "bold")
            for name in names[kind][:MAX_SHOWN]:
                session.say(f"  {one_line(name)}")
            if counts[kind] > MAX_SHOWN:
                session.say(f"  and {counts[kind] - MAX_SHOWN} more")
