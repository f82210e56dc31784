"""``celery redbeat downgrade``: what celery-redbeat 2.x can't run, shown, and taken out of the schedule."""

from __future__ import annotations

from collections.abc import Sequence

import click

from redbeat.cli.parameters import json_flag, pass_session, zone_options
from redbeat.cli.session import Session, SessionCommand
from redbeat.cli.tables import meter
from redbeat.config.config import ensure_conf
from redbeat.diagnostics.downgrade import EFFECTS, Findings, examine, put_all_away
from redbeat.entries.wording import in_words_of
from redbeat.leadership.status import read_status
from redbeat.log.text import counted
from redbeat.process import exit_codes as exits
from redbeat.process.exit_codes import CommandLineError

#: how many entries of a kind are shown without --all
MAX_SHOWN = 20


@click.command(cls=SessionCommand)
@click.option(
    "--yes", "is_yes", is_flag=True, help="Take the entries that 2.x can't run out of the schedule."
)
@click.option("--all", "is_complete", is_flag=True, help=f"Show more than {MAX_SHOWN} entries of a kind.")
@zone_options
@json_flag("one JSON object, with all entries")
@pass_session
def downgrade(session: Session, is_yes: bool, is_complete: bool) -> None:
    """Show what celery-redbeat 2.x can't run, or runs differently.

    --yes takes entries that 2.x can't run out of the schedule, and changes nothing else about them. They come
    back by themselves when a beat of version 3 leads again. Stop all beats of version 3 before --yes.

    Exit codes: 0 done; 75, with --yes: a beat of version 3 leads, or entries were changed meanwhile.
    """
    with meter("Looking") as progress:
        found = examine(session.app, progress)
    if not session.is_json:
        _show(session, found, is_complete)
    taken: list[str] = []
    changed: list[str] = []
    if is_yes and found.obstacles:
        about = [one.name for one in found.obstacles]
        with session.actor.doing("downgrade", about), meter("Taking out", len(about)) as progress:
            for number, (one, is_away) in enumerate(put_all_away(session.app, found.obstacles), 1):
                (taken if is_away else changed).append(one.name)
                progress(number)
    leader = read_status(session.app).leader
    where = f"process {leader.pid} on {leader.host}" if leader is not None and leader.host else None
    if session.is_json:
        done = {"leader": where, "is_dry_run": not is_yes, "taken": taken, "changed": changed}
        session.print_json({**found.to_dict(), **done})
    else:
        _conclude(session, found, taken)
        if ensure_conf(session.app).lock_key is None:
            session.note(
                "Without a lock it isn't known whether a beat of version 3 runs: stop all of them first."
            )
        if where is not None:
            session.note(f"A beat of version 3 leads ({where}): stop all of them first.")
    if changed:
        raise CommandLineError(
            f"{counted(len(changed))} were changed meanwhile, and left alone: call it again.", exits.TRY_AGAIN
        )


def _show(session: Session, found: Findings, is_complete: bool) -> None:
    obstacles = [
        f"{one.name}: {EFFECTS[one.trouble.effect]}: {one.trouble.reason}" for one in found.obstacles
    ]
    ignored = [f"{name}: {'; '.join(what)}." for name, what in found.ignored.items()]
    sections = {
        f"celery-redbeat 2.x can't run {counted(len(obstacles))} of {found.seen}:": obstacles,
        f"It would run {counted(len(ignored))} differently than asked for:": ignored,
        f"{counted(len(found.away))} taken out for it already:": found.away,
    }
    for title, lines in sections.items():
        if lines:
            shown = [in_words_of(line, session.zone) for line in lines]
            session.list_some(title, shown, None if is_complete else MAX_SHOWN, "--all")


def _conclude(session: Session, found: Findings, taken: Sequence[str]) -> None:
    if taken:
        session.say(f"Took {counted(len(taken))} out of the schedule, until a beat of version 3 leads again.")
    elif found.obstacles:
        session.say("Nothing was changed. --yes takes what 2.x can't run out of the schedule.")
    else:
        session.say(f"celery-redbeat 2.x can run all entries: {counted(found.seen)}.", "green")
    if found.messages:
        number = counted(found.messages, "stored message", "stored messages")
        session.say(
            f"{number} (celery redbeat later list): 2.x doesn't know them, so they wait until a beat of "
            "version 3 leads again. celery redbeat later release --all gives them to the broker now, as "
            "Celery does by itself."
        )
