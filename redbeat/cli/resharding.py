"""``celery redbeat reshard``: dividing the schedule into another number of shards, while beats run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from redbeat.cli.flags import DRY_RUN, ONE_OBJECT, YES, pass_session
from redbeat.cli.progress import meter
from redbeat.cli.session import INTERRUPTED, AdoptingCommand, Session
from redbeat.cli.values import Value
from redbeat.config.config import ensure_conf, spelled
from redbeat.errors import ReshardRefused
from redbeat.layout import MAX_SHARDS, words_of
from redbeat.log.text import counted
from redbeat.process.exit_codes import CommandLineError
from redbeat.reshard.resharding import Plan, Report, Resharding
from redbeat.reshard.sweeping import SWEPT_SECONDS

#: how many keys are named
MAX_SHOWN = 20


def _read_shards(text: str) -> int:
    """Return the number of shards; 0: none."""
    if text == "none":
        return 0
    if not text.isdecimal() or not 1 <= int(text) <= MAX_SHARDS:
        raise ValueError(f"{text!r} is no number of shards: give 1 to {MAX_SHARDS}, or none.")
    return int(text)


@click.command(cls=AdoptingCommand)
@click.option(
    "--to",
    "shards",
    metavar="N|none",
    type=Value("shards", _read_shards),
    required=True,
    help="How many shards there are to be; none: the schedule isn't divided.",
)
@DRY_RUN
@YES
@ONE_OBJECT
@pass_session
def reshard(session: Session, shards: int) -> None:
    """Divide the schedule into another number of shards; asks first.

    Beats may run meanwhile. Each entry is moved with all that is kept for it, and runs are sent in time
    meanwhile. If this is interrupted, entries run wherever they are, and the same command goes on. Set
    redbeat_shards to the new number in all settings when it is done; until then programs use the new
    number, with a warning.

    Exit codes: 0 done; 1 some entries can't be moved, and run where they were; 75 another change is under
    way, or another process makes this one: call it again.
    """
    resharding = Resharding(session.app, shards or None)
    plan = resharding.plan()
    if not session.is_json:
        _show(session, plan)
    report = None
    if not session.is_dry_run:
        if not plan.is_done:
            session.ask(_question(session, plan))
        details = {"from": plan.former or "none", "to": shards or "none"}
        try:
            with (
                session.actor.doing("reshard", (), details),
                meter("Moving", plan.entries + plan.messages) as progress,
            ):
                report = resharding.run(progress, (lambda _words: None) if session.is_json else session.note)
                if not report.unmoved and resharding.is_undone(report):
                    raise ReshardRefused(
                        "The server has failed over meanwhile, and the one that has taken its place lacks "
                        "the end of this change: entries run wherever they are by now. Go on with it: "
                        f"celery redbeat reshard --to {shards or 'none'}."
                    )
        except KeyboardInterrupt:
            raise CommandLineError(
                "Interrupted: entries run wherever they are by now. "
                f"celery redbeat reshard --to {shards or 'none'} goes on.",
                INTERRUPTED,
            ) from None
    if session.is_json:
        session.print_json(_document(plan, report))
    elif report is not None:
        _conclude(session, plan, report)
    else:
        session.say("Nothing was changed.")
    if report is not None and report.unmoved:
        click.get_current_context().exit(1)


def _question(session: Session, plan: Plan) -> str:
    verb = "Go on to move" if plan.is_resumed else "Move"
    what = f"{plan.entries + plan.messages} entries and messages"
    return f"{verb} up to {what} from {words_of(plan.former)} to {words_of(plan.shards)} in {session.server}?"


def _show(session: Session, plan: Plan) -> None:
    messages = f" and {counted(plan.messages, 'stored message', 'stored messages')}" if plan.messages else ""
    what = f"{counted(plan.entries)}{messages}"
    if plan.is_done:
        session.say(f"The schedule has {words_of(plan.shards)} already: {what}.")
        return
    if plan.is_resumed:
        session.say("This change has begun already, and is gone on with.")
    session.say(f"From {words_of(plan.former)} to {words_of(plan.shards)}: {what}.")
    if plan.are_led:
        session.say("Beats run: they follow, and send what is due meanwhile.")
    else:
        session.say("No beat leads.")


def _conclude(session: Session, plan: Plan, report: Report) -> None:
    per_second = report.moved / report.seconds if report.seconds else 0.0
    if not plan.is_done or report.moved:
        what = counted(report.moved, "entry or other thing", "entries and other things")
        rest = " The others belong where they are." if report.moved < plan.entries + plan.messages else ""
        session.say(
            f"Moved {what} in {report.seconds:.1f} s ({per_second:.0f} a second).{rest}",
            "green",
        )
    if report.unled:
        names = ", ".join("none" if shard is None else str(shard) for shard in report.unled[:MAX_SHOWN])
        session.note(f"No beat has come to lead these shards, where what is due waits for one: {names}")
    _list(session, "Couldn't be merged with what stood there, and is kept as", report.unmerged)
    _list(session, "Unknown keys, which stay where they are", report.unknown)
    if report.unmoved:
        reasons = [f"{name}: {why}" for name, why in report.unmoved.items()]
        _list(session, "Can't be moved, and stay where they are", reasons)
        session.note(
            "So both layouts stay in use, and runs are sent wherever entries are. Mend what is said of "
            f"these, or delete them; then call celery redbeat reshard --to {plan.shards or 'none'} again."
        )
        return
    if plan.is_done and not report.moved and ensure_conf(session.app).shards == plan.shards:
        return  # nothing was to be done
    name = spelled(session.app, "redbeat_shards")
    setting = f"remove {name}" if plan.shards is None else f"set {name} = {plan.shards}"
    session.say(
        f"Now {setting} in all settings; until then programs warn and go by what is in Redis. What writers "
        f"in other languages write to former places is moved on for {SWEPT_SECONDS // 60} minutes while "
        "beats run."
    )


def _list(session: Session, title: str, lines: list[str]) -> None:
    if lines:
        session.list_some(f"{title} ({len(lines)}):", lines, MAX_SHOWN)


def _document(plan: Plan, report: Report | None) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    return {
        "from": plan.former,
        "to": plan.shards,
        "is_resumed": plan.is_resumed,
        "is_dry_run": report is None,
        "entries": plan.entries,
        "messages": plan.messages,
        "report": None if report is None else asdict(report),
    }
