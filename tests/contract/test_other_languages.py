"""The documentation's recipes and JSON, as they stand there, under a running beat."""

from __future__ import annotations

import base64
import doctest
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.task_ids import task_id_of
from tests.integration.store.rights import in_shards
from tests.support.apps import celery_beat, write_app
from tests.support.command_line import run as run_command
from tests.support.documents import DOCUMENTS, find_fault, json_examples
from tests.support.machine import require_node_package, require_program
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.schedule import SCHEDULE, field, messages, score_of, write_raw
from tests.support.servers import Server
from tests.support.ticks import leader, memory_app

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "docs" / "recipes"
TASK = "proj.tasks.make-report"

#: runs a sub-command and returns what it prints
Recipe = Callable[[str], str]


OTHERS = [
    pytest.param(name, marks=pytest.mark.services) for name in ("redis-cli.sh", "entries.mjs", "entries.pl")
]


@pytest.fixture(params=["entries.py", *OTHERS])
def recipe(request: pytest.FixtureRequest, server: Server, tmp_path: Path) -> Recipe:
    """Run a recipe's sub-command, as the ACL user that the documentation proposes for writers."""
    source = RECIPES / request.param
    program = sys.executable
    if source.suffix == ".sh":
        require_program("redis-cli")
        program = "sh"
    elif source.suffix == ".pl":
        program = require_program("perl")
    elif source.suffix == ".mjs":
        program = require_program("node")
        # Node looks for packages beside the script
        (tmp_path / "node_modules").symlink_to(require_node_package("redis").parent)
        source = shutil.copy(source, tmp_path)
    command = [program, str(source)]
    with server.client() as admin:
        admin.execute_command("ACL SETUSER", "writer", "on", ">secret", *in_shards("writer"))
    url = f"redis://writer:secret@{server.host}:{server.port}/0"

    def run(subcommand: str) -> str:
        done = run_command([*command, subcommand], env={"REDIS_URL": url, "TASK": TASK})
        assert done.returncode == 0, done.stderr
        # redis-cli ends with 0 although the server refused
        assert not re.search(r"(?m)^(\(error\)|ERR|NOPERM|WRONGTYPE)", done.stdout + done.stderr), done.stdout
        return done.stdout

    return run


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    """The schedule is in database 0 here, and the broker in 1."""
    with server.client(db=0) as connected:
        yield connected


@pytest.fixture
def broker(server: Server) -> Iterator[redis.Redis]:
    with server.client(db=1) as connected:
        yield connected


@pytest.fixture
def beat(server: Server, tmp_path: Path) -> Iterator[Process]:
    """A real beat with default settings."""
    write_app(tmp_path, "proj", server.url(1), redbeat_redis_url=server.url(0))
    with celery_beat(tmp_path, "proj") as process:
        process.wait_for("beat: Acquired lock")
        yield process


def sent_args(broker: redis.Redis) -> list[Any]:
    sent = messages(broker)
    assert {message["headers"]["task"] for message in sent} <= {TASK}
    return [json.loads(base64.b64decode(message["body"]))[0] for message in sent]


@pytest.mark.few_cases(3)
def test_a_recipe_adds_changes_pauses_resumes_runs_and_deletes_an_entry(
    recipe: Recipe, beat: Process, client: redis.Redis, broker: redis.Redis, server: Server
) -> None:
    app = memory_app(redbeat_redis_url=server.url(0))
    recipe("add")
    eventually(lambda: sent_args(broker) == [["weekly"]])
    eventually(lambda: field(client, "report", "meta") is not None)
    recipe("change")
    eventually(lambda: sent_args(broker) == [["weekly"], ["daily"]])
    eventually(lambda: field(client, "report", "meta")["total_run_count"] == 2)
    recipe("pause")
    paused = Entry.get("report", app)
    assert (paused.enabled, paused.paused, paused.pause_note) == (False, True, "the numbers are wrong")
    for name in ("definition", "policy"):
        assert find_fault(name, client.hget("redbeat:report", name) or "") is None
    # the next run, 30 s away, is due now
    client.zadd(SCHEDULE, {"redbeat:report": 0}, xx=True)
    eventually(lambda: (score_of(client, "report") or 0) > 0)
    assert len(sent_args(broker)) == 2
    recipe("resume")
    eventually(lambda: len(sent_args(broker)) == 3)
    eventually(lambda: field(client, "report", "meta")["total_run_count"] == 3)
    assert field(client, "report", "definition")["schedule"]["every"] == 30
    resumed = Entry.get("report", app)
    assert (resumed.enabled, resumed.paused, resumed.pause_note) == (True, False, None)
    recipe("run")
    eventually(lambda: len(sent_args(broker)) == 4)
    eventually(lambda: len(recipe("history").splitlines()) == 4)
    records = recipe("history").splitlines()
    assert [find_fault("history-record", record) for record in records] == [None] * 4
    times = [json.loads(record)["at"] for record in records]
    assert times == sorted(times, reverse=True)
    sent = [message["headers"]["id"] for message in messages(broker)]
    assert [run.task_id for run in resumed.history()] == sent[::-1]
    client.sadd("redbeat::backfilled:report", "1")
    recipe("delete")
    assert score_of(client, "report") is None
    assert client.keys("redbeat:*report") == []
    assert beat.is_running, beat.output()
    assert "ERROR" not in beat.output()
    assert "Removed" not in beat.output()


# -- in shards


@pytest.mark.few_cases(10)
@pytest.mark.parametrize(
    ("layout", "prefix"),
    [
        ({"shards": 7, "generation": 1}, "{redbeat:5}:"),
        ({"shards": 4096, "generation": 2, "former": 3}, "{redbeat:336}:"),
        ({"shards": 7, "generation": 2, "former": 3, "state": "moving"}, "{redbeat:5}:"),
        ({"shards": 0, "generation": 2, "former": 7}, "redbeat:"),
    ],
    ids=["in shards", "resharded to the most", "while others move", "put together again"],
)
def test_a_recipe_writes_where_the_layout_says(
    recipe: Recipe, client: redis.Redis, layout: dict[str, Any], prefix: str
) -> None:
    client.hset("redbeat::layout", mapping=layout)
    key = f"{prefix}report"
    with client.pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe(f"{prefix}:wake")
        heard.get_message(timeout=1)
        recipe("add")
        assert eventually(lambda: heard.get_message(timeout=1))
    assert client.zrange(f"{prefix}:schedule", 0, -1, withscores=True) == [(key, 0.0)]
    definition = json.loads(client.hget(key, "definition") or "")
    assert (definition["name"], definition["args"]) == ("report", ["weekly"])
    client.zadd(f"{prefix}:schedule", {key: 5})
    recipe("change")
    assert json.loads(client.hget(key, "definition") or "")["args"] == ["daily"]
    assert client.zscore(f"{prefix}:schedule", key) == 0
    client.lpush(f"{prefix}:history:report", '{"at": 1}')
    client.sadd(f"{prefix}:backfilled:report", "1")
    assert recipe("history").split("\n")[0] == '{"at": 1}'
    recipe("delete")
    assert client.keys() == ["redbeat::layout"]


def test_a_recipe_finds_an_entry_that_has_not_moved_yet(recipe: Recipe, client: redis.Redis) -> None:
    layout = {"shards": 7, "generation": 2, "former": 3, "state": "moving"}
    client.hset("redbeat::layout", mapping=layout)
    key, schedule = "{redbeat:2}:report", "{redbeat:2}::schedule"
    definition = {"task": TASK, "schedule": {"__type__": "interval", "every": 9}}
    client.hset(key, "definition", json.dumps(definition))
    client.zadd(schedule, {key: 5})
    recipe("pause")
    assert json.loads(client.hget(key, "definition") or "")["enabled"] is False
    recipe("run")
    assert client.zscore(schedule, key) == 0
    recipe("delete")
    assert client.keys() == ["redbeat::layout"]


# -- the JSON examples


def is_entry(value: Any) -> bool:
    return "task" in value or "total_run_count" in value


@pytest.mark.parametrize("example", [one for one in json_examples() if is_entry(json.loads(one.values[0]))])
def test_an_example_is_valid_json_and_runs_as_an_entry(example: str, app: Celery, server: Server) -> None:
    value = json.loads(example)
    with server.client(db=1) as client, server.client(db=0) as queues:
        name = value.get("name", "report")
        is_meta = "total_run_count" in value
        write_raw(client, name, None if is_meta else example, meta=example if is_meta else None)
        with leader(app) as scheduler:
            scheduler.tick()
        assert field(client, name, "error") is None
        sent = [message for queue in queues.keys("celery*") for message in messages(queues, str(queue))]
        assert [message["headers"]["redbeat_entry"] for message in sent] == [name]
        entry = Entry.from_key(f"redbeat:{name}", app=app)
        assert entry.total_run_count == value.get("total_run_count", 0) + 1
        assert entry.score == score_of(client, name)


def test_the_other_examples_are_a_history_that_python_reads(client: redis.Redis, server: Server) -> None:
    entry = Entry("report", TASK, 60, app=memory_app(redbeat_redis_url=server.url(0))).save()
    others = [one.values[0] for one in json_examples() if not is_entry(json.loads(one.values[0]))]
    client.rpush("redbeat::history:report", *others)
    history = entry.history()
    outcomes = ["sent", "skipped", "merged", "unsent", "sent", "failed", "skipped"]
    assert [run.outcome for run in history] == outcomes
    assert [bool(run.task_id) for run in history] == [True, False, False, False, True, True, False]
    assert [run.is_manual for run in history] == [False] * 4 + [True, False, False]
    assert [run.count for run in history] == [None, 4, 1, None, None, None, None]
    assert (history[5].error, history[5].run_seconds) == ("ValueError: no numbers today", 2.25)
    assert (history[6].held_on, history[6].worker) == ("celery@h", None)


def test_the_documented_rule_of_task_ids_is_the_rule() -> None:
    text = (ROOT / "docs" / "delivery.rst").read_text("utf-8")
    example = doctest.DocTestParser().get_doctest(text, {}, "delivery.rst", None, 0)
    assert len(example.examples) >= 6
    assert doctest.DocTestRunner(verbose=False).run(example).failed == 0
    ids = {one.want for one in example.examples if one.want.count("-") == 4}
    assert ids == {f"'{task_id_of('redbeat:report', '2026-01-31T07:30:00.000000+00:00')}'\n"}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_json_example_is_overlooked(document: str) -> None:
    text = (ROOT / document).read_text("utf-8")
    found = [example for example in json_examples() if str(example.id).startswith(Path(document).name)]
    assert len(found) == text.count("code-block:: json")
