"""``celery redbeat audit``: who has changed what, and when."""

from __future__ import annotations

import click

from redbeat.cli.operations import options_of
from redbeat.cli.parameters import LIMIT, NAME, json_flag, pass_session, zone_options
from redbeat.cli.session import Session, SessionCommand
from redbeat.cli.tables import END, MIDDLE, Column, print_page, styled, titled
from redbeat.entries.audit import AuditRecord, details_in_words, find_records
from redbeat.entries.wording import clock, one_line
from redbeat.operations.operating import list_audit
from redbeat.schedules.times import TypedTime

#: how many names of a record are shown
MAX_SHOWN = 5


@click.command(cls=SessionCommand)
@click.argument("name", type=NAME, required=False)
@options_of(list_audit, "user", "verb", "since")
@LIMIT
@zone_options
@json_flag("JSON: one object per change and line")
@pass_session
def audit(
    session: Session,
    name: str | None,
    user: str | None,
    verb: str | None,
    since: TypedTime | None,
    limit: int | None,
) -> None:
    """List who has changed what, and when, the latest change first.

    Changes by the command line and the dashboard. NAME is an entry, a calendar or a token. The last 10,000
    changes or so are kept; of one that is about many entries, the first hundred names. A change that has
    failed has a second row, which says why.
    """
    begin, rows = None if since is None else session.time(since), session.rows(limit)
    most = None if rows is None else rows + 1  # one more tells whether there are more
    found = find_records(session.app, name=name, user=user, verb=verb, since=begin, limit=most)
    zone = session.zone
    columns: list[Column[AuditRecord]] = [
        Column(titled("when", zone), lambda record: clock(record.at, zone)),
        Column("user", lambda record: "@".join(filter(None, (record.user, record.host))), rank=1, cut=MIDDLE),
        Column("change", lambda record: record.verb, cut=END, least=8),
        Column("of", _names_in_words, cut=MIDDLE),
        Column(
            "details",
            lambda record: one_line(", ".join(": ".join(one) for one in details_in_words(record, zone))),
            rank=2,
            cut=END,
        ),
    ]
    print_page(
        *(session, found, AuditRecord.to_dict, columns, "There are no such changes."),
        *(lambda record: styled(record.outcome, "red"), "outcome"),
        limit=limit,
    )


def _names_in_words(record: AuditRecord) -> str:
    shown = ", ".join(one_line(name, 80) for name in record.names[:MAX_SHOWN])
    more = record.count - min(len(record.names), MAX_SHOWN)
    return f"{shown} and {more} more" if more > 0 else shown
