"""``celery redbeat doctor``, ``why`` and ``route``: what is wrong with the schedule, or with one run.

Invariant: without ``--fix`` nothing is written.
"""

from __future__ import annotations

from datetime import datetime, tzinfo
from typing import Any

import click
from rich.text import Text

from redbeat.cli.operations import options_of
from redbeat.cli.options import routing_options
from redbeat.cli.parameters import DRY_RUN, NAME, ONE_OBJECT, json_flag, pass_session, zone_options
from redbeat.cli.session import AdoptingCommand, Session, SessionCommand
from redbeat.cli.tables import END, Column, print_table
from redbeat.delivery.guard import in_words
from redbeat.diagnostics.doctor import examine
from redbeat.diagnostics.facts import read_facts
from redbeat.diagnostics.findings import SHOWN_OF_A_KIND, Diagnosis, Finding, Severity
from redbeat.diagnostics.routes import (
    find_destination,
    hint_at_nothing,
    parts_of,
    way_of,
)
from redbeat.diagnostics.routes import in_words as route_in_words
from redbeat.diagnostics.why import VERDICTS, explain
from redbeat.entries.wording import clock, in_words_of, label_of, one_line
from redbeat.log.text import counted, printable
from redbeat.operations.operating import fix_findings
from redbeat.operations.reading import explain_run
from redbeat.process import exit_codes as exits
from redbeat.process.exit_codes import CommandLineError, Seconds
from redbeat.schedules.times import TypedTime
from redbeat.schedules.timezones import fraction_of

_COLOURS = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}


@click.command(cls=AdoptingCommand)
@click.option(
    "--fix", "is_fixing", is_flag=True, help="Repair what can be repaired without losing a definition."
)
@DRY_RUN
@click.option(
    "--from-2x",
    "is_from_2x",
    is_flag=True,
    help="Show what changes when version 3 takes over; call it while celery-redbeat 2.x leads.",
)
@click.option(
    "--workers",
    "workers_seconds",
    metavar="[SECONDS]",
    type=Seconds(min=0.1),
    is_flag=False,
    flag_value=2.0,
    help="Ask workers which queues they take from, and wait this long for answers, 2 s by default.",
)
@click.option(
    "--max-seconds",
    type=Seconds(min=1),
    default=30.0,
    show_default=True,
    help="Stop looking at a large schedule after this many seconds.",
)
@click.option(
    "--all", "is_complete", is_flag=True, help="Show all findings, not only the first ones of a kind."
)
@zone_options
@json_flag("one JSON object, with all findings")
@pass_session
def doctor(
    session: Session,
    is_fixing: bool,
    is_from_2x: bool,
    workers_seconds: float | None,
    max_seconds: float,
    is_complete: bool,
) -> None:
    """Find out what is wrong, and what to do about it.

    Each finding names the entry, key or setting that it is about. --fix takes entries without a hash out of
    the schedule, removes other data of deleted entries, and moves entries that are in the wrong
    shard. It changes no definition.

    --from-2x reports what changes, entry by entry, when version 3 takes the schedule over from celery-redbeat
    2.x: missed runs that will be sent, entries that 2.x can't run or version 3 refuses, scores, settings,
    rights, and when the lock ends. It writes nothing, so call it while a beat of 2.x leads.

    Exit codes: 0 nothing but notes, 1 warnings, 2 errors (with --fix, too: what was found before it
    repaired), 64 wrong options, 69 Redis can't be reached, 77 Redis refuses.
    """
    if session.is_dry_run and not is_fixing:
        raise CommandLineError("--dry-run needs --fix.", exits.USAGE)
    if is_from_2x and is_fixing:
        raise CommandLineError("--from-2x writes nothing: use it without --fix.", exits.USAGE)
    if workers_seconds is not None and not session.has_own_app:
        raise CommandLineError("--workers asks the application's broker: it needs celery -A.", exits.USAGE)
    found = examine(
        session.app,
        has_tasks=session.has_own_app,
        workers_seconds=workers_seconds,
        max_seconds=max_seconds,
        is_from_2x=is_from_2x,
    )
    if not session.is_json:
        _show(session, found, is_complete)
    repairs = None
    if is_fixing:
        repairs = fix_findings(session.actor, found.findings, dry_run=session.is_dry_run)
    if session.is_json:
        session.print_json(found.to_dict(repairs))
    elif repairs is not None:
        for sentence in repairs or ["There is nothing that --fix can repair."]:
            session.say(sentence)
    click.get_current_context().exit(found.severity)


def _show(session: Session, found: Diagnosis, is_complete: bool) -> None:
    """Print the findings, the worst first, by their kinds."""
    for group in found.groups():
        shown = len(group.findings) if is_complete else SHOWN_OF_A_KIND[group.severity]
        for finding in group.findings[:shown]:
            _show_finding(session, finding)
        if len(group.findings) > shown:
            session.say(f"… and {len(group.findings) - shown} more of {group.kind}; --all shows them.")
        if more := group.count - len(group.findings):
            session.say(f"… and {more} more of {group.kind}, which aren't listed: repair these first.")
    counts = found.counts()
    words = ", ".join(counted(count, word, f"{word}s") for word, count in counts.items())
    summary = f"{words or 'Nothing is wrong'}; {counted(found.seen)} looked at."
    session.say(summary, "" if words else "green")


def _show_finding(session: Session, finding: Finding) -> None:
    words = Text(f"{finding.severity.name.lower()}:", _COLOURS[finding.severity])
    problem = in_words_of(printable(f"{finding.about}: {finding.problem}"), session.zone)
    session.say(Text.assemble(words, " ", problem))
    if finding.excerpt:
        session.say(finding.excerpt, "dim", indent=4)
    session.say(in_words_of(finding.advice, session.zone), indent=4)


@click.command(cls=SessionCommand)
@click.argument("name", type=NAME)
@options_of(explain_run, "at")
@zone_options
@ONE_OBJECT
@pass_session
def why(session: Session, name: str, at: TypedTime | None) -> None:
    """Say why a run of the entry NAME did or did not happen.

    The answer comes from the records of the entry's last runs (redbeat_history), from its schedule, and from
    what the beats do now. Nothing is written. It also says which way the entry's messages go, compiled or one
    by one, and why; that is judged by the application's code as it is here.

    Exit codes: 0 there is an answer, 66 no such entry, 69 Redis can't be reached, 64 wrong options.
    """
    facts = read_facts(session.app, name)
    zone = session.zone
    answer = explain(facts, None if at is None else session.time(at))
    way = way_of(session.app, facts.entry) if session.has_own_app else None
    if session.is_json:
        session.print_json({"name": name, **answer.to_dict(), "messages": way})
        return
    word = answer.verdict.replace("-", " ")
    when = f" at {_shown(answer.at, zone)}" if answer.at else ""
    session.say(f"{name}{when}: {word}, {VERDICTS[answer.verdict]}", "bold")
    session.say(in_words_of(printable(answer.reason), zone), indent=9)
    for title, time in (("before", answer.before), ("after", answer.after)):
        if time:
            session.say(f"{title:<9}{_shown(time, zone)}")
    if way is not None:
        session.say(f"messages {in_words(way['reason'] or '')}")
        session.say("Judged by the code that this program has; what beat's log says holds.", indent=9)


def _shown(moment: datetime, zone: tzinfo) -> str:
    return f"{clock(moment, zone, fraction_of(moment))} {label_of(zone)}"


@click.command(cls=SessionCommand)
@click.argument("name", metavar="NAME|TASK", type=NAME)
@routing_options
@ONE_OBJECT
@pass_session
def route(session: Session, name: str, **given: Any) -> None:
    """Show which queue an entry's messages go to, and by which rule.

    NAME is an entry, TASK a call of a task; nothing is sent. Each part comes with the rule that has decided
    it: task_routes, an option of the entry, an attribute of the task, or the queue. Options given
    here are tried in place of the entry's.
    """
    session.require_application("route", "shows the application's routes, and needs its tasks")
    tried = {option: value for option, value in given.items() if value is not None}
    found = find_destination(session.app, name, tried)
    if session.is_json:
        session.print_json(found.to_dict())
        return
    session.say(f"{one_line(found.task)} goes to {route_in_words(found.route)}.")
    columns: list[Column[tuple[str, object, str]]] = [
        Column("", lambda row: row[0]),
        Column("", lambda row: str(row[1]), cut=END, least=30),
        Column("decided by", lambda row: row[2], cut=END, least=30),
    ]
    print_table(session, columns, parts_of(found.route))
    if not found.is_entry and not found.is_task_known:
        session.note(hint_at_nothing(session.app, name))
