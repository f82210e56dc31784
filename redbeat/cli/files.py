"""``celery redbeat plan``, ``apply``, ``export`` and ``import``: the schedule as a file.

What is meant for people goes through ``Session``; a document goes to stdout or into the file alone.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from pathlib import Path

import click

from redbeat.cli.confirmation import DRY_RUN, YES, ask
from redbeat.cli.diff import show_difference
from redbeat.cli.documents import ONE_OBJECT
from redbeat.cli.progress import meter
from redbeat.cli.selection import names_in_words
from redbeat.cli.session import Session, SessionCommand
from redbeat.cli.zone import zone_options
from redbeat.entries.wording import one_line
from redbeat.keys import is_owner_name
from redbeat.log.text import counted
from redbeat.manifest.django_celery_beat import read_django_celery_beat
from redbeat.manifest.format import Declared, decode_file, read_file, write_file
from redbeat.manifest.plan import Plan, apply_plan, make_plan, owner_of
from redbeat.manifest.transfer import IMPORTED, declare_beat_schedule, export_entries, plan_import
from redbeat.process import exit_codes as exits
from redbeat.process.exit_codes import CommandLineError, not_empty

#: the exit code of ``plan`` if a file would change something
DIFFERS = 2


def _owner(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not is_owner_name(value):
        raise click.BadParameter(f"{value!r} must be a name without control characters.")
    return value


_file = click.argument("file", metavar="FILE", callback=not_empty)
_owner_option = click.option(
    "--owner", metavar="NAME", callback=_owner, help="Owner of the entries. Default: 'owner:' in the file."
)
_prune = click.option(
    "--prune", is_flag=True, help="Also remove this owner's entries and calendars that aren't in the file."
)
_take_over = click.option(
    "--take-over", is_flag=True, help="Take over entries of other owners, instead of refusing them."
)


@click.command(cls=SessionCommand)
@_file
@_owner_option
@_prune
@_take_over
@zone_options
@ONE_OBJECT
@click.pass_context
def plan(
    ctx: click.Context, /, file: str, owner: str | None, prune: bool, take_over: bool, is_json: bool
) -> None:
    """Show what applying FILE would change; - is stdin.

    Exit codes: 0 nothing would change, 2 something would, 64 wrong options or a wrong file.
    """
    session = Session.of(ctx)
    make = _maker(session, file, owner, prune, take_over)
    made = make()
    if is_json:
        session.print_json(made.told())
    else:
        show_difference(session, made)
    ctx.exit(DIFFERS if made else 0)


@click.command(cls=SessionCommand)
@_file
@_owner_option
@_prune
@_take_over
@DRY_RUN
@YES
@zone_options
@ONE_OBJECT
@click.pass_context
def apply(
    ctx: click.Context,
    /,
    file: str,
    owner: str | None,
    prune: bool,
    take_over: bool,
    dry_run: bool,
    yes: bool,
    is_json: bool,
) -> None:
    """Store the entries of FILE in the schedule, all in one step; - is stdin.

    Shows what it would change, and asks first. Entries keep their last run and their count of runs. Paused
    entries stay paused, unless the file says otherwise. Entries of other owners are never touched.
    """
    session = Session.of(ctx)
    make = _maker(session, file, owner, prune, take_over)

    def confirm(made: Plan, why: str) -> bool:
        if why:
            session.note(f"{why} The plan is made again.")
        if not is_json:
            show_difference(session, made)
        if made and not dry_run:
            ask(f"Make {_counted_changes(made)} at {session.server}?", is_yes=yes)
        return not dry_run

    made = make() if dry_run else None
    done = None
    if made is not None:
        confirm(made, "")
    else:

        def audited(made: Plan) -> AbstractContextManager[None]:
            details = {"file": file, "owner": owner, "prune": prune or None, "take_over": take_over or None}
            return session.audited("apply", made.names, {**details, **made.counts})

        done = made = apply_plan(make, confirm, audited)
    if is_json and made is not None:
        session.print_json({**made.told(), "is_applied": done is not None and bool(done)})
    elif done:
        for words in done.outcome:
            session.note(one_line(words))
        session.say("Done.")


def _maker(
    session: Session, file: str, owner: str | None, prune: bool, take_over: bool
) -> Callable[[], Plan]:
    declared = _read(file)
    chosen = owner_of(declared, owner)

    def make() -> Plan:
        with meter("Reading", len(declared.entries)) as progress:
            return make_plan(
                session.app, declared, chosen, prune=prune, take_over=take_over, progress=progress
            )

    return make


@click.command(cls=SessionCommand)
@click.argument("file", metavar="[FILE]", default="-", callback=not_empty)
@click.option(
    "--match", metavar="PATTERN", help="Only entries whose name matches; *, ? and [a-z] are wildcards."
)
@click.option("--owner", metavar="NAME", callback=_owner, help="Only entries of this owner.")
@click.option("--history", is_flag=True, help="Also write the records of past runs.")
@click.option("--json", "is_json", is_flag=True, help="Write JSON. Default: YAML, unless FILE ends in .json.")
@click.pass_context
def export(
    ctx: click.Context, /, file: str, match: str | None, owner: str | None, history: bool, is_json: bool
) -> None:
    """Write the stored entries to FILE, or to stdout, for apply and import.

    Of each entry the file also has the last run, the count of runs and the next due time, so that importing
    it loses nothing.
    """
    session = Session.of(ctx)
    with meter("Exporting") as progress:
        exported = export_entries(session.app, match, owner, progress, with_history=history)
    text = write_file(exported.declared, is_json=is_json or file.endswith(".json"))
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
@_owner_option
@click.option("--replace", "is_replacing", is_flag=True, help="Overwrite stored entries of the same name.")
@DRY_RUN
@YES
@ONE_OBJECT
@click.pass_context
def import_(
    ctx: click.Context,
    /,
    file: str | None,
    from_beat_schedule: bool,
    django_url: str | None,
    owner: str | None,
    is_replacing: bool,
    dry_run: bool,
    yes: bool,
    is_json: bool,
) -> None:
    """Store the entries that export has written, all in one step; - is stdin.

    If one of the names is stored already, nothing is stored. --replace overwrites such entries: it shows how
    many there are, and asks first.
    """
    session = Session.of(ctx)
    if sum((file is not None, from_beat_schedule, django_url is not None)) != 1:
        raise CommandLineError(
            "Give one of FILE, --from-beat-schedule and --from-django-celery-beat.", exits.USAGE
        )
    may_exist: set[str] = set()
    if from_beat_schedule:
        if not session.has_own_app:
            raise CommandLineError("--from-beat-schedule needs celery -A APP, without --url.", exits.USAGE)
        declared, may_exist = declare_beat_schedule(session.app)
        owner = owner or IMPORTED
    else:
        declared = read_django_celery_beat(django_url) if django_url is not None else _read(str(file))

    def make(done: Collection[str] = ()) -> Plan:
        return plan_import(
            session.app, declared, owner=owner, replace_existing=is_replacing, may_exist=may_exist, done=done
        )

    def confirm(made: Plan, why: str) -> bool:
        if why:
            session.note(f"{why} The plan is made again.")
        old = [*made.difference.changed, *(f"calendar {name}" for name in made.calendars.difference.changed)]
        if is_replacing and old:
            ask(f"Write over {_counted(made)} at {session.server} ({names_in_words(old)})?", is_yes=yes)
        return True

    def audited(made: Plan) -> AbstractContextManager[None]:
        details: dict[str, object] = {"file": file, "owner": owner, "replace": is_replacing or None}
        details["from"] = "beat_schedule" if from_beat_schedule else django_url and "django-celery-beat"
        return session.audited("import", made.names, {**details, **made.counts})

    made = make() if dry_run else apply_plan(make, confirm, audited, make)
    assert made is not None  # noqa: S101 - None would have ended the command
    if is_json:
        session.print_json({**made.told(), "is_applied": not dry_run})
        return
    if dry_run:
        show_difference(session, made)
        return
    _tell_stored(session, made)
    if from_beat_schedule:
        session.note(
            "They are entries like any other now. Take them out of beat_schedule: it wins at each start."
        )


def _tell_stored(session: Session, made: Plan) -> None:
    new, old = len(made.difference.added), len(made.difference.changed)
    words = [counted(new + old, "entry", "entries")]
    words += [f"{old} of them in place of others"] if old else []
    calendars = len(made.calendars.changes)
    words += [counted(calendars, "calendar", "calendars")] if calendars else []
    session.say(f"Stored {', '.join(words)}.")
    for warning in made.warnings:
        session.note(warning)


def _counted_changes(made: Plan) -> str:
    return "this change" if made.number == 1 else f"these {made.number} changes"


def _counted(made: Plan) -> str:
    """Return how many stored entries and calendars would change."""
    entries, calendars = len(made.difference.changed), len(made.calendars.difference.changed)
    words = [counted(entries, "entry", "entries")] if entries or not calendars else []
    return " and ".join([*words, *([counted(calendars, "calendar", "calendars")] if calendars else [])])


def _read(file: str) -> Declared:
    origin = "stdin" if file == "-" else file
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as exc:
        raise CommandLineError(f"{origin}: can't be read: {exc.strerror}.", exits.NO_INPUT) from None
    return read_file(decode_file(data, origin), origin)


def _write(path: Path, text: str) -> None:
    """Write the whole file, or leave the old one unchanged if the command is interrupted."""
    try:
        if path.exists() and not path.is_file():  # a pipe, say
            path.write_text(text, encoding="utf-8")
            return
        descriptor, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as exc:
        raise CommandLineError(f"{path}: can't be written: {exc.strerror}.", exits.CANNOT_CREATE) from None


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask
