"""`celery redbeat reshard`: what it says and asks, and how it ends."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.reshard.resharding import Report, Resharding
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.integration.cli.conftest import Call
from tests.support.command_line import call


class Killed(BaseException):
    """What ends a mover between two round trips."""


class Mortal(Store):
    left = 30

    def on_round_trip(self) -> None:  # type: ignore[override]
        self.left -= 1
        if self.left < 0:
            raise Killed


def save_some(app: Celery) -> None:
    for number in range(20):
        RedBeatSchedulerEntry(f"entry-{number}", "echo", 86_400, app=app).save()


def test_it_says_what_it_would_do_and_does_nothing_in_a_dry_run(
    ask: Call, app: Celery, client: redis.Redis
) -> None:
    save_some(app)
    before = sorted(client.keys())
    assert ask("reshard", "--to", "4", "--dry-run").stdout == (
        "From no shards to 4 shards: 20 entries.\nNo beat leads.\nNothing was changed.\n"
    )
    told = json.loads(ask("reshard", "--to", "4", "--dry-run", "--json").stdout)
    assert told == {
        "from": None,
        "to": 4,
        "is_resumed": False,
        "is_dry_run": True,
        "entries": 20,
        "messages": 0,
        "report": None,
    }
    assert sorted(client.keys()) == before


def test_it_asks_first_and_says_at_the_end_what_to_set(
    ask: Call, app: Celery, client: redis.Redis, make_app: MakeApp
) -> None:
    save_some(app)
    refused = ask("reshard", "--to", "4", code=64)
    assert "There is no terminal to ask you on: give --yes." in refused.stderr
    assert client.exists("redbeat::layout") == 0
    said = ask("reshard", "--to", "4", "--yes").stdout
    assert "Moved 20 entries and other things in " in said
    assert "Now set redbeat_shards = 4 in all settings; until then programs warn" in " ".join(said.split())
    assert client.zcard("redbeat::schedule") == 0
    assert sum(client.zcard(f"{{redbeat:{shard}}}::schedule") for shard in range(4)) == 20
    [record] = [values for _, values in client.xrange("redbeat::audit") if values["verb"] == "reshard"]
    assert json.loads(record["details"]) == {"from": "none", "to": 4}
    assert call(make_app(), "reshard", "--to", "4").exit_code == 0, "also by the setting of before"
    new = make_app(redbeat_shards=4)
    assert call(new, "reshard", "--to", "4").stdout.startswith(
        "The schedule has 4 shards already: 20 entries."
    )
    report = json.loads(call(new, "reshard", "--to", "none", "--yes", "--json").stdout)["report"]
    assert (report["former"], report["shards"], report["entries"], report["moved"]) == (4, None, 20, 20)
    assert client.zcard("redbeat::schedule") == 20


def test_what_was_interrupted_is_gone_on_with_and_another_number_has_to_wait(
    ask: Call, app: Celery, make_app: MakeApp
) -> None:
    save_some(app)
    with contextlib.suppress(Killed):
        Resharding(make_app(), 4, Mortal(make_app())).run()
    refused = ask("reshard", "--to", "5", "--yes", code=75)
    assert "A change to 4 shards is under way (from no shards)" in " ".join(refused.stderr.split())
    assert "celery redbeat reshard --to 4" in " ".join(refused.stderr.split())
    said = ask("reshard", "--to", "4", "--yes").stdout
    assert "This change has begun already, and is gone on with." in said


def test_an_end_that_a_failover_has_undone_is_no_success(
    ask: Call, app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_some(app)
    run = Resharding.run

    def run_and_fail_over(resharding: Resharding, *args: Any) -> Report:
        report = run(resharding, *args)
        client.hset("redbeat::layout", "state", "settling")
        return report

    with monkeypatch.context() as patch:
        patch.setattr(Resharding, "run", run_and_fail_over)
        refused = ask("reshard", "--to", "4", "--yes", code=75)
    assert "The server has failed over meanwhile" in " ".join(refused.stderr.split())
    assert "Go on with it: celery redbeat reshard --to 4." in " ".join(refused.stderr.split())
    assert "Now set redbeat_shards = 4" in ask("reshard", "--to", "4", "--yes").stdout
    assert client.hmget("redbeat::layout", "shards", "state") == ["4", None]


def test_it_names_what_cannot_be_moved_and_ends_with_an_error(
    ask: Call, app: Celery, client: redis.Redis
) -> None:
    save_some(app)
    client.rpush("redbeat::history:entry-7", *("x" * 500_000 for _ in range(5)))
    [limit] = client.config_get("proto-max-bulk-len").values()
    client.config_set("proto-max-bulk-len", 1024 * 1024)
    client.config_set("rdbcompression", "no")
    try:
        said = " ".join(ask("reshard", "--to", "4", "--yes", code=1).output.split())
        report = json.loads(ask("reshard", "--to", "4", "--yes", "--json", code=1).stdout)["report"]
    finally:
        client.config_set("proto-max-bulk-len", limit)
        client.config_set("rdbcompression", "yes")
    assert "Can't be moved, and stay where they are (1): entry-7: " in said
    assert "call celery redbeat reshard --to 4 again" in said
    assert [*report["unmoved"]] == ["entry-7"]
    assert client.zrange("redbeat::schedule", 0, -1) == ["redbeat:entry-7"]
    assert "Moved 1 entry or other thing" in ask("reshard", "--to", "4", "--yes").stdout


def test_a_number_that_is_none_is_refused(ask: Call) -> None:
    for wrong in ("0", "-1", "many", "4097", "1.5"):
        assert "is no number of shards" in ask("reshard", "--to", wrong, code=64).stderr
    assert "Missing option '--to'" in ask("reshard", code=64).stderr


def test_a_schedule_that_was_never_divided_stays_as_it_is(
    ask: Call, app: Celery, client: redis.Redis
) -> None:
    save_some(app)
    before = {*client.keys()}
    said = ask("reshard", "--to", "none").stdout
    assert said == "The schedule has no shards already: 20 entries.\n", "no setting has to change"
    assert {*client.keys()} - before == {"redbeat::audit"}
