"""Routes of messages: where Celery publishes, by which rule, and which queues are reached."""

from __future__ import annotations

import re
from contextlib import nullcontext
from copy import deepcopy
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from kombu import Exchange, Queue, binding
from kombu.common import Broadcast

from redbeat.diagnostics.routes import find_route
from redbeat.entries.saving import find_queue_problem
from redbeat.errors import ConfigurationError

MEDIA = Exchange("media", type="direct")
NEWS = Exchange("news", type="topic")
QUEUES = [
    Queue("celery", Exchange("celery"), routing_key="celery"),
    Queue("feed_tasks", routing_key="feed.#"),
    Queue("regular_tasks", Exchange("regular", type="topic"), routing_key="task.#"),
    Queue("image_tasks", Exchange("mediatasks", type="direct"), routing_key="image.compress"),
    Queue("videos", MEDIA, routing_key="media.video"),
    Queue("usa_news", NEWS, routing_key="usa.news", alias="usa"),
    Queue("fan", Exchange("fan", type="fanout")),
    Queue("by-headers", Exchange("heads", type="headers")),
]
#: a task may say itself how it is sent, though Celery advises against some of it
pytestmark = pytest.mark.filterwarnings(r"ignore:\s*The '\w+' task attribute is deprecated")


class MyRouter:
    """As in Celery's guide."""

    def route_for_task(self, task: str, args: Any = None, kwargs: Any = None) -> Any:
        if task == "video.compress":
            return {"queue": "videos", "routing_key": "video.compress"}
        return None


def route_task(name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **kw: Any) -> Any:
    if name == "myapp.tasks.compress_video":
        return {"exchange": "video", "exchange_type": "topic", "routing_key": "video.compress"}
    return None


class Published(BaseException):
    """What would have been published."""

    def __init__(self, **options: Any) -> None:
        self.options = options


class Producer:
    connection = SimpleNamespace(_reraise_as_library_errors=nullcontext)

    def publish(self, _body: Any, **options: Any) -> None:
        raise Published(**options)


def made_app(**settings: Any) -> Celery:
    app = Celery("test", broker="memory://", set_as_current=False)
    app.conf.update(deepcopy({"task_queues": QUEUES, **settings}))  # Celery gives queues defaults of the app

    def run() -> None:
        """Never runs here."""

    app.task(name="plain", shared=False)(run)
    app.task(name="with_queue", queue="videos", shared=False)(run)
    app.task(name="with_priority", priority=3, routing_key="task.x", exchange="regular", shared=False)(run)
    return app


def published(app: Celery, task: str, options: dict[str, Any]) -> tuple[Any, ...]:
    """The queue that is declared, exchange, routing key and priority of a real call."""
    known = app.tasks.get(task)
    send = known.apply_async if known is not None else partial(app.send_task, task)
    with pytest.raises(Published) as sent:
        send(producer=Producer(), **options)
    said = sent.value.options
    declared = said.get("declare") or []
    exchange = getattr(said["exchange"], "name", said["exchange"])
    return (declared[0].name if declared else None, exchange, said["routing_key"], said.get("priority"))


GLOB = {"feed.tasks.*": {"queue": "feed_tasks"}, re.compile(r"(video|image)\.tasks\..*"): "image_tasks"}
#: rules that name a queue or an exchange
DEFAULT, OPTION, EXCHANGE = "task_default_queue", "the option queue", "the option exchange"
ATTRIBUTE = "the attribute queue of the task"
MINE = f"task_routes, {__name__}"
#: task, options, settings; and the rule that names the queue or, without one, the exchange
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "default": ("plain", {}, {}, DEFAULT),
    "glob": ("feed.tasks.x", {}, {"task_routes": GLOB}, "task_routes['feed.tasks.*']"),
    "regular expression": ("video.tasks.y", {}, {"task_routes": GLOB}, "task_routes[re.compile("),
    "dotted name": ("video.compress", {}, {"task_routes": f"{__name__}.MyRouter"}, f"{MINE}.MyRouter"),
    "function": ("myapp.tasks.compress_video", {}, {"task_routes": (route_task,)}, f"{MINE}.route_task"),
    "option over route": ("feed.tasks.x", {"queue": "videos"}, {"task_routes": GLOB}, OPTION),
    "attribute over route": ("with_queue", {}, {"task_routes": {"with_queue": "feed_tasks"}}, ATTRIBUTE),
    "topic with a key": ("plain", {"queue": "usa_news", "routing_key": "usa.weather"}, {}, OPTION),
    "exchange and key": ("plain", {"exchange": "media", "routing_key": "media.video"}, {}, EXCHANGE),
    "routing key only": ("plain", {"routing_key": "a.b"}, {}, DEFAULT),
    "fanout": ("plain", {"queue": "fan"}, {}, OPTION),
    "attributes of an exchange": ("with_priority", {}, {}, "the attribute exchange of the task"),
    "priority": ("plain", {"priority": 7}, {}, DEFAULT),
    "default exchange": (
        "plain",
        {},
        {
            "task_queues": None,
            "task_default_queue": "q",
            "task_default_exchange": "tasks",
            "task_default_exchange_type": "topic",
            "task_default_routing_key": "tasks.default",
        },
        DEFAULT,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_route_is_where_celery_publishes(case: str) -> None:
    task, options, settings, rule = CASES[case]
    app = made_app(**settings)
    route = find_route(app, task, [], {}, options)
    told = (route.declared, route.exchange, route.routing_key, route.priority)
    assert told == published(app, task, options)
    assert route.rules["queue" if "queue" in route.rules else "exchange"].startswith(rule)


@pytest.mark.parametrize(
    ("options", "queues"),
    [
        ({}, ("celery",)),
        ({"exchange": "media", "routing_key": "media.video"}, ("videos",)),
        ({"exchange": "regular", "exchange_type": "topic", "routing_key": "task.a.b"}, ("regular_tasks",)),
        ({"exchange": "several", "exchange_type": "topic", "routing_key": "two.x"}, ("several", "star")),
        ({"queue": "fan"}, ("fan",)),
        ({"queue": "by-headers"}, ()),
        ({"queue": "everybody"}, ()),
    ],
)
def test_route_reaches_the_bound_queues(options: dict[str, Any], queues: tuple[str, ...]) -> None:
    more = Exchange("several", type="topic")
    several = Queue("several", [binding(more, routing_key=key) for key in ("one", "two.#")])
    queues_ = [*QUEUES, several, Queue("star", more, routing_key="*.x"), Broadcast("everybody")]
    app = made_app(task_queues=queues_)
    assert find_route(app, "plain", [], {}, options).queues == queues


def test_queue_made_by_a_router_is_reached() -> None:
    own = Queue("own", Exchange("own", type="topic"), routing_key="own.#")
    app = made_app(task_routes={"plain": {"queue": own, "routing_key": "own.x"}})
    assert find_route(app, "plain", [], {}, {}).queues == ("own",)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "no queue 'celery' in task_queues"),
        ({"task_default_queue": "feds"}, r"no queue 'feds' in task_queues.* Did you mean feeds\?"),
        ({"task_routes": [lambda *args, said={"queue": "feds"}, **kw: said]}, "no queue 'feds'"),
    ],
)
def test_missing_queue_is_refused_with_its_name(settings: dict[str, Any], sentence: str) -> None:
    app = made_app(task_queues=[Queue("feeds")], task_create_missing_queues=False, **settings)
    with pytest.raises(ConfigurationError, match=sentence):
        find_route(app, "plain", [], {}, {})


def test_alias_of_a_queue_is_known() -> None:
    app = made_app(task_create_missing_queues=False)
    assert not find_queue_problem(app, {"queue": "usa"})
