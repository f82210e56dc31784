"""``celery redbeat audit``: who has changed what, and when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import tzinfo

import click
from rich.console import Console
from rich.text import Text

from redbeat.cli.documents import json_option
from redbeat.cli.grid import Column, Row, cut_end, cut_middle, lines_of
from redbeat.cli.names import NAME
from redbeat.cli.session import Session, SessionCommand
from redbeat.cli.tables import titled
from redbeat.cli.values import BACK
from redbeat.cli.zone import zone_options
from redbeat.entries.audit import AuditRecord, details_in_words, find_records
from redbeat.entries.wording import clock, one_line
from redbeat.schedules.times import TypedTime

#: how many rows are shown on a terminal by default
TERMINAL_ROWS = 50
#: how many names of a record are shown
MAX_SHOWN = 5


@click.command(cls=SessionCommand)
@click.argument("name", type=NAME, required=False)
@click.option("--user", metavar="PATTERN", help="Only changes by this user; * and ? are wildcards.")
@click.option(
    "--verb",
    metavar="VERB",
    help="Only changes by this command: pause, calendar, 'calendar set'; * and ? are wildcards.",
)
@click.option(
    "--since",
    type=BACK,
    help="Only changes since this time: 1d, 'yesterday 9:00', or 2030-12-24T18:00.",
)
@click.option(
    "--limit",
    type=click.IntRange(0),
    help=f"Show at most this many changes; 0 shows all. Default: {TERMINAL_ROWS} on a terminal, else all.",
)
@zone_options
@json_option("JSON: one object per change and line")
@click.pass_context
def audit(
    ctx: click.Context,
    /,
    name: str | None,
    user: str | None,
    verb: str | None,
    since: TypedTime | None,
    limit: int | None,
    is_json: bool,
) -> None:
    """List who has changed what by the command line and the dashboard, the latest change first.

    NAME is an entry, a calendar or a token. The last 10,000 changes or so are kept; of one that is about many
    entries, the first hundred names. A change that has failed has a second row, which says why.
    """
    session = Session.of(ctx)
    begin = None if since is None else session.time(since)
    most = limit if limit is not None else TERMINAL_ROWS if session.is_on_terminal and not is_json else 0
    # one more tells whether there are more
    found = find_records(
        session.app, name=name, user=user, verb=verb, since=begin, limit=most + 1 if most else None
    )
    shown = found[: most or None]
    if is_json:
        for record in shown:
            session.print_json(record.to_dict())
        return
    if not shown:
        session.note("There are no such changes.")
        return
    session.draw(record_lines(shown, session.zone, session.console))
    if len(found) > len(shown):
        session.note(f"The last {len(shown)} are shown; --limit 0 for all.")


def record_lines(records: Sequence[AuditRecord], zone: tzinfo, console: Console) -> Iterator[Text]:
    """Yield the table of changes, with what has failed below its row."""
    columns = [
        Column(titled("when", zone)),
        Column("user", share=1, cut=cut_middle),
        Column("change", share=1, cut=cut_end),
        Column("of", share=2, cut=cut_middle),
        Column("details", share=3, cut=cut_end),
    ]
    rows = [
        Row(
            [
                Text(clock(record.at, zone)),
                Text(one_line("@".join(filter(None, (record.user, record.host))))),
                Text(one_line(record.verb)),
                Text(_names_in_words(record)),
                Text(one_line(", ".join(": ".join(one) for one in details_in_words(record, zone)))),
            ],
            below=Text(one_line(record.outcome), style="red"),
        )
        for record in records
    ]
    return lines_of(columns, rows, console, beside="outcome" if any(row.below for row in rows) else "")


def _names_in_words(record: AuditRecord) -> str:
    shown = ", ".join(one_line(name, 80) for name in record.names[:MAX_SHOWN])
    more = record.count - min(len(record.names), MAX_SHOWN)
    return f"{shown} and {more} more" if more > 0 else shown
