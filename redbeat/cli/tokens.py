"""``celery redbeat token …``: the tokens with which programs use the dashboard's API."""

from __future__ import annotations

import click
from rich.text import Text

from redbeat.access import Right
from redbeat.access.rights import names_of
from redbeat.access.tokens import Token
from redbeat.cli.parameters import ONE_OBJECT, YES, Value, json_flag, pass_session, zone_options
from redbeat.cli.session import Session, SessionCommand
from redbeat.cli.tables import END, Column, print_page, titled
from redbeat.entries.wording import clock, one_line, when_in
from redbeat.errors import ArgumentInvalid
from redbeat.operations.tokens import add_token, revoke_token
from redbeat.process import exit_codes as exits
from redbeat.process.exit_codes import CommandLineError, ExitingGroup, not_empty
from redbeat.schedules.times import TypedTime
from redbeat.store.store import Store
from redbeat.store.tokens import read_tokens, tokens_called

NEVER = "never"


@click.group(cls=ExitingGroup)
def token() -> None:
    """Tokens of the dashboard's API: add, list, revoke."""


@token.command(cls=SessionCommand)
@click.argument("name", callback=not_empty)
@click.option(
    "--right",
    "rights",
    type=click.Choice([right.value for right in Right]),
    multiple=True,
    required=True,
    help="Right to grant (repeatable). admin grants everything; every other right includes read.",
)
@click.option(
    "--expires",
    type=Value("time", lambda text: NEVER if text == NEVER else TypedTime(text, ahead=True)),
    default="90d",
    show_default=True,
    help="Expiry: a time from now, such as 30d, a date, such as 2030-12-24, or never.",
)
@zone_options
@ONE_OBJECT
@pass_session
def add(session: Session, name: str, rights: tuple[str, ...], expires: TypedTime | str) -> None:
    """Make a token called NAME, and print it. It can't be printed again: only its hash is stored."""
    end = None if isinstance(expires, str) else session.time(expires)
    try:
        made, text = add_token(session.actor, name, rights, end)
    except ArgumentInvalid as exc:
        raise CommandLineError(one_line(exc.reason), exits.USAGE) from None
    if session.is_json:
        session.print_json({**made.to_dict(), "token": text})
        return
    session.echo(text)
    until = f"until {when_in(end, session.zone)}" if end is not None else "for ever"
    session.note(
        f"This is the token {one_line(name)} ({made.id}), which has these rights {until}: "
        f"{', '.join(names_of(made.rights))}. It isn't shown again: keep it like a password."
    )


@token.command("list", cls=SessionCommand)
@zone_options
@json_flag("JSON: one object per token and line")
@pass_session
def list_(session: Session) -> None:
    """List the tokens, the oldest first, also expired ones. Their texts are not stored."""
    found, now, zone = read_tokens(Store(session.app)), session.now(), session.zone

    def expires(one: Token) -> str | Text:
        if one.expires_at is None:
            return NEVER
        end = clock(one.expires_at, zone)
        return Text(f"{end}, expired", "red") if one.is_expired(now) else end

    columns: list[Column[Token]] = [
        Column("id", lambda one: one.id),
        Column("name", lambda one: one.name, cut=END, least=20),
        Column("rights", lambda one: ", ".join(names_of(one.rights)), cut=END),
        Column(titled("expires", zone), expires),
        Column("made", lambda one: clock(one.created_at, zone)[:10], rank=1),
        Column("by", lambda one: one.created_by, rank=2, cut=END),
    ]
    print_page(
        session,
        [one for one in found.values() if one is not None],
        lambda one: {**one.to_dict(), "is_expired": one.is_expired(now)},
        columns,
        "There are no tokens.",
        limit=0,
    )
    for token_id, one in found.items():
        if one is None:
            words = f"{one_line(token_id, 40)} can't be read: revoke it."
            session.report({"id": token_id, "error": "It can't be read."}, words)


@token.command(cls=SessionCommand)
@click.argument("id_or_name", metavar="ID|NAME", callback=not_empty)
@YES
@ONE_OBJECT
@pass_session
def revoke(session: Session, id_or_name: str) -> None:
    """End a token at once, by its id or its name; asks first."""
    shown = one_line(id_or_name)
    if not tokens_called(Store(session.app), id_or_name):
        raise CommandLineError(
            f"There is no token {shown!r} at {session.server}: celery redbeat token list has all.",
            exits.NO_INPUT,
        )
    session.ask(f"Revoke the token {shown} at {session.server}?")
    done = revoke_token(session.actor, id_or_name)
    session.report({"revoked": list(done)}, f"Revoked the token {shown}.")
