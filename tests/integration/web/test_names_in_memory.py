"""The names of all entries in the memory of the dashboard: read, renewed, forgotten."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.errors import StoreUnavailable
from redbeat.web import names as module
from redbeat.web.names import Names
from redbeat.web.threads import HastyClient
from tests.support.polling import eventually
from tests.support.servers import Server

Add = Callable[..., RedBeatSchedulerEntry]


def known(names: Names) -> list[bytes]:
    index = names.look()
    return [] if index is None else list(index.names)


def test_names_are_renewed_when_they_are_old_and_forgotten_when_nobody_looks(
    app: Celery, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OLD_SECONDS", 0.01)
    monkeypatch.setattr(module, "OLD_TIMES", 0)
    add("beta")
    names = Names(app, HastyClient(app), forgotten_seconds=0.3)
    assert not names.are_kept, "nobody has looked"
    assert eventually(lambda: known(names)) == [b"beta"]
    add("alpha")
    eventually(lambda: known(names) == [b"alpha", b"beta"])
    RedBeatSchedulerEntry.delete_many(["beta"], app)
    eventually(lambda: known(names) == [b"alpha"])
    eventually(lambda: not names.are_kept)
    assert eventually(lambda: known(names)) == [b"alpha"], "read anew"


def test_whoever_looks_is_told_that_redis_is_gone_and_sees_names_when_it_is_back(second: Server) -> None:
    app = Celery("test", broker=second.url(0), set_as_current=False)
    app.conf.update(redbeat_redis_url=second.url(1))
    RedBeatSchedulerEntry("one", "echo", 60, app=app).save()
    names = Names(app, HastyClient(app), forgotten_seconds=0.5)
    second.kill()

    def is_told() -> bool:
        try:
            return names.look() is not None
        except StoreUnavailable:
            return True

    eventually(is_told)
    second.restart()
    eventually(
        lambda: known(names) == [b"one"] or not second.client(db=1).dbsize(), retry_on=(StoreUnavailable,)
    )
    eventually(lambda: not names.are_kept)
