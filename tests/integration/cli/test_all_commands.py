"""A walk over all commands: what they print, as text and JSON, and how they end when something is wrong."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import redis
from celery import Celery
from syrupy.assertion import SnapshotAssertion

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.cli import redbeat as group
from redbeat.errors import StoreUnavailable
from redbeat.store.store import Store
from redbeat.store.vitals import read_vitals
from tests.conftest import MakeApp
from tests.integration.cli.conftest import commands, fill
from tests.support.command_line import call
from tests.support.hostile import HOSTILE, find_orders
from tests.support.schedule import LOCK, everything
from tests.support.servers import Server
from tests.support.ticks import memory_app

PASSWORD = "s3cret-w0rd"
#: what differs from run to run, in what is shown
VARYING = re.compile(
    r"20(2[4-9]|[3-8]\d)-\d\d-\d\d([T ]\d\d:\d\d(:\d\d)?(\.\d+)?)?(\+00:00)?|127\.0\.0\.1:\d+"
    r"|(?<=  )now(?=  )|\d+(\.\d+)? (ms|s|min|h|d|y)\b( ago\b)?"
    r"|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|rb_[\w-]+"
    r"|/\S*/(?=\w+\.json|monitoring\n)|\b[a-z0-9]{8}  (?=name)|(?<=\()[a-z0-9]{8}(?=\))"
)


def commands_in(group: click.Group, *path: str) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands_in(command, *path, name)
        else:
            yield (*path, name)


def test_walk_calls_every_command(tmp_path: Path) -> None:
    called = [tuple(words) for words in commands(tmp_path)]
    assert [path for path in commands_in(group) if path not in {words[: len(path)] for words in called}] == []


def shape_of(value: Any) -> Any:
    """The names and types in a document; of lists, those of the first."""
    if isinstance(value, dict):
        return {name: shape_of(of_name) for name, of_name in value.items()}
    if isinstance(value, list):
        return [shape_of(one) for one in value[:1]]
    return type(value).__name__


def shown(text: str) -> list[str]:
    """The lines, without what differs from run to run and the widths of columns."""
    words = VARYING.sub("<...>", text)
    return [re.sub(r" {2,}", "  ", re.sub("─+", "───", line)).rstrip() for line in words.splitlines()]


def test_commands_print_the_known_tables_texts_and_shapes(
    app: Celery, client: redis.Redis, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    fill(client)
    printed: dict[str, Any] = {}
    for words in commands(tmp_path):
        if words[-1] == "--help":
            continue
        done = call(app, *words, columns=None if "--json" in words else 120)
        title = " ".join(words).replace(f"{tmp_path}/", "")
        if "--json" in words and done.exit_code in (0, 1, 2) and words[0] != "export":
            documents = [json.loads(line) for line in done.stdout.splitlines()]
            printed[title] = [done.exit_code, shape_of(documents)]
        else:
            lines = shown(done.output.replace(f"{tmp_path}/", ""))
            printed[title] = [done.exit_code, sorted(lines) if words[0] in ("doctor", "purge") else lines]
    assert printed == snapshot


def test_hostile_text_gives_no_orders_in_a_pipe(app: Celery, client: redis.Redis, tmp_path: Path) -> None:
    client.set(LOCK, f"token{HOSTILE}", ex=1000)
    fill(client, HOSTILE)
    for words in commands(tmp_path, HOSTILE):
        done = call(app, *words)
        assert done.exception is None or isinstance(done.exception, SystemExit), (words, done.exception)
        assert find_orders(done.output) == [], words


#: exit codes when Redis is away, refuses the user, has another URL scheme, has no URL; others: 69, 77, 78, 78
CODES: dict[tuple[str, ...], tuple[int, ...]] = {("status",): (3, 3, 78, 78), ("doctor",): (69, 77, 2, 2)}
ASK_NOBODY = {("monitoring",), ("singleton",), ("web",)}


@pytest.mark.parametrize("path", sorted(set(commands_in(group)) - ASK_NOBODY), ids=" ".join)
def test_failure_has_its_exit_code(server: Server, tmp_path: Path, path: tuple[str, ...]) -> None:
    calls = [words for words in commands(tmp_path) if tuple(words[: len(path)]) == path]
    words = next((words for words in calls if "--yes" in words), calls[0])
    codes = []
    for url in (
        f"redis://:{PASSWORD}@127.0.0.1:1/0",
        f"redis://nobody:{PASSWORD}@127.0.0.1:{server.port}/0",
        f"http://:{PASSWORD}@127.0.0.1/0",
        None,
    ):
        app = Celery("test", broker="memory://", set_as_current=False)
        app.conf.update({"redbeat_redis_url": url} if url else {})
        done = call(app, *words)
        codes.append(done.exit_code)
        assert PASSWORD not in done.output
        assert "Traceback" not in done.output
    assert tuple(codes) == CODES.get(path, (69, 77, 78, 78))


#: invalid calls, and what their errors name
USAGE = {
    **dict.fromkeys(
        (
            *("show reprot", "set reprot --jitter 5", "pause reprot", "resume report reprot", "next reprot"),
            *("trigger reprot", "delete report reprot --yes", "why reprot", "runs reprot", "rerun reprot"),
        ),
        "There is no entry 'reprot'.*Did you mean report",
    ),
    "pause": "--match",
    "pause report --until 2020-01-01": "--until.*is in the past",
    "pause report --until 2020-01-01 --dry-run": "--until.*is in the past",
    "add x echo": "--every, --cron, --at, --rrule, --solar",
    "add x echo --every 5 --cron @daily": "--every and --cron",
    "add x echo --cron '*/5 9-17 * 1,13 *'": "'13'",
    "add x echo --rrule FREQ=DAILY;BYHUOR=9": "BYHUOR.*Did you mean BYHOUR",
    "add x echo --every 5 --args [1,": "--args.*column 4",
    "add x echo --every 5 --timezone Europe/Berlni": "Did you mean Europe/Berlin",
    "add x echo --every 5 --jitter 5 --expires-after 3": "expires_after",
    "add x echo --every 5 --exclude nope": "calendar 'nope'",
    "add :schedule echo --every 5": "that key is RedBeat's own",
    "add report echo --every 5": "'report' already",
    "set report --jitter 5 --unset jitter": "--jitter can't be both set and unset",
    "list --limit -1": "is not in the range",
    "status --late-after soon": "--late-after.*soon is not a number of seconds",
    "next report --match r*": "Give either a NAME or --match",
    "backfill report": "Missing option '--from'",
    "backfill report --from 2024-02-01 --to 2024-01-01": "--to: must not be before the beginning",
    "token add x": "Missing option '--right'. Choose from: read, pause",
    "lst": "No such command 'lst'",
    "list --url redis://localhost": "--url belongs before the command: .* --url ... list",
    "--url URL trigger report": "celery -A APP redbeat trigger, without --url",
    "--url URL backfill report --from 2024-01-01": "celery -A APP redbeat backfill, without --url",
    "--url URL rerun report": "celery -A APP redbeat rerun, without --url",
}


@pytest.mark.parametrize("command", USAGE)
def test_invalid_call_names_its_fault_and_changes_nothing(
    app: Celery, client: redis.Redis, server: Server, command: str
) -> None:
    Entry("report", "echo", 86_400, app=app).save()
    before = everything(client)
    done = call(app, *shlex.split(command.replace("URL", server.url(1))))
    assert (done.exit_code, done.stdout) == (66 if "reprot" in command else 64, ""), done.output
    assert re.search(USAGE[command], done.stderr.splitlines()[-1]), done.stderr
    assert everything(client) == before


class Raises(redis.CredentialProvider):
    """A vault with a secret, which cannot be asked."""

    error: type[BaseException] | None = RuntimeError

    def get_credentials(self) -> Any:
        if self.error is not None:
            raise self.error(f"the vault has {PASSWORD}")
        return ("default", "")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"password": [PASSWORD]}, "username and password are strings"),
        ({"credential_provider": PASSWORD}, "got this text"),
        ({"encoding": "nope"}, "unknown encoding: nope"),
    ],
)
def test_invalid_redis_option_ends_with_78(server: Server, options: dict[str, Any], words: str) -> None:
    app = memory_app(redbeat_redis_url=server.url(1), redbeat_redis_options=options)
    for command, code in ((["list"], 78), (["status"], 78), (["doctor"], 2)):
        done = call(app, *command)
        assert (done.exit_code, words in done.output, PASSWORD in done.output) == (code, True, False)


@pytest.mark.parametrize("error", [TimeoutError, SystemExit])
def test_credential_provider_that_raises_counts_as_unreachable(
    server: Server, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """So that ``retry_period`` waits for it, and a running beat does not end."""
    monkeypatch.setattr(Raises, "error", None)
    options = {"credential_provider": Raises()}
    app = memory_app(redbeat_redis_url=server.url(1), redbeat_redis_options=options)
    assert read_vitals(Store(app), Store(app).parts)[0].token == ""
    monkeypatch.setattr(Raises, "error", error)
    Store(app).client.connection_pool.disconnect()
    with pytest.raises(
        StoreUnavailable, match=f"its credential provider Raises raised {error.__name__}"
    ) as told:
        read_vitals(Store(app), Store(app).parts)
    assert PASSWORD not in str(told.value)


@pytest.mark.parametrize("place", ["shards", "cluster"])
def test_commands_work_over_shards_and_on_a_cluster(
    make_app: MakeApp, request: pytest.FixtureRequest, place: str
) -> None:
    if place == "shards":
        app = make_app(redbeat_shards=4)
    else:
        url = request.getfixturevalue("cluster").url()
        app = memory_app(redbeat_redis_url=url, redbeat_redis_options={"cluster": True})
    Entry.save_many([Entry(f"e{number}", "echo", 60, app=app) for number in range(30)])
    for command, says in {
        "list --match e1*": "e17",
        "count": "30",
        "show e3": "echo",
        "why e3": "e3",
        "next": "e0",
        "timeline": "e0",
        "runs": "",
        "pause e1 e2": "Paused e2",
        "set e4 --every 5m": "e4",
        "rerun --all-failed --since 1d --dry-run": "",
        "later list": "no stored messages",
        "purge --yes": "nothing to remove",
        "delete e5 --yes": "Deleted 1",
    }.items():
        done = call(app, *shlex.split(command))
        assert (done.exit_code, says in done.output) == (0, True), (command, done.output)
