"""Every Redis command about the schedule stands in ``store``; the rest of RedBeat sees rows and times."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

import redbeat

PACKAGE = Path(redbeat.__file__).parent
#: these rooms send commands, or make the clients that do
ROOMS = ("store", "connection")

#: what Python's own objects and ours have, too, besides a client
EVERYDAY = {
    *(
        "append", "close", "command", "copy", "delete", "digest", "dump", "echo", "exists", "get", "info",
        "keys",
    ),
    *("reset", "save", "scan", "set", "sort", "time", "unlink", "wait"),
}  # fmt: skip
COMMANDS = {name for name in dir(redis.Redis) if not name.startswith("_")} - EVERYDAY
#: what makes a client, and how one is reached
FACTORIES = {"get_redis", "get_hasty_redis", "build_client"}
WAYS = {"client", "redbeat_redis", "ask", "translating"}

#: module to what it may use all the same, and why
EXCEPTIONS = {
    "broker/connection.py": {"publish"},  # a message, to RabbitMQ
    "broker/drafts.py": {"publish"},  # a message, to RabbitMQ
    "broker/outbox.py": {"pipeline", "ping"},  # kombu's own client, of the broker
    "broker/producer.py": {"publish"},  # a message, by kombu
    "checks.py": {"config_get"},  # the caller's own client, as in celery-redbeat 2.4.3
    "later/producer.py": {"publish"},  # what isn't the task's message, by kombu
    "later/sending.py": {"publish"},  # a message, by kombu
    "telemetry/endpoint/connections.py": {"shutdown"},  # a client of the endpoint
    "telemetry/endpoint/exchange.py": {"shutdown"},  # a client of the endpoint
    "telemetry/endpoint/listener.py": {"shutdown"},  # the endpoint itself
    "testing/servers.py": {"flushall", "get_redis"},  # a server of a test's own
    "web/access/authentication.py": {"client"},  # a browser's address
    "web/api/resources.py": {"client"},  # a program's address
    "web/pages/entry_form.py": {"json"},  # a form's text
    "web/threads.py": {"get_hasty_redis"},  # pages have a client of their own, which gives up soon
    "web/visit.py": {"client"},  # a browser's address
    "schedulers.py": {"get_redis"},  # celery-redbeat 2.x has it there, so it can be imported
}


def uses_of_redis(source: str) -> Iterator[str]:
    """What a module has of clients, commands and scripts."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            module = getattr(node, "module", None) or ""
            names = {name for alias in node.names for name in (alias.name, f"{module}.{alias.name}")}
            yield from names & FACTORIES
            if any(name.startswith("redbeat.store.scripts") for name in names):
                yield "redbeat.store.scripts"
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield from {node.attr} & WAYS
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield from {node.func.attr} & COMMANDS


MODULES = {
    path.relative_to(PACKAGE).as_posix(): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.relative_to(PACKAGE).parts[0] not in ROOMS
}


def test_a_module_outside_the_store_sends_no_command() -> None:
    found = {name: set(uses_of_redis(path.read_text("utf-8"))) for name, path in MODULES.items()}
    more = {name: uses - EXCEPTIONS.get(name, set()) for name, uses in found.items()}
    assert not {name: uses for name, uses in more.items() if uses}, "a class in redbeat/store should do that"


@pytest.mark.parametrize("module", EXCEPTIONS)
def test_an_exception_is_still_needed(module: str) -> None:
    assert set(uses_of_redis(MODULES[module].read_text("utf-8"))) >= EXCEPTIONS[module]


@pytest.mark.parametrize(
    "source",
    [
        "store.client.get(key)", "found = self._store.client", "with store.translating(): pass",
        "store.ask(lambda client: client.get(key))", "app.redbeat_redis.get(key)",
        "from redbeat.connection.client import get_redis", "from redbeat.store.scripts import take_lock",
        "from redbeat.store import scripts as lua", "import redbeat.store.scripts.owners",
        "anything.zadd(key, {member: score})", "anything.evalsha(sha1, 0)",
        "anything.execute_command('TIME')",
    ],
)  # fmt: skip
def test_it_is_noticed_when_a_module_begins_to(source: str) -> None:
    assert list(uses_of_redis(source))
