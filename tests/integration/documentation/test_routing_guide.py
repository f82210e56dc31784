"""Examples of Celery's routing guide as entries: each message is in its queues alone; a walk on RabbitMQ."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu import Exchange, Queue, binding

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


MEDIA = Exchange("media", type="direct")


NEWS = Exchange("news", type="topic")


ROUTING = (ROOT / "docs" / "routing.rst").read_text("utf-8")


class MyRouter:
    """The class of the guide."""

    def route_for_task(self, task: str, args: Any = None, kwargs: Any = None) -> Any:
        if task == "video.compress":
            return {"queue": "video", "routing_key": "video.compress"}
        return None


def route_task(name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **kw: Any) -> Any:
    """The function of the guide."""
    if name == "myapp.tasks.compress_video":
        return {"exchange": "video", "exchange_type": "topic", "routing_key": "video.compress"}
    return None


def run() -> None:
    """Never runs here."""


@dataclass
class Example:
    """An entry of an app, and the queues that get its message.

    Attributes:
        not_on_redis: kombu has no such exchange there.
    """

    task: str
    settings: dict[str, Any]
    queues: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)
    attributes: dict[str, Any] | None = None
    not_on_redis: bool = False


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


MEDIATASKS = {
    "task_queues": (
        Queue("feed_tasks", routing_key="feed.#"),
        Queue("regular_tasks", routing_key="task.#"),
        Queue("image_tasks", exchange=Exchange("mediatasks", type="direct"), routing_key="image.compress"),
    ),
    "task_default_queue": "regular_tasks",
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


GLOBS = {
    "task_routes": {"feed.tasks.*": {"queue": "feeds"}, re.compile(r"(video|image)\.tasks\..*"): "media"}
}


OLD_DICTIONARY = {
    "default": {"exchange": "default", "binding_key": "default"},
    "videos": {"exchange": "media", "exchange_type": "topic", "binding_key": "media.video.#"},
    "images": {"exchange": "media", "exchange_type": "topic", "binding_key": "media.image.#"},
}


EXAMPLES: dict[str, Example] = {
    # automatic routing
    "automatic": Example(
        "feed.tasks.import_feed", {"task_routes": {"feed.tasks.import_feed": {"queue": "feeds"}}}, ("feeds",)
    ),
    "automatic, default": Example("other", {"task_routes": {"feed.tasks.import_feed": "feeds"}}, ("celery",)),
    "glob": Example("feed.tasks.x", GLOBS, ("feeds",)),
    "regular expression": Example("image.tasks.resize", GLOBS, ("media",)),
    "pairs in order": Example(
        "feed.tasks.import_feed",
        {"task_routes": ([("feed.tasks.import_feed", "first"), ("feed.tasks.*", "second")],)},
        ("first",),
    ),
    "default queue renamed": Example("x", {"task_default_queue": "default"}, ("default",)),
    # manual routing
    "feed_tasks": Example(
        "feeds.tasks.import_feed",
        {
            **FEEDS,
            "task_routes": {"feeds.tasks.import_feed": {"queue": "feed_tasks", "routing_key": "feed.import"}},
        },
        ("feed_tasks",),
    ),
    "default by its key": Example("other", FEEDS, ("default",)),
    "option of the call": Example(
        "x", FEEDS, ("feed_tasks",), {"queue": "feed_tasks", "routing_key": "feed.articles"}
    ),
    "regular_tasks": Example("x", MEDIATASKS, ("regular_tasks",)),
    "image_tasks": Example(
        "x", MEDIATASKS, ("image_tasks",), {"exchange": "mediatasks", "routing_key": "image.compress"}
    ),
    "image_tasks by a route": Example(
        "image.compress",
        {
            **MEDIATASKS,
            "task_routes": {"image.compress": {"queue": "image_tasks", "routing_key": "image.compress"}},
        },
        ("image_tasks",),
    ),
    "missing queue is made": Example("x", {}, ("brand-new",), {"queue": "brand-new"}),
    # exchange types
    "direct": Example("x", VIDEO, ("image",), {"exchange": "media", "routing_key": "media.image"}),
    **{
        f"topic {key}": Example(
            "x", TOPICS, queues, {"exchange": "news", "exchange_type": "topic", "routing_key": key}
        )
        for key, queues in {
            "usa.news": ("usa", "all-news"),
            "usa.weather": ("usa", "weather", "all-news"),
            "norway.news": ("norway", "all-news"),
            "norway.weather": ("norway", "weather", "all-news"),
        }.items()
    },
    "fanout": Example(
        "x",
        {
            "task_queues": (
                Queue("one", Exchange("fan", type="fanout")),
                Queue("two", Exchange("fan", type="fanout")),
            )
        },
        ("one", "two"),
        {"queue": "one"},
        not_on_redis=True,  # there it is PUBLISH, for those that listen
    ),
    "headers": Example(
        "x",
        {
            "task_queues": (
                Queue(
                    "pdf",
                    Exchange("formats", type="headers"),
                    binding_arguments={"format": "pdf", "x-match": "all"},
                ),
                Queue(
                    "png",
                    Exchange("formats", type="headers"),
                    binding_arguments={"format": "png", "x-match": "all"},
                ),
            )
        },
        ("png",),
        {"queue": "pdf", "headers": {"format": "png"}},
        not_on_redis=True,
    ),
    "several bindings": Example(
        "x",
        {
            "task_queues": (
                Queue("several", [binding(MEDIA, routing_key=key) for key in ("one", "two")]),
                Queue("other", MEDIA, routing_key="three"),
            )
        },
        ("several",),
        {"exchange": "media", "routing_key": "two"},
    ),
    # routers
    "MyRouter": Example("video.compress", {**VIDEO, "task_routes": (MyRouter(),)}, ("video",)),
    "MyRouter by its name": Example(
        "video.compress", {**VIDEO, "task_routes": (f"{__name__}.MyRouter",)}, ("video",)
    ),
    "MyRouter has no say": Example("other", {**VIDEO, "task_routes": (MyRouter(),)}, ("celery",)),
    "function": Example(
        "myapp.tasks.compress_video", {**VIDEO, "task_routes": (route_task,)}, ("compressed",)
    ),
    "two routers": Example(
        "video.compress", {**VIDEO, "task_routes": [{"feed.*": "feeds"}, MyRouter()]}, ("video",)
    ),
    # what decides
    "option over router": Example(
        "video.compress", {**VIDEO, "task_routes": (MyRouter(),)}, ("image",), {"queue": "image"}
    ),
    "attribute of the task": Example("own", VIDEO, ("video",), attributes={"queue": "video"}),
    "option over attribute": Example("own", VIDEO, ("image",), {"queue": "image"}, {"queue": "video"}),
    # settings
    "old dictionary": Example(
        "x",
        {
            "task_queues": OLD_DICTIONARY,
            "task_default_queue": "default",
            "task_default_exchange_type": "direct",
        },
        ("videos",),
        {"queue": "videos", "routing_key": "media.video.720p"},
    ),
    "quorum queue": Example(
        "x",
        {"task_queues": (Queue("quorum", queue_arguments={"x-queue-type": "quorum"}),)},
        ("quorum",),
        {"queue": "quorum"},
    ),
}


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


@pytest.mark.few_cases(24)
@pytest.mark.parametrize("name", EXAMPLES)
def test_message_is_in_its_queues_and_no_other(
    make_app: MakeApp, make_scheduler: MakeScheduler, broker_url: str, name: str
) -> None:
    example = EXAMPLES[name]
    if example.not_on_redis and broker_url.startswith("redis"):
        pytest.skip("Redis has no such exchange")
    app = make_app(broker_url=broker_url, **example.settings)
    if example.attributes is not None:
        app.task(name=example.task, shared=False, **example.attributes)(run)
    with app.connection_for_write() as connection:
        for queue in list(app.amqp.queues.values()):  # workers have been there
            queue(connection.default_channel).declare()
    RedBeatSchedulerEntry("entry", example.task, FAR, options=example.options, app=app).save()
    make_due(app, "entry")
    make_scheduler(app).tick()
    everywhere = sorted({*app.amqp.queues, *example.queues, "celery"})
    assert found_in(app, everywhere) == dict.fromkeys(example.queues, 1)
    route = find_route(app, example.task, [], {}, example.options)
    assert route.exchange_type == "headers" or set(route.queues) == set(example.queues)


def test_settings_of_celery_3_route_as_the_new_ones(
    server: Server, make_scheduler: MakeScheduler, broker_url: str
) -> None:
    app = Celery("old", set_as_current=False)
    app.config_from_object(
        {
            "BROKER_URL": broker_url,
            "CELERY_DEFAULT_QUEUE": "default",
            "CELERY_QUEUES": (
                Queue("default", Exchange("default"), routing_key="default"),
                Queue("feeds", Exchange("feeds"), routing_key="feed"),
            ),
            "CELERY_ROUTES": {"feed.*": {"queue": "feeds"}},
            "REDBEAT_REDIS_URL": server.url(1),
        }
    )
    for name, task in (("one", "feed.read"), ("two", "other")):
        RedBeatSchedulerEntry(name, task, FAR, app=app).save()
    make_due(app, "one", "two")
    make_scheduler(app).tick()
    assert found_in(app, ["default", "feeds", "celery"]) == {"default": 1, "feeds": 1}


def test_missing_queue_is_declared_as_celery_does_it(
    make_app: MakeApp, make_scheduler: MakeScheduler, broker_url: str
) -> None:
    app = make_app(broker_url=broker_url, **TOPICS)
    options = {"queue": "usa", "routing_key": "usa.news"}
    RedBeatSchedulerEntry("entry", "x", FAR, options=options, app=app).save()
    make_due(app, "entry")
    make_scheduler(app).tick()
    assert found_in(app, ["celery", "usa", "weather", "all-news"]) == {"usa": 1}


@pytest.mark.parametrize("steps", [[0, 3, 6, 9], list(range(10))], ids=["four steps", "ten steps"])
def test_more_urgent_message_is_taken_first(
    make_app: MakeApp, make_scheduler: MakeScheduler, broker_url: str, steps: list[int]
) -> None:
    options: dict[str, Any] = {"task_queues": (Queue("celery", max_priority=10),)}
    if broker_url.startswith("redis"):
        options["broker_transport_options"] = {"priority_steps": steps, "queue_order_strategy": "priority"}
    app = make_app(broker_url=broker_url, **options)
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
