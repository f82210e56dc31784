"""``celery redbeat plan``, ``apply``, ``export`` and ``import``: the schedule as a file.

What is meant for people goes through ``Session``; a document goes to stdout or into the file alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from redbeat.cli.changes import names_in_words
from redbeat.cli.operations import options_of
from redbeat.cli.parameters import DRY_RUN, ONE_OBJECT, YES, pass_session, zone_options
from redbeat.cli.session import Session, SessionCommand
from redbeat.cli.tables import meter
from redbeat.entries.wording import one_line
from redbeat.log.text import counted
from redbeat.manifest.format import Declared, decode_file, read_file
from redbeat.manifest.plan import Plan
from redbeat.manifest.transfer import IMPORTED, declare_beat_schedule
from redbeat.operations.files import (
    Applied,
    FileChange,
    FileToApply,
    FileToImport,
    apply_file,
    document_of,
    export_file,
    import_file,
    left_of,
    lines_of,
    plan_file,
    summary_of,
)
from redbeat.process import exit_codes as exits
from redbeat.process.exit_codes import CommandLineError, not_empty

#: the exit code of ``plan`` if a file would change something
DIFFERS = 2

#: the colours of a difference
STYLES = {"+": "green", "~": "yellow", "-": "red"}


FILE = click.argument("file", metavar="FILE", callback=not_empty)


@click.command(cls=SessionCommand)
@FILE
@options_of(plan_file, "owner", "prune", "take_over")
@zone_options
@ONE_OBJECT
@pass_session
def plan(session: Session, file: str, **choices: Any) -> None:
    """Show what applying FILE would change; - is stdin.

    Exit codes: 0 nothing would change, 2 something would, 64 wrong options or a wrong file.
    """
    change = FileToApply(_read(file), **choices)
    with meter("Reading", len(change.declared.entries)) as progress:
        made = plan_file(session.actor, change, progress=progress).plan
    _show(session, made)
    click.get_current_context().exit(DIFFERS if made else 0)


@click.command(cls=SessionCommand)
@FILE
@options_of(plan_file, "owner", "prune", "take_over")
@DRY_RUN
@YES
@zone_options
@ONE_OBJECT
@pass_session
def apply(session: Session, file: str, **choices: Any) -> None:
    """Store the entries of FILE, all in one step; - is stdin.

    Shows what it would change, and asks first. Entries keep their last run and their count of runs. Paused
    entries stay paused, unless the file says otherwise. Entries of other owners are never touched.
    """
    change = FileToApply(_read(file), **choices)

    def question(made: Plan) -> str:
        if not session.is_json:
            _show(session, made)
        number = len(made.names)
        what = "this change" if number == 1 else f"these {number} changes"
        return f"Make {what} at {session.server}?" if made else ""

    made = _carry_out(session, apply_file, change, question)
    if session.is_json:
        _show(session, made, is_applied=bool(made) and not session.is_dry_run)
    elif session.is_dry_run:
        question(made)
    elif made:
        session.say("Done.")


def _carry_out(
    session: Session, operation: Callable[..., Applied], change: FileChange, question: Callable[[Plan], str]
) -> Plan:
    """Carry out an operation, unless it is a dry run after a question; return the plan.

    Arguments:
        question: returns what to ask about a plan, '' for nothing.
    """
    with meter("Reading", len(change.declared.entries)) as progress:

        def confirm(made: Plan, why: str) -> bool:
            progress.end()
            if why:
                session.note(f"{why} The plan is made again.")
            asked = question(made)
            if asked:
                session.ask(asked)
            return True

        done = operation(
            session.actor, change, dry_run=session.is_dry_run, confirm=confirm, progress=progress
        )
    return done.plan


def _show(session: Session, made: Plan, *, is_applied: bool | None = None) -> None:
    """Print what a plan would change."""
    document = document_of(session.actor, made)
    if session.is_json:
        session.print_json(document if is_applied is None else {**document, "is_applied": is_applied})
        return
    for sign, line in lines_of(document, session.zone):
        session.say(f"{sign} {line}", STYLES[sign])
    session.say(summary_of(document))
    left = [*map(one_line, left_of(document))]
    if left and not made.is_pruned:
        session.note(f"Not in the file any more, and stays without --prune: {names_in_words(left)}.")
    for warning in made.warnings:
        session.note(one_line(warning))


@click.command(cls=SessionCommand)
@click.argument("file", metavar="[FILE]", default="-", callback=not_empty)
@options_of(export_file, "match", "owner", "history")
@click.option("--json", "is_json", is_flag=True, help="Write JSON. Default: YAML, unless FILE ends in .json.")
@pass_session
def export(session: Session, file: str, is_json: bool, **choices: Any) -> None:
    """Write the entries to FILE, or to stdout, for apply and import.

    Of each entry the file also has the last run, the count of runs and the next due time, so that importing
    it loses nothing.
    """
    with meter("Exporting") as progress:
        kind = "json" if is_json or file.endswith(".json") else "yaml"
        exported = export_file(session.actor, kind=kind, progress=progress, **choices)
    text = exported.text()
    if file == "-":
        session.write(text)
    else:
        _write(Path(file), text)
        session.note(f"{file}: {counted(len(exported.declared.entries), 'entry', 'entries')}.")
    for reason in exported.skipped:
        session.note(f"Left out: {reason}")


@click.command("import", cls=SessionCommand)
@click.argument("file", metavar="[FILE]", required=False, callback=not_empty)
@click.option(
    "--from-beat-schedule", is_flag=True, help="Read the application's beat_schedule instead of a file."
)
@click.option(
    "--from-django-celery-beat",
    "django_url",
    metavar="URL",
    callback=not_empty,
    help="Read the tables of django-celery-beat: sqlite:///db.sqlite3, or another URL of SQLAlchemy.",
)
@options_of(import_file, "owner", "replace")
@DRY_RUN
@YES
@ONE_OBJECT
@pass_session
def import_(
    session: Session,
    file: str | None,
    from_beat_schedule: bool,
    django_url: str | None,
    owner: str | None,
    replace: bool,
) -> None:
    """Store the entries that export has written; - is stdin.

    All are stored in one step. If one of the names is stored already, nothing is stored. --replace
    overwrites such entries: it shows how many there are, and asks first.
    """
    if sum((file is not None, from_beat_schedule, django_url is not None)) != 1:
        raise CommandLineError(
            "Give one of FILE, --from-beat-schedule and --from-django-celery-beat.", exits.USAGE
        )
    if from_beat_schedule and not session.has_own_app:
        raise CommandLineError("--from-beat-schedule needs celery -A APP, without --url.", exits.USAGE)
    may_exist: set[str] = set()
    if from_beat_schedule:
        declared, may_exist = declare_beat_schedule(session.app)
        owner = owner or IMPORTED
    elif django_url is not None:
        from redbeat.manifest.django_celery_beat import read_django_celery_beat

        declared = read_django_celery_beat(django_url)
    else:
        declared = _read(str(file))
    change = FileToImport(declared, owner, replace, frozenset(may_exist))

    def question(made: Plan) -> str:
        old = [*made.difference.changed, *(f"calendar {name}" for name in made.calendars.changed)]
        what = counted(len(old), "entry or calendar", "entries and calendars")
        return f"Write over {what} at {session.server} ({names_in_words(old)})?" if replace and old else ""

    made = _carry_out(session, import_file, change, question)
    if session.is_json or session.is_dry_run:
        _show(session, made, is_applied=not session.is_dry_run)
        return
    session.say(f"Stored. {summary_of(document_of(session.actor, made), is_done=True)}")
    for warning in made.warnings:
        session.note(warning)
    if from_beat_schedule:
        session.note(
            "They are entries like any other now. Take them out of beat_schedule: it wins at each start."
        )


def _read(file: str) -> Declared:
    origin, data = read_bytes(file)
    return read_file(decode_file(data, origin), origin)


def read_bytes(file: str) -> tuple[str, bytes]:
    """Return how a file is called in errors, and its contents; - is stdin."""
    if file == "-":
        return "stdin", sys.stdin.buffer.read()
    try:
        return file, Path(file).read_bytes()
    except OSError as exc:
        raise CommandLineError(f"{file}: can't be read: {exc.strerror}.", exits.NO_INPUT) from None


def _write(path: Path, text: str) -> None:
    """Write the whole file, or leave the old one unchanged if the command is interrupted."""
    try:
        if path.exists() and not path.is_file():  # a pipe, say
            path.write_text(text, encoding="utf-8")
            return
        part = path.with_name(f".{path.name}.part")
        try:
            part.touch(path.stat().st_mode & 0o777 if path.exists() else 0o666)
            part.write_text(text, encoding="utf-8")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as exc:
        raise CommandLineError(f"{path}: can't be written: {exc.strerror}.", exits.CANNOT_CREATE) from None
