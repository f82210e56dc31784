"""``celery redbeat reshard``: dividing the schedule into another number of shards, while beats run."""

from __future__ import annotations

from dataclasses import asdict

import click

from redbeat.cli.parameters import DRY_RUN, ONE_OBJECT, YES, Value, pass_session
from redbeat.cli.session import INTERRUPTED, AdoptingCommand, Session
from redbeat.cli.tables import meter
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
    plan, report = resharding.plan(), None
    again = f"celery redbeat reshard --to {shards or 'none'}"
    if not session.is_json:
        _show(session, plan)
    if not session.is_dry_run:
        if not plan.is_done:
            what = f"up to {plan.entries + plan.messages} entries and messages"
            places = f"from {words_of(plan.former)} to {words_of(plan.shards)} in {session.server}"
            session.ask(f"Move {what} {places}?")
        say = (lambda _words: None) if session.is_json else session.note
        details = {"from": plan.former or "none", "to": shards or "none"}
        try:
            with (
                session.actor.doing("reshard", (), details),
                meter("Moving", plan.entries + plan.messages) as progress,
            ):
                report = resharding.run(progress, say)
                if not report.unmoved and resharding.is_undone(report):
                    raise ReshardRefused(
                        "The server has failed over meanwhile, and the one that has taken its place lacks "
                        f"the end of this change: entries run wherever they are by now. {again} goes on."
                    )
        except KeyboardInterrupt:
            raise CommandLineError(
                f"Interrupted: entries run wherever they are by now. {again} goes on.", INTERRUPTED
            ) from None
    if session.is_json:
        done = None if report is None else asdict(report)
        about = {"from": plan.former, "to": plan.shards, "is_resumed": plan.is_resumed}
        counts = {"entries": plan.entries, "messages": plan.messages}
        session.print_json({**about, "is_dry_run": report is None, **counts, "report": done})
    elif report is not None:
        _conclude(session, plan, report, again)
    else:
        session.say("Nothing was changed.")
    if report is not None and report.unmoved:
        click.get_current_context().exit(1)


def _show(session: Session, plan: Plan) -> None:
    what = f"{counted(plan.entries)} and {counted(plan.messages, 'stored message', 'stored messages')}"
    if plan.is_done:
        session.say(f"The schedule has {words_of(plan.shards)} already: {what}.")
        return
    begun = " This change has begun already, and is gone on with." if plan.is_resumed else ""
    led = "Beats run: they follow, and send what is due meanwhile." if plan.are_led else "No beat leads."
    session.say(f"From {words_of(plan.former)} to {words_of(plan.shards)}: {what}.{begun} {led}")


def _conclude(session: Session, plan: Plan, report: Report, again: str) -> None:
    if report.moved or not plan.is_done:
        what = counted(report.moved, "entry or other thing", "entries and other things")
        session.say(f"Moved {what} in {report.seconds:.1f} s. The others belong where they are.", "green")
    reasons = [f"{name}: {why}" for name, why in report.unmoved.items()]
    for title, lines in (
        (
            "No beat has come to lead these shards, where what is due waits for one",
            ["none" if shard is None else str(shard) for shard in report.unled],
        ),
        ("Couldn't be merged with what stood there, and is kept as", report.unmerged),
        ("Unknown keys, which stay where they are", report.unknown),
        ("Can't be moved, and stay where they are", reasons),
    ):
        if lines:
            session.list_some(f"{title} ({len(lines)}):", lines, MAX_SHOWN)
    if report.unmoved:
        session.note(
            "So both layouts stay in use, and runs are sent wherever entries are. Mend what is said of "
            f"these, or delete them; then call {again} again."
        )
    elif report.moved or ensure_conf(session.app).shards != plan.shards:
        name = spelled(session.app, "redbeat_shards")
        setting = f"remove {name}" if plan.shards is None else f"set {name} = {plan.shards}"
        session.say(
            f"Now {setting} in all settings; until then programs warn and go by what is in Redis. What "
            "writers in other languages write to former places is moved on for "
            f"{SWEPT_SECONDS // 60} minutes while beats run."
        )
