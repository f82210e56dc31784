"""Who stands by, as standbys write it to Redis and as the status tells it."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from click.testing import CliRunner

from redbeat.cli import redbeat
from redbeat.config.timing import Timing
from redbeat.keys import Keys
from redbeat.leadership import presence
from redbeat.leadership.elector import Leadership
from redbeat.leadership.status import read_status
from redbeat.store.lock_tokens import new_token
from redbeat.store.standbys import STANDBY_SECONDS
from redbeat.store.store import Store
from tests.support.schedule import LOCK, monitoring, server_now
from tests.support.servers import Server

STANDBYS = Keys().standbys


@pytest.fixture
def standby(app: Celery, client: redis.Redis) -> Iterator[Leadership]:
    """One that has looked at the lock of somebody else."""
    client.set(LOCK, "somebody", px=60_000)
    leadership = Leadership(Store(app), LOCK, Timing(60))
    assert not leadership.stand()
    yield leadership
    leadership.resign()


def test_a_standby_says_so_every_few_seconds_and_not_at_each_look(
    app: Celery, standby: Leadership, server: Server, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    [(who, looked_at)] = client.zrange(STANDBYS, 0, -1, withscores=True)
    with monitoring(server) as commands:
        assert not any(standby.stand() for _ in range(3))
    assert [command.split()[0] for command in commands] == ["PTTL"] * 3

    monkeypatch.setattr(presence, "NOTE_SECONDS", 0.0)
    other = Leadership(Store(app), LOCK, Timing(60))
    assert not other.stand()
    [(other_who, before)] = set(client.zrange(STANDBYS, 0, -1, withscores=True)) - {(who, looked_at)}
    client.pexpire(STANDBYS, 5_000)
    assert not other.stand()
    assert client.zscore(STANDBYS, other_who) > before
    assert (client.zcard(STANDBYS), client.pttl(STANDBYS) > 5_000) == (2, True)
    other.resign()


def test_who_becomes_leader_or_ends_is_no_standby_any_more(standby: Leadership, client: redis.Redis) -> None:
    client.delete(LOCK)
    assert standby.stand()
    assert not client.exists(STANDBYS)
    standby.forget()  # it was lost
    client.set(LOCK, "somebody", px=60_000)
    assert not standby.stand()
    assert client.zcard(STANDBYS) == 1
    standby.resign()
    assert not client.exists(STANDBYS)


def test_who_is_ended_while_it_says_so_is_no_standby_any_more(
    app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = presence.Standbys.note

    def be_ended(self: presence.Standbys, who: str) -> bool:
        assert note(self, who)
        raise KeyboardInterrupt  # as the answer came

    monkeypatch.setattr(presence.Standbys, "note", be_ended)
    client.set(LOCK, "somebody", px=60_000)
    leadership = Leadership(Store(app), LOCK, Timing(60))
    with pytest.raises(KeyboardInterrupt):
        leadership.stand()
    assert client.zcard(STANDBYS) == 1
    leadership.resign()
    assert not client.exists(STANDBYS)


def test_the_status_tells_of_those_that_have_looked_in_the_last_seconds(
    app: Celery, standby: Leadership, client: redis.Redis
) -> None:
    now, hostile = server_now(client), "redbeat:3:\x1b[31mhost:1:1700000000:ab"
    others = {"garbage": now, hostile: now - 1, "redbeat:3:gone:1:1:ab": now - STANDBY_SECONDS - 1}
    client.zadd(STANDBYS, others)
    [old, own] = read_status(app).standbys or ()
    assert (own.host, own.pid) == (socket.gethostname(), os.getpid())
    assert old.host == "\x1b[31mhost"
    assert (old.since.timestamp(), old.last_look.timestamp()) == (1_700_000_000, pytest.approx(now - 1))
    context: Any = SimpleNamespace(app=app, no_color=True)
    found = json.loads(CliRunner().invoke(redbeat, ["status", "--json"], obj=context).output)["standbys"]
    assert [one["pid"] for one in found] == [1, os.getpid()]
    assert found[1].keys() == {"host", "pid", "since", "last_look"}
    shown = CliRunner().invoke(redbeat, ["status"], obj=context).output
    assert "\x1b" not in shown
    assert f"; {own.host}, process {own.pid}, since {own.since:%Y-%m-%d}" in " ".join(shown.split())
    assert presence.Standbys(Store(app)).note(new_token())
    assert client.zscore(STANDBYS, "redbeat:3:gone:1:1:ab") is None


def test_standing_by_and_leading_go_on_where_it_cannot_be_said(app: Celery, client: redis.Redis) -> None:
    client.set(LOCK, "somebody", px=60_000)
    client.set(STANDBYS, "somebody's own")
    leadership = Leadership(Store(app), LOCK, Timing(60))
    assert not leadership.stand()
    found = read_status(app)
    assert (found.leader is not None, found.standbys) == (True, [])
    client.delete(LOCK)
    assert leadership.stand()
    leadership.resign()
    assert (client.get(STANDBYS), client.ttl(STANDBYS)) == ("somebody's own", -1)
