"""``celery redbeat doctor`` and ``celery redbeat why``: what is wrong with the schedule, or with one run.

Invariant: without ``--fix`` nothing is written.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any

import click

from redbeat import exits
from redbeat.cli.names import NAME, no_such_entry
from redbeat.cli.session import Session, SessionCommand
from redbeat.doctor import Diagnosis, Finding, Severity, examine
from redbeat.doctor.finding import counted
from redbeat.errors import ConfigurationError, EntryNotFound
from redbeat.evidence import Evidence, read_evidence
from redbeat.exits import CommandLineError, finite
from redbeat.repairs import repair
from redbeat.schedules import zone_of
from redbeat.why import VERDICTS, Answer, explain
from redbeat.zones import in_utc, instant_of

__all__ = ["doctor", "why"]

_COLOURS = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}

#: so many findings of a kind are shown to people, unless they want all
SHOWN_OF_A_KIND = 10


@click.command(cls=SessionCommand)
@click.option("--fix", "is_fixing", is_flag=True, help="Repair what can be without losing a definition.")
@click.option("--dry-run", "is_dry", is_flag=True, help="With --fix: say what would be repaired.")
@click.option(
    "--workers",
    "workers_seconds",
    metavar="[SECONDS]",
    type=click.FloatRange(min=0.1),
    is_flag=False,
    flag_value=2.0,
    callback=finite,
    help="Ask workers which queues they take from; wait for their answers for so long, 2 by default.",
)
@click.option(
    "--max-seconds",
    metavar="SECONDS",
    type=click.FloatRange(min=1),
    default=30.0,
    show_default=True,
    callback=finite,
    help="After so long a large schedule isn't looked at any further.",
)
@click.option(
    "--all", "is_complete", is_flag=True, help=f"Show more than {SHOWN_OF_A_KIND} findings of a kind."
)
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object, with all findings.")
@click.pass_context
def doctor(
    ctx: click.Context,
    is_fixing: bool,
    is_dry: bool,
    workers_seconds: float | None,
    max_seconds: float,
    is_complete: bool,
    is_json: bool,
) -> None:
    """Find out what is wrong with the schedule, and what to do about it.

    Each finding names the entry, key or setting that it is about. --fix takes entries without a hash out of
    the schedule, puts hashes that aren't in it back, at their next time, and removes what deleted entries
    have left behind. It changes no definition.

    Exit codes: 0 nothing but notes, 1 warnings, 2 errors (with --fix as well: of what was found), 64 wrong
    options, 69 Redis can't be reached, 77 it refuses.
    """
    if is_dry and not is_fixing:
        raise CommandLineError("--dry-run goes with --fix.", exits.USAGE)
    session = Session.of(ctx)
    if workers_seconds is not None and not session.has_own_app:
        raise CommandLineError("--workers asks the application's broker: it needs celery -A.", exits.USAGE)
    found = examine(
        session.app, has_tasks=session.has_own_app, workers_seconds=workers_seconds, max_seconds=max_seconds
    )
    if not is_json:
        _show(session, found, is_complete)
    repairs: list[str] = []
    if is_fixing:
        for sentence in repair(session.app, found.findings, is_dry):
            repairs.append(sentence)
            if not is_json:
                session.say(sentence)
        if not repairs and not is_json:
            session.say("There is nothing that --fix can repair.")
    if is_json:
        session.print_json(_document(session, found, repairs if is_fixing else None))
    ctx.exit(found.severity)


def _document(session: Session, found: Diagnosis, repairs: list[str] | None) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    return {
        "severity": found.severity.name.lower() if found.findings else None,
        "exit_code": int(found.severity),
        "server": _server_of(session),
        "entries": found.seen,
        "findings": [finding.to_dict() for finding in found.findings],
        "more": dict(found.more),
        "repairs": repairs,
    }


def _server_of(session: Session) -> str | None:
    try:
        return session.server
    except ConfigurationError:  # it is among the findings
        return None


def _show(session: Session, found: Diagnosis, is_complete: bool) -> None:
    shown: Counter[str] = Counter()
    hidden: Counter[str] = Counter()
    for finding in sorted(found.findings, key=lambda finding: -finding.severity):
        if shown[finding.kind] >= SHOWN_OF_A_KIND and not is_complete:
            hidden[finding.kind] += 1
            continue
        shown[finding.kind] += 1
        _show_finding(session, finding)
    for kind, count in hidden.items():
        session.say(f"… and {count} more of {kind}; --all shows them.")
    for kind, count in found.more.items():
        session.say(f"… and {count} more of {kind}, which are only counted: repair these first.")
    counts = Counter(finding.severity for finding in found.findings)
    words = [
        f"{counts[severity]} {severity.name.lower()}{'' if counts[severity] == 1 else 's'}"
        for severity in reversed(Severity)
        if counts[severity]
    ]
    summary = ", ".join(words) if words else "Nothing is wrong"
    session.say(f"{summary}; {counted(found.seen)} looked at.", "green" if not words else "")


def _show_finding(session: Session, finding: Finding) -> None:
    word = f"{finding.severity.name.lower()}:"
    session.console.print(word, style=_COLOURS[finding.severity], end=" ", markup=False)
    session.say(f"{finding.about}: {finding.problem}")
    if finding.excerpt:
        session.say(f"    {finding.excerpt}", "dim")
    session.say(f"    {finding.advice}")


@click.command(cls=SessionCommand)
@click.argument("name", type=NAME)
@click.option(
    "--at",
    "at_text",
    metavar="TIME",
    help="Its due time, ISO 8601; without an offset, by the clocks of the entry's zone. Default: its "
    "schedule's latest time before now.",
)
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def why(ctx: click.Context, name: str, at_text: str | None, is_json: bool) -> None:
    """Say why a run of the entry NAME did or did not happen.

    It goes by what is recorded of the entry's last runs (redbeat_history), and by what its schedule and the
    beats say now. Nothing is written.

    Exit codes: 0 there is an answer, 66 no such entry, 69 Redis can't be reached, 64 wrong options.
    """
    session = Session.of(ctx)
    evidence = _evidence_of(session, name)
    answer = explain(evidence, None if at_text is None else _instant_of(at_text, evidence))
    if is_json:
        session.print_json({"name": name, **answer.to_dict()})
        return
    word = answer.verdict.replace("-", " ")
    when = f" at {_shown(answer.at)}" if answer.at else ""
    session.say(f"{name}{when}: {word}, {VERDICTS[answer.verdict]}", "bold")
    for title, text in _lines_of(answer):
        session.say(f"{title:<9}{text}")


def _evidence_of(session: Session, name: str) -> Evidence:
    try:
        return read_evidence(session.app, name)
    except EntryNotFound:
        raise no_such_entry(session, name) from None


def _instant_of(text: str, evidence: Evidence) -> datetime:
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
        if moment.tzinfo is not None:
            return in_utc(moment)
        entry = evidence.entry
        zone = evidence.status.now.tzinfo if entry is None else zone_of(entry.schedule, entry.policy)
        assert zone is not None  # noqa: S101 - the server's clock is in UTC
        return instant_of(moment, zone)
    except (ValueError, OverflowError):
        words = f"--at: {text!r} is no time, as 2026-01-31T07:30 or 2026-01-31T07:30:00+01:00 is."
        raise CommandLineError(words, exits.USAGE) from None


def _lines_of(answer: Answer) -> list[tuple[str, str]]:
    lines = [("", answer.reason)]
    lines += [
        (title, _shown(time)) for title, time in (("before", answer.before), ("after", answer.after)) if time
    ]
    return lines


def _shown(moment: datetime) -> str:
    millis = f".{moment.microsecond // 1000:03d}" if moment.microsecond else ""
    return f"{moment:%Y-%m-%d %H:%M:%S}{millis} UTC"
