"""Commits of several shards that go out together, while nodes are away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import redis.exceptions
from celery import Celery

from redbeat.errors import StoreUnavailable
from redbeat.store import rounds
from redbeat.store.records import NOWHERE, Claimed, Commit, Committed, Fence, LockStatus
from redbeat.store.rounds import CommitAsked, commit_together
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.support.servers import Server

REPLY = [b"ok", 0, b"1", [], b""]
AWAY = redis.exceptions.ConnectionError("away for a test")


@pytest.fixture
def server(valkey: Server) -> Server:
    """One kind will do: what it says is made up."""
    return valkey


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    return make_app(redbeat_shards=4)


class Alone:
    """What is asked alone of a node that is away, and how often."""

    def __init__(self, error: Exception | None = None) -> None:
        self.count, self._error = 0, error

    def __call__(self) -> Committed:
        self.count += 1
        if self._error is not None:
            raise self._error
        return Committed(LockStatus.HELD, is_moved=False, results=[True])


def asked_of(app: Celery, alone: Alone) -> list[CommitAsked]:
    store = Store(app)
    found = []
    for part in store.parts:
        commit = Commit(Claimed(part.keys.entry("one"), "1"), "2")
        found.append(CommitAsked(store.of_part(part), Fence(), [commit], NOWHERE, alone))
    return found


def answer(monkeypatch: pytest.MonkeyPatch, replies: Sequence[Any]) -> None:
    monkeypatch.setattr(rounds, "call_on_nodes", lambda _client, _calls: [*replies])


def test_if_all_are_away_they_are_waited_for_once(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Alone(StoreUnavailable("still away"))
    answer(monkeypatch, [AWAY] * 4)
    found = commit_together(asked_of(app, alone))
    assert [type(one) for one in found] == [StoreUnavailable] * 4
    assert alone.count == 1


def test_if_all_come_back_each_is_asked_alone(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Alone()
    answer(monkeypatch, [AWAY] * 4)
    found = commit_together(asked_of(app, alone))
    assert [one.results for one in found if isinstance(one, Committed)] == [[True]] * 4
    assert alone.count == 4


def test_a_node_that_is_away_isn_t_waited_for_if_others_have_answered(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = Alone()
    answer(monkeypatch, [REPLY, AWAY, REPLY, AWAY])
    found = commit_together(asked_of(app, alone))
    assert [isinstance(one, StoreUnavailable) for one in found] == [False, True, False, True]
    assert not alone.count
