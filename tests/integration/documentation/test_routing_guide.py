"""Examples of Celery's routing guide as entries: each message is in its queues alone; a walk on RabbitMQ."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu import Exchange, Queue

from redbeat import RedBeatSchedulerEntry
from redbeat.diagnostics.routes import find_route
from tests.conftest import MakeApp
from tests.integration.conftest import MakeScheduler
from tests.support.apps import celery_beat
from tests.support.command_line import run as run_command
from tests.support.documents import ROOT
from tests.support.polling import eventually
from tests.support.rabbitmq import RabbitMQ
from tests.support.servers import Server
from tests.support.ticks import make_due, take_messages

pytestmark = [
    # a task may say itself how it is sent, though Celery advises against some of it
    pytest.mark.filterwarnings(r"ignore:\s*The '\w+' task attribute is deprecated"),
]


FAR = 10**10


NEWS = Exchange("news", type="topic")


ROUTING = (ROOT / "docs" / "routing.rst").read_text("utf-8")


class MyRouter:
    """The class of the guide."""

    def route_for_task(self, task: str, args: Any = None, kwargs: Any = None) -> Any:
        return {"queue": "video", "routing_key": "video.compress"} if task == "video.compress" else None


def route_task(name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **kw: Any) -> Any:
    """The function of the guide."""
    if name == "myapp.tasks.compress_video":
        return {"exchange": "video", "exchange_type": "topic", "routing_key": "video.compress"}
    return None


def run() -> None:
    """Never runs here."""


FEEDS = {
    "task_default_queue": "default",
    "task_queues": (
        Queue("default", routing_key="task.#"),
        Queue("feed_tasks", routing_key="feed.#"),
    ),
    "task_default_exchange": "tasks",
    "task_default_exchange_type": "topic",
    "task_default_routing_key": "task.default",
}


TOPICS = {
    "task_queues": (
        Queue("celery", Exchange("celery"), routing_key="celery"),
        Queue("usa", NEWS, routing_key="usa.#"),
        Queue("weather", NEWS, routing_key="*.weather"),
        Queue("all-news", NEWS, routing_key="#"),
        Queue("norway", NEWS, routing_key="norway.#"),
    )
}


VIDEO = {
    "task_queues": (
        Queue("celery", Exchange("celery"), routing_key="celery"),
        Queue("video", Exchange("media", type="direct"), routing_key="media.video"),
        Queue("image", Exchange("media", type="direct"), routing_key="media.image"),
        Queue("compressed", Exchange("video", type="topic"), routing_key="video.#"),
    )
}


ROUTED = {**VIDEO, "task_routes": (f"{__name__}.MyRouter", route_task)}
GLOBS = {"task_routes": {"feed.*": {"queue": "feeds"}, re.compile(r"(video|image)\.tasks\..*"): "media"}}


OLD_DICTIONARY = {
    "task_queues": {
        "default": {"exchange": "default", "binding_key": "default"},
        "videos": {"exchange": "media", "exchange_type": "topic", "binding_key": "media.video.#"},
        "images": {"exchange": "media", "exchange_type": "topic", "binding_key": "media.image.#"},
    },
    "task_default_queue": "default",
    "task_default_exchange_type": "direct",
}


FORMATS = {
    "task_queues": tuple(
        Queue(kind, Exchange("formats", type="headers"), binding_arguments={"format": kind, "x-match": "all"})
        for kind in ("pdf", "png")
    )
}
TO_NEWS = {"exchange": "news", "exchange_type": "topic"}
#: kombu has no such exchange there; with fanout it is PUBLISH, for those that listen
NOT_ON_REDIS = ("fanout", "headers")
#: example: the entry's task, the settings, its queues, its options, and what its task says itself
EXAMPLES: dict[str, tuple[str, dict[str, Any], tuple[str, ...], dict[str, Any], dict[str, Any]]] = {
    "automatic": ("feed.tasks.x", {"task_routes": {"feed.tasks.x": {"queue": "feeds"}}}, ("feeds",), {}, {}),
    "regular expression": ("image.tasks.resize", GLOBS, ("media",), {}, {}),
    "default by its key": ("other", FEEDS, ("default",), {}, {}),
    "option of the call": ("x", FEEDS, ("feed_tasks",), {"queue": "feed_tasks", "routing_key": "feed.a"}, {}),
    "missing queue is made": ("x", {}, ("brand-new",), {"queue": "brand-new"}, {}),
    "direct": ("x", VIDEO, ("image",), {"exchange": "media", "routing_key": "media.image"}, {}),
    "topic": ("x", TOPICS, ("usa", "weather", "all-news"), {**TO_NEWS, "routing_key": "usa.weather"}, {}),
    "fanout": (
        "x",
        {"task_queues": tuple(Queue(name, Exchange("fan", type="fanout")) for name in ("one", "two"))},
        ("one", "two"),
        {"queue": "one"},
        {},
    ),
    "headers": ("x", FORMATS, ("png",), {"queue": "pdf", "headers": {"format": "png"}}, {}),
    "router": ("video.compress", ROUTED, ("video",), {}, {}),
    "router has no say": ("other", ROUTED, ("celery",), {}, {}),
    "function": ("myapp.tasks.compress_video", ROUTED, ("compressed",), {}, {}),
    "option over router": ("video.compress", ROUTED, ("image",), {"queue": "image"}, {}),
    "attribute of the task": ("own", VIDEO, ("video",), {}, {"queue": "video"}),
    "option over attribute": ("own", VIDEO, ("image",), {"queue": "image"}, {"queue": "video"}),
    "old dictionary": (
        "x", OLD_DICTIONARY, ("videos",), {"queue": "videos", "routing_key": "media.video.720p"}, {},
    ),
    "quorum queue": (
        "x",
        {"task_queues": (Queue("quorum", queue_arguments={"x-queue-type": "quorum"}),)},
        ("quorum",),
        {"queue": "quorum"},
        {},
    ),
}  # fmt: skip


@pytest.fixture(params=["rabbitmq", "redis"])
def broker_url(request: pytest.FixtureRequest, server: Server) -> str:
    if request.param == "redis":
        return server.url(0)
    rabbitmq: RabbitMQ = request.getfixturevalue("rabbitmq")
    return rabbitmq.url()


def found_in(app: Celery, names: list[str]) -> dict[str, int]:
    """Take all messages from those of the queues that there are; return how many were in which."""
    found: dict[str, int] = {}
    for name in names:
        with app.connection_for_read() as connection:
            queue = app.amqp.queues[name](connection.default_channel)
            try:
                queue.queue_declare(passive=True)
            except connection.channel_errors:
                continue
            while queue.get(no_ack=True) is not None:
                found[name] = found.get(name, 0) + 1
    return found


@pytest.mark.few_cases(12)
@pytest.mark.parametrize("name", EXAMPLES)
def test_message_is_in_its_queues_and_no_other(
    make_app: MakeApp, make_scheduler: MakeScheduler, broker_url: str, name: str
) -> None:
    task, settings, queues, options, attributes = EXAMPLES[name]
    if name in NOT_ON_REDIS and broker_url.startswith("redis"):
        pytest.skip("Redis has no such exchange")
    app = make_app(broker_url=broker_url, **settings)
    if attributes:
        app.task(name=task, shared=False, **attributes)(run)
    with app.connection_for_write() as connection:
        for queue in list(app.amqp.queues.values()):  # workers have been there
            queue(connection.default_channel).declare()
    RedBeatSchedulerEntry("entry", task, FAR, options=options, app=app).save()
    make_due(app, "entry")
    make_scheduler(app).tick()
    everywhere = sorted({*app.amqp.queues, *queues, "celery"})
    assert found_in(app, everywhere) == dict.fromkeys(queues, 1)
    route = find_route(app, task, [], {}, options)
    assert route.exchange_type == "headers" or set(route.queues) == set(queues)


def test_more_urgent_message_is_taken_first(
    make_app: MakeApp, make_scheduler: MakeScheduler, broker_url: str
) -> None:
    on_redis = {"priority_steps": list(range(10)), "queue_order_strategy": "priority"}
    options = {"broker_transport_options": on_redis} if broker_url.startswith("redis") else {}
    app = make_app(broker_url=broker_url, task_queues=[Queue("celery", max_priority=10)], **options)
    low, high = (0, 9) if broker_url.startswith("amqp") else (9, 0)  # Redis counts the other way round
    for name, priority in (("low", low), ("high", high)):
        RedBeatSchedulerEntry(name, "x", FAR, options={"priority": priority}, app=app).save()
    make_due(app, "low", "high")
    make_scheduler(app).tick()
    assert [message.entry for message in take_messages(app, "celery")] == ["high", "low"]


def blocks(language: str) -> list[str]:
    """The code blocks of the walk, without their indentation."""
    walk = ROUTING.split("By hand: celery amqp\n")[1].split("Names of Celery 3")[0]
    found = re.findall(rf"\.\. code-block:: {language}\n(?:   :\w+: .*\n)?\n((?:    .*\n|\n)+)", walk)
    return ["\n".join(line[4:] for line in block.splitlines()) for block in found]


def steps() -> list[tuple[str, str]]:
    """Commands, and what the page shows of their output."""
    text = "\n".join(blocks("console"))
    return re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n?)*)", text, re.MULTILINE)


def test_walk_on_rabbitmq_prints_its_page(server: Server, rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    (tmp_path / "proj.py").write_text(blocks("python")[0])
    env = {"BROKER_URL": rabbitmq.url(), "REDIS_URL": server.url(1)}

    def celery(command: str) -> str:
        words = shlex.split(command)
        assert words[0] == "celery"
        done = run_command([sys.executable, "-m", *words], tmp_path, env)
        assert done.returncode == 0, done.stderr
        return done.stdout.replace(f":{rabbitmq.port}//", ":5672//")

    taken = 0
    for command, shown in steps():
        if " beat " in command:  # in the foreground here: the test must end it
            with celery_beat(tmp_path, "proj", env=env) as beat:
                beat.wait_for("Sending due task greet")
                eventually(lambda: "messages:1" in celery("celery -A proj amqp queue.declare testqueue"))
        else:
            output = celery(command)
            for line in filter(None, shown.splitlines()):
                assert line in output, f"{command}: {output}"
                taken += 1
    assert taken > 15
