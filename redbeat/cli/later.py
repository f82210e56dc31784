"""``celery redbeat later …``: the messages that are stored until a time far ahead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from redbeat.cli.parameters import LIMIT, ONE_OBJECT, YES, json_flag, pass_session, zone_options
from redbeat.cli.session import Session, SessionCommand
from redbeat.cli.tables import END, START, Column, meter, print_fields, print_page, styled, titled
from redbeat.config.config import ensure_conf
from redbeat.entries.wording import clock, one_line, relative, when_in
from redbeat.later.documents import arguments_in_words, document_of, eta_of
from redbeat.leadership.status import read_status
from redbeat.log.text import counted
from redbeat.operations.later import cancel_messages, release_messages
from redbeat.process import exit_codes as exits
from redbeat.process.exit_codes import CommandLineError, ExitingGroup, not_empty
from redbeat.store.later import LaterStore, Listed
from redbeat.store.members import count_members

#: a message with its document
Stored = tuple[Listed, Mapping[str, Any]]


@click.group(cls=ExitingGroup)
def later() -> None:
    """Messages stored until a time far ahead: list, show, cancel."""


@later.command("list", cls=SessionCommand, short_help="the stored messages, the next one first")
@LIMIT
@click.option("--offset", type=click.IntRange(min=0), default=0, help="Skip this many messages.")
@zone_options
@json_flag("JSON: one object per message and line")
@pass_session
def list_(session: Session, limit: int | None, offset: int) -> None:
    """List the stored messages, the next one first."""
    print_messages(session, limit, offset)


def print_messages(session: Session, limit: int | None, offset: int) -> None:
    """Print a page of the stored messages."""
    store = LaterStore(session.app)
    zone, now = session.zone, session.now()

    def eta(one: Stored) -> str:
        moment = eta_of(one[0])
        return "never" if moment is None else clock(moment, zone)

    columns: list[Column[Stored]] = [
        Column("task id", lambda one: one_line(one[0].task_id)),
        Column("task", lambda one: str(one[1].get("task", "")), rank=1, cut=START),
        Column("eta", lambda one: relative(eta_of(one[0]), now) or "never"),
        Column(titled("at", zone), eta, rank=2),
        Column("arguments", lambda one: one_line(arguments_in_words(one[1])), rank=3, cut=END),
    ]
    print_page(
        session,
        ((one, document_of(store.keys, one)) for one in store.first(None)),
        lambda one: one[1],
        columns,
        "There are no stored messages.",
        lambda one: styled(one[1]["problem"] or one[1]["error"] or "", "red"),
        "problem",
        limit=limit,
        offset=offset,
    )


@later.command(cls=SessionCommand, short_help="how many messages are stored")
@ONE_OBJECT
@pass_session
def count(session: Session) -> None:
    """Print how many messages are stored."""
    number = count_members(LaterStore(session.app))
    session.report({"count": number}, str(number))


@later.command(cls=SessionCommand, short_help="all about one stored message")
@click.argument("task_id", metavar="ID", callback=not_empty)
@zone_options
@ONE_OBJECT
@pass_session
def show(session: Session, task_id: str) -> None:
    """Show all about the stored message with the task id ID."""
    store = LaterStore(session.app)
    one = store.find(task_id)
    if one is None:
        raise _unknown(session, [task_id])
    document, eta = document_of(store.keys, one), eta_of(one)
    if session.is_json:
        session.print_json(document)
        return
    document["eta"] = when_in(eta, session.zone) if eta is not None else "never"
    given = {name: value for name, value in document.items() if value not in (None, [])}
    print_fields(
        session, [(name.replace("_", " "), one_line(str(value), 1000)) for name, value in given.items()]
    )


@later.command(cls=SessionCommand, short_help="take stored messages away; asks first")
@click.argument("task_ids", metavar="ID...", nargs=-1, required=True)
@YES
@ONE_OBJECT
@pass_session
def cancel(session: Session, task_ids: tuple[str, ...]) -> None:
    """Take the stored messages with these task ids away, so that they are never sent; asks first.

    Their results become REVOKED. Workers are told nothing: celery control revoke ID does that for a message
    that has been sent.
    """
    chosen = list(dict.fromkeys(task_ids))
    which = one_line(chosen[0]) if len(chosen) == 1 else f"{len(chosen)} messages"
    session.ask(f"Cancel {which} at {session.server}?")
    cancelled = cancel_messages(session.actor, chosen)
    missing = [one for one in chosen if one not in cancelled]
    if session.is_json:
        session.print_json({"cancelled": cancelled, "missing": missing})
    elif cancelled:
        session.say(f"Cancelled {counted(len(cancelled), 'message', 'messages')}.")
        if not session.has_own_app:
            session.note("Without the application (-A) their results don't say that they are revoked.")
    if missing:
        raise _unknown(session, missing)


@later.command(cls=SessionCommand, short_help="publish stored messages now, e.g. before uninstalling RedBeat")
@click.argument("task_ids", metavar="ID...", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="All of them.")
@YES
@ONE_OBJECT
@pass_session
def release(session: Session, task_ids: tuple[str, ...], is_all: bool) -> None:
    """Give stored messages to the broker now, as Celery does without RedBeat; asks first.

    A worker then holds each of them until its eta. Before you go back to another scheduler, stop all beats of
    version 3.

    Exit codes: 0 done; 75: a beat of version 3 leads, or some couldn't be published.
    """
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
    session.ask(f"Publish {which} of {session.server} now?")
    released: list[str] = []
    problems: dict[str, str] = {}
    with meter("Publishing", number) as progress:
        for task_id, problem in release_messages(session.actor, chosen):
            if problem:
                problems[task_id] = problem
            else:
                released.append(task_id)
            progress(len(released) + len(problems))
    if session.is_json:
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
