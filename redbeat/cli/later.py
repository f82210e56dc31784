"""``celery redbeat later …``: the messages that are stored until a time far ahead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import click
from rich.text import Text

from redbeat.cli.confirmation import YES, ask
from redbeat.cli.documents import ONE_OBJECT, json_option
from redbeat.cli.grid import Column, Row, cut_end, cut_start, lines_of
from redbeat.cli.progress import meter
from redbeat.cli.session import Session, SessionCommand
from redbeat.cli.tables import WITH_DATES, fields_lines, titled
from redbeat.cli.zone import zone_options
from redbeat.config.config import ensure_conf
from redbeat.entries.wording import clock, one_line, relative, when_in
from redbeat.later.documents import arguments_in_words, document_of, eta_of
from redbeat.later.releasing import release as release_messages
from redbeat.later.revoking import cancel_messages
from redbeat.leadership.status import read_status
from redbeat.log.text import counted
from redbeat.process import exit_codes as exits
from redbeat.process.exit_codes import CommandLineError, ExitingGroup, not_empty
from redbeat.store.later import LaterStore, Listed
from redbeat.store.members import count_members

#: how many messages are listed without --limit
LISTED = 50

#: the width from which on a list has more columns
WITH_TASKS, WITH_ARGUMENTS = 72, 130


@click.group(cls=ExitingGroup)
def later() -> None:
    """Messages with an eta or a countdown far ahead, which are stored until then."""


@later.command("list", cls=SessionCommand, short_help="the stored messages, the next one first")
@click.option(
    "--limit", type=click.IntRange(min=0), default=LISTED, show_default=True, help="0: all of them."
)
@click.option("--offset", type=click.IntRange(min=0), default=0, help="Leave out so many at the beginning.")
@zone_options
@json_option("JSON: one object per message and line")
@click.pass_context
def list_(ctx: click.Context, /, limit: int, offset: int, is_json: bool) -> None:
    """List the stored messages, the next one first."""
    list_messages(Session.of(ctx), limit or None, offset, is_json=is_json)


def list_messages(session: Session, limit: int | None, offset: int, *, is_json: bool) -> None:
    """Print stored messages.

    Arguments:
        limit: how many at most; None: all.
        offset: how many to leave out at the beginning.
    """
    store = LaterStore(session.app)
    found = store.first(limit, offset)
    if is_json:
        for one in found:
            session.print_json(document_of(store.keys, one))
        return
    total = count_members(store)
    if not total:
        session.say("There are no stored messages.")
        return
    listed = list(found) if session.is_on_terminal else found
    session.draw(_lines(store, listed, session))
    if limit and offset + limit < total:
        rest = f"--limit 0 shows all, --offset {offset + limit} the next"
        session.note(f"These are {limit} of {total}; {rest}.")


@later.command(cls=SessionCommand, short_help="how many messages are stored")
@ONE_OBJECT
@click.pass_context
def count(ctx: click.Context, /, is_json: bool) -> None:
    """Print how many messages are stored."""
    session = Session.of(ctx)
    number = count_members(LaterStore(session.app))
    if is_json:
        session.print_json({"count": number})
    else:
        session.echo(str(number))


@later.command(cls=SessionCommand, short_help="all about one stored message")
@click.argument("task_id", metavar="ID", callback=not_empty)
@zone_options
@ONE_OBJECT
@click.pass_context
def show(ctx: click.Context, /, task_id: str, is_json: bool) -> None:
    """Show all about the stored message with the task id ID."""
    session = Session.of(ctx)
    store = LaterStore(session.app)
    one = store.find(task_id)
    if one is None:
        raise _unknown(session, [task_id])
    document, eta = document_of(store.keys, one), eta_of(one)
    if is_json:
        session.print_json(document)
        return
    document["eta"] = when_in(eta, session.zone) if eta is not None else "never"
    rows = [
        (name.replace("_", " "), _words(value)) for name, value in document.items() if value not in (None, [])
    ]
    session.draw(fields_lines(rows, session.console))


@later.command(cls=SessionCommand, short_help="take stored messages away; asks first")
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True)
@YES
@ONE_OBJECT
@click.pass_context
def cancel(ctx: click.Context, /, task_ids: tuple[str, ...], yes: bool, is_json: bool) -> None:
    """Take the stored messages with these task ids away, so that they are never sent; asks first.

    Their results become REVOKED. Workers are told nothing: celery control revoke ID does that for a message
    that has been sent.
    """
    session = Session.of(ctx)
    chosen = list(dict.fromkeys(task_ids))
    which = one_line(chosen[0]) if len(chosen) == 1 else f"{len(chosen)} messages"
    ask(f"Cancel {which} at {session.server}?", is_yes=yes)
    with session.audited("later cancel", chosen):
        cancelled = cancel_messages(session.app, chosen)
    missing = [one for one in chosen if one not in cancelled]
    if is_json:
        session.print_json({"cancelled": cancelled, "missing": missing})
    elif cancelled:
        session.say(f"Cancelled {counted(len(cancelled), 'message', 'messages')}.")
        if not session.has_own_app:
            session.note("Without the application (-A) their results don't say that they are revoked.")
    if missing:
        raise _unknown(session, missing)


@later.command(cls=SessionCommand, short_help="publish stored messages now, for the time without RedBeat")
@click.argument("task_ids", metavar="ID...", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="All of them.")
@YES
@ONE_OBJECT
@click.pass_context
def release(ctx: click.Context, /, task_ids: tuple[str, ...], is_all: bool, yes: bool, is_json: bool) -> None:
    """Give stored messages to the broker now, as Celery does without RedBeat; asks first.

    A worker then holds each of them until its eta. For those who go back to another scheduler: stop all beats
    of version 3 before.

    Exit codes: 0 done; 75: a beat of version 3 leads, or some couldn't be published.
    """
    session = Session.of(ctx)
    session.require_application("later release")
    if bool(task_ids) == is_all:
        raise CommandLineError("Give the task ids of messages, or --all.", exits.USAGE)
    leader = read_status(session.app).leader
    if leader is not None:
        raise CommandLineError(
            "A beat of version 3 leads, and would send some of them, too: stop all beats of version 3 first.",
            exits.TRY_AGAIN,
        )
    if ensure_conf(session.app).lock_key is None:
        session.note("Without a lock nobody knows whether a beat of version 3 runs: stop all of them first.")
    store = LaterStore(session.app)
    chosen = None if is_all else list(dict.fromkeys(task_ids))
    number = count_members(store) if chosen is None else len(chosen)
    which = counted(number, "stored message", "stored messages")
    ask(f"Publish {which} of {session.server} now?", is_yes=yes)
    released: list[str] = []
    problems: dict[str, str] = {}
    with session.audited("later release", chosen or ["*"]), meter("Publishing", number) as progress:
        for task_id, problem in release_messages(session.app, chosen):
            if problem:
                problems[task_id] = problem
            else:
                released.append(task_id)
            progress(len(released) + len(problems))
    if is_json:
        session.print_json({"released": len(released), "problems": problems})
    else:
        session.say(f"Published {counted(len(released), 'message', 'messages')}.")
        for task_id, problem in problems.items():
            session.say(f"{one_line(task_id)}: {one_line(problem)}", "red")
    missing = [one for one in chosen or () if one not in problems and one not in released]
    if missing:
        raise _unknown(session, missing)
    if problems:
        raise CommandLineError(
            f"{counted(len(problems), 'message', 'messages')} couldn't be published.", exits.TRY_AGAIN
        )


def _unknown(session: Session, task_ids: list[str]) -> CommandLineError:
    names = ", ".join(map(one_line, task_ids[:5])) + ("" if len(task_ids) <= 5 else ", ...")
    return CommandLineError(
        f"Not stored at {session.server}: {names}. It was sent, cancelled, or never stored.", exits.NO_INPUT
    )


def _lines(store: LaterStore, listed: Iterable[Listed], session: Session) -> Iterator[Text]:
    """Yield the table of stored messages, with the columns for which there is room; ids are never cut."""
    width, now = session.console.width, session.now()
    columns = {
        "task id": (0, Column("task id")),
        "task": (WITH_TASKS, Column("task", share=2, cut=cut_start)),
        "eta": (WITH_DATES, Column(titled("eta", session.zone))),
        "until then": (0, Column("" if width >= WITH_DATES else "eta")),
        "arguments": (WITH_ARGUMENTS, Column("arguments", share=3, cut=cut_end)),
    }
    shown = {title: column for title, (from_width, column) in columns.items() if width >= from_width}

    def rows() -> Iterator[Row]:
        for one in listed:
            document, eta = document_of(store.keys, one), eta_of(one)
            cells = {
                "task id": one_line(one.task_id),
                "task": one_line(document.get("task", "")),
                "eta": clock(eta, session.zone) if eta is not None else "never",
                "until then": relative(eta, now),
                "arguments": one_line(arguments_in_words(document)),
            }
            problem = one_line(document["problem"] or document["error"] or "")
            yield Row([Text(cells[title]) for title in shown], below=Text(problem, "red"))

    return lines_of(list(shown.values()), rows(), session.console, beside="problem")


def _words(value: Any) -> str:
    return one_line(value if isinstance(value, str) else str(value), 1000)
