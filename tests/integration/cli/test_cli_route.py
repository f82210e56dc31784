"""`celery redbeat route`, and queues that entries can't have."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import redis
from celery import Celery
from click.testing import Result
from kombu import Exchange, Queue
from kombu.common import Broadcast

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.errors import EntryError, FileError
from tests.conftest import MakeApp
from tests.support.applying import apply
from tests.support.command_line import call
from tests.support.schedule import SCHEDULE, write_raw
from tests.support.servers import Server

FAR = 10**10
NEWS = Exchange("news", type="topic")
QUEUES = [
    Queue("celery", Exchange("celery"), routing_key="celery"),
    Queue("feeds", Exchange("feeds"), routing_key="feed"),
    Queue("usa", NEWS, routing_key="usa.#"),
    Queue("weather", NEWS, routing_key="*.weather"),
]


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    app = make_app(task_queues=QUEUES, task_routes={"feed.*": {"queue": "feeds", "priority": 3}})

    def run() -> None:
        """Never runs here."""

    app.task(name="feed.read", shared=False)(run)
    app.task(name="plain", shared=False)(run)
    return app


def columns_of(done: Result) -> list[list[str]]:
    """The lines that say something, as what stands apart in them."""
    lines = [re.split(r"\s{2,}", line.strip()) for line in done.stdout.splitlines()]
    return [line for line in lines if re.search(r"\w", line[0])]


def test_an_entry_goes_where_its_route_says(app: Celery) -> None:
    Entry("import", "feed.read", FAR, app=app).save()
    done = call(app, "route", "import")
    assert done.exit_code == 0
    assert columns_of(done) == [
        ["feed.read goes to the queue feeds."],
        ["decided by"],
        ["queue", "feeds", "task_routes['feed.*']"],
        ["exchange", "the broker's own", "the queue feeds"],
        ["exchange type", "direct", "the queue feeds"],
        ["routing key", "feeds", "the queue feeds"],
        ["priority", "3", "task_routes['feed.*']"],
    ]


def test_options_are_tried_in_place_of_the_entrys_and_nothing_is_changed(
    app: Celery, client: redis.Redis, broker: redis.Redis
) -> None:
    Entry("import", "feed.read", FAR, options={"queue": "usa", "routing_key": "usa.news"}, app=app).save()
    before = client.hgetall("redbeat:import")
    done = call(app, "route", "import", "--routing-key", "usa.weather", "--priority", "9", "--json")
    found = json.loads(done.stdout)
    assert (found["queues"], found["exchange"], found["exchange_type"]) == (
        ["usa", "weather"],
        "news",
        "topic",
    )
    assert (found["rules"]["routing_key"], found["priority"]) == ("the option routing_key", 9)
    assert (
        "goes to the queues usa and weather."
        in call(app, "route", "import", "--routing-key", "usa.weather").stdout
    )
    assert client.hgetall("redbeat:import") == before
    assert broker.keys() == []


def test_a_task_is_taken_by_its_name(app: Celery) -> None:
    assert "plain goes to the queue celery." in call(app, "route", "plain").stdout
    done = call(app, "route", "feed.raed")
    assert "feed.raed goes to the queue feeds." in done.stdout
    assert done.stderr == (
        "There is no such entry, and the application has no such task: it is taken for one that is sent by "
        "its name. Did you mean feed.read?\n"
    )


@pytest.mark.parametrize(
    ("queue", "words"),
    [
        ("everybody", "plain goes to everybody who listens to the exchange everybody."),
        ("pdf", "plain goes to the headers exchange formats, which goes by the message's headers."),
    ],
)
def test_exchanges_that_go_by_no_routing_key_are_told_as_such(app: Celery, queue: str, words: str) -> None:
    app.conf.task_queues = [
        *QUEUES,
        Broadcast("everybody"),
        Queue("pdf", Exchange("formats", type="headers")),
    ]
    assert words in call(app, "route", "plain", "--queue", queue).stdout


def test_an_exchange_that_nothing_is_bound_to_is_told(app: Celery) -> None:
    done = call(
        app, "route", "plain", "--exchange", "news", "--exchange-type", "topic", "--routing-key", "x.y"
    )
    assert (
        "the topic exchange news; the application knows no queue that is bound there with 'x.y'."
        in done.stdout
    )


def broken_route(name: str, *rest: Any, **more: Any) -> Any:
    raise KeyError("boom")


@pytest.mark.parametrize(
    ("settings", "arguments", "code", "sentence"),
    [
        ({"task_create_missing_queues": False}, ["plain", "--queue", "feds"], 78, "Did you mean feeds?"),
        (
            {"task_routes": (broken_route,)},
            ["plain"],
            78,
            "routes don't know where plain goes: KeyError('boom')",
        ),
        ({}, ["broken"], 64, "broken can't be used: "),
    ],
)
def test_what_is_wrong_is_told_in_one_sentence(
    make_app: MakeApp,
    client: redis.Redis,
    settings: dict[str, Any],
    arguments: list[str],
    code: int,
    sentence: str,
) -> None:
    app = make_app(task_queues=QUEUES, **settings)
    write_raw(client, "broken", "{oops", score=4e9)
    done = call(app, "route", *arguments)
    assert (done.exit_code, done.stdout) == (code, "")
    assert sentence in done.stderr
    assert "Traceback" not in done.output


def test_without_an_application_there_are_no_routes(app: Celery, server: Server) -> None:
    done = call(app, "--url", server.url(1), "route", "plain")
    assert done.exit_code == 64
    assert (
        "route shows the application's routes, and needs its tasks: call it as celery -A APP redbeat route"
        in done.stderr
    )


def test_a_mistyped_queue_is_refused_by_everything_that_saves(make_app: MakeApp, client: redis.Redis) -> None:
    app = make_app(task_queues=QUEUES, task_create_missing_queues=False)
    sentence = (
        r"options: queue: there is no queue 'feds' in task_queues, and task_create_missing_queues is off\. "
        r"Did you mean feeds\?"
    )
    with pytest.raises(EntryError, match=sentence):
        Entry("a", "plain", FAR, options={"queue": "feds"}, app=app).save()
    with pytest.raises(EntryError, match=sentence):
        Entry.save_many([Entry("a", "plain", FAR, options={"queue": "feds"}, app=app)])
    with pytest.raises(FileError, match=sentence):
        apply(app, "entries: {a: {task: plain, schedule: 60, options: {queue: feds}}}")
    done = call(app, "add", "a", "plain", "--every", "60", "--queue", "feds")
    assert (done.exit_code, "Did you mean feeds?" in done.stderr) == (64, True)
    assert client.zcard(SCHEDULE) == 0
    Entry("a", "plain", FAR, options={"queue": "feeds"}, app=app).save()
    assert call(app, "set", "a", "--queue", "feds").exit_code == 64
    assert Entry.get("a", app).options == {"queue": "feeds"}


def test_a_task_that_the_application_has_not_is_told_when_it_is_added(app: Celery) -> None:
    done = call(app, "add", "a", "feed.raed", "--every", "60")
    assert (done.exit_code, done.stderr) == (
        0,
        "The application has no task 'feed.raed'. Did you mean feed.read?\n",
    )
    assert call(app, "add", "b", "feed.read", "--every", "60").stderr == ""


def test_who_knows_no_queues_takes_any(make_app: MakeApp) -> None:
    assert Entry("a", "plain", FAR, options={"queue": "feds"}, app=make_app()).save()


@pytest.mark.parametrize("way", ["python", "json", "shell"])
def test_the_same_options_come_to_the_same(app: Celery, client: redis.Redis, way: str) -> None:
    options = {
        "queue": "usa",
        "exchange": "news",
        "exchange_type": "topic",
        "routing_key": "usa.x",
        "priority": 4,
    }
    if way == "python":
        Entry("a", "plain", FAR, options=options, app=app).save()
    elif way == "json":
        write_raw(client, "a", task="plain", options=options, score=4e9)
    else:
        given = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        assert call(app, "add", "a", "plain", "--every", str(FAR), *given).exit_code == 0
    assert Entry.get("a", app).options == options
    found = json.loads(call(app, "route", "a", "--json").stdout)
    assert (found["queues"], found["priority"]) == (["usa"], 4)
