"""``celery redbeat status``: who leads, and whether the schedule is late.

Invariant: no exit code means two things, and it answers within some seconds, whatever Redis does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import click
from rich.text import Text

from redbeat.cli.flags import ONE_OBJECT, pass_session, zone_options
from redbeat.cli.session import Session, ending_unread, stating_errors
from redbeat.cli.tables import MIDDLE, START, Column, print_fields, print_table
from redbeat.config.config import ensure_conf
from redbeat.config.masking import sanitize_url
from redbeat.entries.wording import in_words_of, relative
from redbeat.errors import ConfigurationError, RedBeatError, StoreUnavailable
from redbeat.layout import LayoutRule
from redbeat.leadership.status import (
    BROKER_AWAY,
    LATE_AFTER_SECONDS,
    ShardStatus,
    State,
    Status,
    document_of,
    hint_of,
    judge,
    read_status,
)
from redbeat.log.text import counted, printable
from redbeat.process.exit_codes import ExitingCommand, Seconds
from redbeat.schedules.durations import seconds_in_words

#: so many shards have a row each; of more there is a summary
MOST_SHARDS = 16


@click.command(cls=ExitingCommand)
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
    app, found = session.app, None
    with stating_errors():
        config, zone = ensure_conf(app), session.zone
        url = sanitize_url(config.redis_url)
        session.keep_layout_rule(LayoutRule.REFUSE)
        try:
            found = read_status(app)
            state, problem = judge(found, late_after_seconds)
        except ConfigurationError:
            raise
        except RedBeatError as exc:
            state = State.UNREACHABLE
            problem = exc.plain if isinstance(exc, StoreUnavailable) else str(exc)
    with ending_unread():
        if session.is_json:
            session.print_json(document_of(config, found, state, problem))
        else:
            word = state.name.lower().replace("_", " ")
            lines = [("state", f"{word}: {problem}" if problem else word), ("server", url)]
            lines += [("broker", _broker(app, found)), *(_fields(found) if found is not None else ())]
            colour = "bold green" if state is State.HEALTHY else "bold red"
            shown = [(title, in_words_of(printable(text), zone)) for title, text in lines]
            print_fields(session, shown, colour, indent=11)
            if found is not None and found.shards:
                session.console.print()
                _print_shards(session, found, is_summary=len(found.shards) > MOST_SHARDS and not is_detailed)
                if hint := hint_of(found):
                    session.console.print()
                    session.say(hint)
    click.get_current_context().exit(state)


def _fields(found: Status) -> list[tuple[str, str]]:
    """Return who leads, what is late and what is stored, as fields."""
    backlog = ("backlog", f"{found.backlog} due{_oldest(found, found.oldest_due)}")
    stored = ("stored", _messages(found) if found.stored_messages != 0 else "")
    if found.shards:
        beats = [f"{one.host}, process {one.pid}, leads {len(one.shards)}" for one in found.beats or ()]
        leads = "unknown, as their list can't be read" if found.beats is None else "; ".join(beats) or "none"
        return [("shards", _shards(found)), ("beats", leads if found.lock_key else ""), backlog, stored]
    if found.lock_key is None:
        leads = "none: redbeat_lock_key is None, and the beats share the work"
        return [("leader", leads), backlog, stored]
    standbys = [f"{one.host}, process {one.pid}, since {_when(found, one.since)}" for one in found.standbys]
    return [
        ("leader", _leader(found)),
        ("lock", _lock(found)),
        ("standbys", "; ".join(standbys) or "none"),
        ("last tick", _when(found, found.last_tick) or "unknown"),
        *(backlog, stored),
    ]


def _shards(found: Status) -> str:
    entries = counted(sum(one.entries for one in found.shards), "entry", "entries")
    if found.unread:
        entries += f" in the {len(found.shards) - len(found.unread)} that can be read"
    if not found.is_moving:
        return f"{len(found.shards)}, with {entries}"
    return (
        f"{len(found.shards)} old and new ones, with {entries}; their number is being changed. If celery "
        "redbeat reshard was interrupted, call it again"
    )


def _leader(found: Status) -> str:
    leader = found.leader
    if leader is None:
        return "none"
    if leader.host is None:
        return f"unknown, a beat of celery-redbeat 2.x perhaps; its token is {leader.token}"
    return f"{leader.host}, process {leader.pid}, since {_when(found, leader.since)}"


def _lock(found: Status) -> str:
    if found.leader is None:
        return f"{found.lock_key} is free"
    if found.leader.ttl_seconds is None:
        return f"{found.lock_key} never ends: it was set by hand"
    return f"{found.lock_key} ends in {found.leader.ttl_seconds:.0f} s unless it is renewed"


def _broker(app: Any, found: Status | None) -> str:
    """Return the broker's URL, and its state as the leader knows it."""
    url = sanitize_url(app.conf.broker_write_url or app.conf.broker_url or "the default broker")
    if found is None or found.leader is None or found.leader.host is None:
        return f"{url}, its state is unknown without a leader"
    state = "unreachable for the leader" if found.obstacle == BROKER_AWAY else "no problem reported"
    return f"{url}, {state}"


def _messages(found: Status) -> str:
    if found.stored_messages is None:
        return "unknown, as their key holds something else"
    late = f", {found.overdue_messages} of them overdue" if found.overdue_messages else ""
    number = counted(found.stored_messages, "message", "messages")
    return f"{number}{late}{_oldest(found, found.oldest_message)}"


def _oldest(found: Status, moment: datetime | None) -> str:
    return f", the oldest since {_when(found, moment)}" if moment is not None else ""


def _print_shards(session: Session, found: Status, *, is_summary: bool) -> None:
    """Print a row for each shard, or in a summary for each beat, and in a cluster for each of its nodes."""
    groups: dict[Any, list[ShardStatus]] = {}
    for one in found.shards:
        groups.setdefault((_who(one).plain, one.node or "") if is_summary else one.name, []).append(one)

    def since(shards: Sequence[ShardStatus]) -> str:
        leader = shards[0].leader
        return relative(leader.since, found.now) if leader is not None and leader.since else ""

    def count(shards: Sequence[ShardStatus], number: Callable[[ShardStatus], int]) -> str:
        return "" if any(one.problem for one in shards) else f"{sum(map(number, shards)):,}"

    def oldest(shards: Sequence[ShardStatus]) -> str:
        dues = [one.oldest_due for one in shards if one.oldest_due is not None and not one.problem]
        return relative(min(dues), found.now) if dues else ""

    shard: Column[Sequence[ShardStatus]] = Column("shard", lambda shards: shards[0].name, is_right=True)
    columns: list[Column[Sequence[ShardStatus]]] = [
        Column("leader", lambda shards: _who(shards[0]), cut=MIDDLE),
        Column("since", since, rank=1),
        Column("shards", lambda shards: f"{len(shards):,}", is_right=True),
        Column("entries", lambda shards: count(shards, lambda one: one.entries), is_right=True),
        Column("due", lambda shards: count(shards, lambda one: one.backlog), is_right=True),
        Column("oldest", oldest),
        Column("node", lambda shards: shards[0].node or "", cut=START),
    ]
    hidden = "since" if is_summary else "shards"
    shown = [column for column in columns if column.title != hidden]
    print_table(session, shown if is_summary else [shard, *shown], list(groups.values()))


def _who(one: ShardStatus) -> Text:
    """Return who leads a shard, or why that isn't known."""
    leader = one.leader
    if one.problem:
        return Text("can't be read", "bold red")
    if leader is None:
        return Text("none", "bold red") if one.lock_key else Text("all beats")
    if leader.host is None:
        return Text(printable(leader.token), "yellow")
    return Text(printable(f"{leader.host}, process {leader.pid}"))


def _when(found: Status, moment: datetime | None) -> str:
    """Return ``moment`` as a time and an age; '' for None."""
    seconds = found.seconds_since(moment)
    if moment is None or seconds is None:
        return ""
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC ({seconds_in_words(round(seconds))} ago)"
