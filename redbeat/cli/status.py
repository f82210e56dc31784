"""``celery redbeat status``: who leads, and whether the schedule is late.

Invariant: no exit code means two things, and it answers within some seconds, whatever Redis does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, tzinfo
from typing import Any

import click
from rich.text import Text

from redbeat.cli.parameters import ONE_OBJECT, pass_session, zone_options
from redbeat.cli.session import Session, SessionCommand
from redbeat.cli.tables import MIDDLE, START, Column, print_fields, print_table
from redbeat.config.config import ensure_conf
from redbeat.config.masking import sanitize_url
from redbeat.entries.wording import in_words_of, relative, when_in
from redbeat.errors import ConfigurationError, RedBeatError, StoreUnavailable
from redbeat.leadership import status as leadership
from redbeat.leadership.status import LATE_AFTER_SECONDS, ShardStatus, State, Status
from redbeat.log.text import counted, printable
from redbeat.process.exit_codes import Seconds

#: so many shards have a row each; of more there is a summary
MOST_SHARDS = 16


@click.command(cls=SessionCommand)
@click.option(
    "--late-after",
    "late_after_seconds",
    type=Seconds(min=0),
    default=LATE_AFTER_SECONDS,
    show_default=True,
    help="The schedule is late if its oldest due entry, stored message, or last tick, is older than this.",
)
@click.option(
    "--shards",
    "is_detailed",
    is_flag=True,
    help=f"Show each shard. If there are more than {MOST_SHARDS}, they are summed up by their beats else.",
)
@zone_options
@ONE_OBJECT
@pass_session
def status(session: Session, late_after_seconds: float, is_detailed: bool) -> None:
    """Show who leads, and whether the schedule is late.

    Exit codes: 0 healthy, 1 no leader, 2 late, 3 Redis can't be reached or used, 4 blocked (the leader can't
    send: the broker is unreachable, say), 64 wrong options, 78 wrong settings. Answers within some seconds,
    even if Redis doesn't.
    """
    zone, found = session.zone, None
    try:
        found = leadership.read_status(session.app)
        state, problem = leadership.judge(found, late_after_seconds)
    except ConfigurationError:
        raise
    except RedBeatError as exc:
        state = State.UNREACHABLE
        problem = exc.plain if isinstance(exc, StoreUnavailable) else str(exc)
    if session.is_json:
        session.print_json(leadership.document_of(ensure_conf(session.app), found, state, problem))
        click.get_current_context().exit(state)
    word, colour = state.name.lower().replace("_", " "), "green" if state is State.HEALTHY else "red"
    about = in_words_of(printable(f": {problem}" if problem else ""), zone)
    conf = session.app.conf
    broker = sanitize_url(conf.broker_write_url or conf.broker_url or "the default broker")
    if found is not None and found.obstacle == leadership.BROKER_AWAY:
        broker += ", unreachable for the leader"
    fields: list[tuple[str, str | Text]] = [
        ("state", Text.assemble((word, f"bold {colour}"), about)),
        ("server", session.server),
        ("broker", broker),
    ]
    if found is None:
        print_fields(session, fields)
    else:
        print_fields(session, [*fields, *_fields(found, zone)])
        session.console.print()
        _print_shards(session, found, is_summary=len(found.shards) > MOST_SHARDS and not is_detailed)
        if hint := leadership.hint_of(found):
            session.console.print()
            session.say(hint)
    click.get_current_context().exit(state)


def _fields(found: Status, zone: tzinfo) -> list[tuple[str, str]]:
    """Return the shards, the beats, what is late and what is stored, as fields."""

    def oldest(moment: datetime | None) -> str:
        if moment is None:
            return ""
        return f", the oldest since {when_in(moment, zone)} ({relative(moment, found.now)})"

    shards = ""
    if found.is_divided:
        moving = "; their number is being changed: if reshard was interrupted, call it again"
        entries = counted(sum(one.entries for one in found.shards))
        shards = f"{len(found.shards)}, with {entries}{moving if found.is_moving else ''}"
    beats = "unknown, as their list can't be read"
    if found.beats is not None:
        beats = "; ".join(
            f"{one.host}, process {one.pid}, "
            + (f"leads {len(one.shards)}" if found.is_divided else "leads" if one.shards else "stands by")
            for one in found.beats
        )
    if found.lock_key is None:
        beats = "all beats share the work, as redbeat_lock_key is None"
    lock = "" if found.leader is None or found.is_divided else f"{found.lock_key}, which never ends"
    if lock and found.leader is not None and found.leader.ttl_seconds is not None:
        lock = f"{found.lock_key} ends in {found.leader.ttl_seconds:.0f} s unless it is renewed"
    messages = "unknown, as their key holds something else"
    if found.stored_messages is not None:
        late = f", {found.overdue_messages} of them overdue" if found.overdue_messages else ""
        number = counted(found.stored_messages, "message", "messages")
        messages = f"{number}{late}{oldest(found.oldest_message)}" if found.stored_messages else ""
    return [
        ("shards", shards),
        ("beats", beats or "none"),
        ("lock", lock),
        ("backlog", f"{found.backlog} due{oldest(found.oldest_due)}"),
        ("stored", messages),
    ]


def _print_shards(session: Session, found: Status, *, is_summary: bool) -> None:
    """Print a row for each shard, or in a summary for each beat, and in a cluster for each of its nodes."""
    groups: dict[Any, list[ShardStatus]] = {}
    for one in found.parts:
        groups.setdefault((_who(one).plain, one.node or "") if is_summary else one.name, []).append(one)

    def age(moments: Sequence[datetime | None]) -> str:
        return relative(min(filter(None, moments), default=None), found.now)

    def count(shards: Sequence[ShardStatus], number: Callable[[ShardStatus], int]) -> str:
        return "" if shards[0].problem else f"{sum(map(number, shards)):,}"

    shard: Column[Sequence[ShardStatus]] = Column("shard", lambda shards: shards[0].name, is_right=True)
    columns: list[Column[Sequence[ShardStatus]]] = [
        Column("leader", lambda shards: _who(shards[0]), cut=MIDDLE),
        Column("since", lambda shards: age([one.leader.since for one in shards if one.leader]), rank=1),
        Column("entries", lambda shards: count(shards, lambda one: one.entries), is_right=True),
        Column("due", lambda shards: count(shards, lambda one: one.backlog), is_right=True),
        Column("oldest", lambda shards: age([one.oldest_due for one in shards])),
        Column("last tick", lambda shards: age([one.last_tick for one in shards]), rank=2),
        Column("node", lambda shards: shards[0].node or "", cut=START),
    ]
    if is_summary:
        columns[1] = Column("shards", lambda shards: f"{len(shards):,}", is_right=True)
    elif found.is_divided:
        columns.insert(0, shard)
    print_table(session, columns, list(groups.values()))


def _who(one: ShardStatus) -> Text:
    """Return who leads a shard, or why that isn't known."""
    leader = one.leader
    if one.problem:
        return Text("can't be read", "bold red")
    if leader is None:
        return Text("none", "bold red") if one.lock_key else Text("all beats")
    if leader.host is None:  # a beat of celery-redbeat 2.x
        return Text(printable(leader.token), "yellow")
    return Text(printable(f"{leader.host}, process {leader.pid}"))
