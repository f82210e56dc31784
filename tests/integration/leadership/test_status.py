"""Who leads, asked from outside: `RedBeatScheduler.leader` and `celery redbeat status`, on real servers."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from click.testing import CliRunner, Result

from redbeat import RedBeatScheduler
from redbeat.cli import redbeat
from redbeat.errors import ConfigurationError, StoreCorrupt, StoreUnavailable
from tests.conftest import MakeApp
from tests.support.apps import celery_beat, celery_command, run_beat, write_app
from tests.support.command_line import installed
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.schedule import LOCK, monitoring, server_now, write_raw
from tests.support.servers import Server
from tests.support.stopwatch import Stopwatch
from tests.support.stored import make_late, store
from tests.support.ticks import leader, memory_app

ROOT = Path(__file__).parents[3]
TICK = "redbeat::tick"
TOKEN_OF_2X = "0123456789abcdef0123456789abcdef"
PASSWORD = "s3cret-w0rd"
Ask = Callable[..., Result]


@pytest.fixture
def server(valkey: Server) -> Server:
    """One kind is enough."""
    return valkey


@pytest.fixture
def ask(make_app: MakeApp) -> Ask:
    """`celery redbeat status` of an app, in this process."""

    def run(*arguments: str, app: Celery | None = None, **settings: Any) -> Result:
        context = SimpleNamespace(app=app or make_app(**settings), no_color=True)
        return CliRunner().invoke(redbeat, ["status", *arguments], obj=context)

    return run


@pytest.fixture
def deaf_port() -> Iterator[int]:
    """A port where connections are taken and nothing is ever answered."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.fixture
def rude_port() -> Iterator[int]:
    """A port where something else than Redis answers."""

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(4096)
            self.request.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield serving.server_address[1]
        serving.shutdown()


# -- leader()


def test_nobody_leads_a_schedule_that_no_beat_has_touched(app: Celery, client: redis.Redis) -> None:
    assert RedBeatScheduler.leader(app) is None
    assert client.dbsize() == 0


def test_the_leader_is_told_by_its_token(
    app: Celery, scheduler: RedBeatScheduler, client: redis.Redis
) -> None:
    found = RedBeatScheduler.leader(app)
    assert (found.host, found.pid, found.token) == (socket.gethostname(), os.getpid(), client.get(LOCK))
    assert found.since.utcoffset() == found.last_tick.utcoffset() == timedelta(0)
    now = datetime.fromtimestamp(server_now(client), timezone.utc)
    assert timedelta(0) <= now - found.last_tick < timedelta(seconds=30)
    assert found.ttl_seconds == pytest.approx(scheduler.lock_timeout, abs=30)
    scheduler.close()
    assert RedBeatScheduler.leader(app) is None


def test_the_leader_of_2x_has_a_token_and_a_time_to_live_only(app: Celery, client: redis.Redis) -> None:
    client.set(LOCK, TOKEN_OF_2X, px=90_000)
    client.set(TICK, "1.5")  # left behind by a beat of ours
    found = RedBeatScheduler.leader(app)
    assert (found.host, found.pid, found.since, found.last_tick) == (None, None, None, None)
    assert found.token == TOKEN_OF_2X
    assert found.ttl_seconds == pytest.approx(90, abs=5)


def test_a_lock_that_was_set_by_hand_never_ends(app: Celery, client: redis.Redis) -> None:
    client.set(LOCK, "somebody")
    found = RedBeatScheduler.leader(app)
    assert (found.token, found.ttl_seconds) == ("somebody", None)


@pytest.mark.parametrize("garbage", ["", "soon", "nan", "1e999", "\udcff"])
def test_a_spoilt_tick_is_not_known(
    app: Celery, scheduler: RedBeatScheduler, client: redis.Redis, garbage: str
) -> None:
    client.set(TICK, garbage.encode("utf-8", "surrogateescape"))
    found = RedBeatScheduler.leader(app)
    assert found.last_tick is None


def test_a_tick_of_another_type_is_not_known(
    app: Celery, scheduler: RedBeatScheduler, client: redis.Redis
) -> None:
    client.delete(TICK)
    client.hset(TICK, "a", "b")
    assert RedBeatScheduler.leader(app).last_tick is None


def test_without_a_lock_nobody_leads(make_app: MakeApp, client: redis.Redis) -> None:
    client.set(LOCK, "left over")
    assert RedBeatScheduler.leader(make_app(redbeat_lock_key=None)) is None


def test_the_leader_is_read_in_one_round_trip_and_nothing_is_written(
    server: Server, app: Celery, scheduler: RedBeatScheduler, client: redis.Redis
) -> None:
    RedBeatScheduler.leader(app)
    before = {key: client.dump(key) for key in client.scan_iter()}
    with monitoring(server) as commands:
        RedBeatScheduler.leader(app)
    asked = [command for command in commands if not command.startswith(("CLIENT", "SELECT", "HELLO"))]
    assert [command.split()[0] for command in asked] == ["EVALSHA"]
    assert {key: client.dump(key) for key in client.scan_iter()} == before


def test_keys_of_another_type_are_named(app: Celery, client: redis.Redis) -> None:
    client.hset(LOCK, "a", "b")
    with pytest.raises(StoreCorrupt, match=re.escape(LOCK)):
        RedBeatScheduler.leader(app)


def test_a_server_that_says_nothing_is_not_waited_for_long(deaf_port: int) -> None:
    app = memory_app(redbeat_redis_url=f"redis://127.0.0.1:{deaf_port}/0")
    with Stopwatch() as watch, pytest.raises(StoreUnavailable):
        RedBeatScheduler.leader(app)
    assert watch.asleep_seconds < 7


def test_a_client_of_the_programs_own_is_asked_and_kept_open(server: Server, client: redis.Redis) -> None:
    client.set(LOCK, "somebody")
    app = memory_app(redbeat_redis_url="redis://127.0.0.1:1/0")
    app.redbeat_redis = client
    assert RedBeatScheduler.leader(app).token == "somebody"
    assert app.redbeat_redis.ping()


# -- celery redbeat status


def test_a_schedule_with_a_leader_and_nothing_due_is_healthy(
    ask: Ask, scheduler: RedBeatScheduler, client: redis.Redis
) -> None:
    done = ask()
    assert done.exit_code == 0, done.output
    lines = dict(re.split(r"(?<=\w) {2,}", line, maxsplit=1) for line in done.output.splitlines())
    assert lines["state"] == "healthy"
    pattern = (
        rf"{re.escape(socket.gethostname())}, process {os.getpid()}, since [\d-]+ [\d:]+ UTC \(\d+ s ago\)"
    )
    assert re.fullmatch(pattern, lines["leader"])
    assert re.fullmatch(r"redbeat::lock ends in \d+ s unless it is renewed", lines["lock"])
    assert re.fullmatch(r"[\d-]+ [\d:]+ UTC \(\d+ s ago\)", lines["last tick"])
    assert lines["backlog"] == "0 due"


def test_no_leader_is_1(ask: Ask, client: redis.Redis) -> None:
    done = ask()
    assert done.exit_code == 1
    assert "no leader: No beat holds the lock redbeat::lock." in done.output


def test_an_old_entry_that_is_due_is_2_and_a_patient_prober_is_content(
    ask: Ask, scheduler: RedBeatScheduler, client: redis.Redis
) -> None:
    now = server_now(client)
    write_raw(client, "old", score=now - 100)
    write_raw(client, "young", score=now - 10)
    write_raw(client, "now", score=0)
    write_raw(client, "never", score=-1)
    write_raw(client, "later", score=now + 100)
    done = ask()
    assert done.exit_code == 2, done.output
    assert "late: The oldest due entry has been waiting for 10" in done.output
    assert "3 due, the oldest since" in done.output
    assert ask("--late-after", "1000").exit_code == 0


def test_a_leader_that_has_not_ticked_for_long_is_2(
    ask: Ask, scheduler: RedBeatScheduler, client: redis.Redis
) -> None:
    client.set(TICK, server_now(client) - 100)
    done = ask()
    assert done.exit_code == 2, done.output
    assert "The leader's last tick was 10" in done.output
    assert ask("--late-after", "1000").exit_code == 0


def test_a_leader_of_2x_is_judged_by_what_is_due_alone(ask: Ask, client: redis.Redis) -> None:
    client.set(LOCK, TOKEN_OF_2X, px=90_000)
    client.set(TICK, "1.5")
    done = ask()
    assert done.exit_code == 0, done.output
    assert TOKEN_OF_2X in done.output
    write_raw(client, "old", score=server_now(client) - 100)
    assert ask().exit_code == 2


def test_disabled_entries_with_old_scores_are_not_late(ask: Ask, client: redis.Redis) -> None:
    client.set(LOCK, TOKEN_OF_2X, px=90_000)
    now = server_now(client)
    for number in range(20):  # celery-redbeat 2.x leaves the score of a disabled entry as it is
        write_raw(client, f"disabled-{number}", score=now - 1000 - number, enabled=False)
    assert ask().exit_code == 0
    assert "0 due" in ask().output
    write_raw(client, "enabled", score=now - 100)
    done = ask()
    assert "late: The oldest due entry has been waiting for 10" in done.output
    assert "1 due, the oldest since" in done.output


@pytest.mark.parametrize("shards", [None, 2])
def test_status_is_blocked_while_the_broker_is_away(
    server: Server, second: Server, ask: Ask, tmp_path: Path, shards: int | None
) -> None:
    settings = {"redbeat_redis_url": server.url(1), "redbeat_shards": shards}
    entry = {"task": "tasks.report", "schedule": 0.5}
    app = memory_app(**settings)
    with Proxy((second.host, second.port)) as proxy:
        broker_url = proxy.url(second.url(0))
        write_app(tmp_path, "module", broker_url, beat_schedule={"often": entry}, **settings)
        with celery_beat(tmp_path, "module"), second.client(db=0) as broker:
            eventually(lambda: broker.llen("celery") > 0)
            eventually(lambda: ask(app=app).exit_code == 0)
            proxy.refuse()
            proxy.drop()
            eventually(lambda: ask(app=app).exit_code == 4)
            found = json.loads(ask("--json", app=app).output)
            assert found["state"] == "blocked"
            assert found["obstacle"] == found["problem"]
            lines = ask(app=app).output.splitlines()
            assert [line for line in lines if line.startswith("broker") and "unreachable" in line]
            proxy.accept()
            eventually(lambda: ask(app=app).exit_code == 0)
            assert "no problem reported" in ask(app=app).output


def test_without_a_lock_only_lateness_counts(ask: Ask, client: redis.Redis) -> None:
    client.set(TICK, "1.5")
    done = ask(redbeat_lock_key=None)
    assert done.exit_code == 0, done.output
    assert "redbeat_lock_key is None" in done.output
    write_raw(client, "old", score=server_now(client) - 100)
    assert ask(redbeat_lock_key=None).exit_code == 2


def test_the_json_is_one_object_with_the_documented_fields(
    ask: Ask, scheduler: RedBeatScheduler, client: redis.Redis
) -> None:
    due = server_now(client) - 100
    write_raw(client, "old", score=due)
    done = ask("--json")
    found = json.loads(done.output)
    assert (done.exit_code, found["state"], found["exit_code"]) == (2, "late", 2)
    assert "waiting" in found["problem"]
    assert (found["backlog"], found["lock_key"]) == (1, LOCK)
    assert datetime.fromisoformat(found["oldest_due"]).timestamp() == pytest.approx(due, abs=1e-3)
    assert found["oldest_due_age_seconds"] == pytest.approx(100, abs=30)
    assert found["leader"].keys() == {"host", "pid", "since", "token", "ttl_seconds"}
    assert found["leader"]["pid"] == os.getpid()
    ages = datetime.fromisoformat(found["now"]) - datetime.fromisoformat(found["last_tick"])
    assert ages.total_seconds() == pytest.approx(found["last_tick_age_seconds"])
    page = (ROOT / "docs" / "high-availability.rst").read_text("utf-8")
    titles = re.findall(r"^``.*``$", page, re.MULTILINE)
    assert set(re.findall(r"``(\w+)``", " ".join(titles))) >= found.keys()


def test_a_schedule_is_late_whose_stored_messages_are_not_sent(
    ask: Ask, scheduler: RedBeatScheduler, client: redis.Redis
) -> None:
    app = memory_app(redbeat_redis_url=scheduler.config.redis_url)
    assert "stored" not in ask().output
    store(app, "one", "two", "three")
    assert (ask().exit_code, "stored     3 messages" in ask().output) == (0, True)
    make_late(client, "one", since := server_now(client) - 100)
    make_late(client, "two", since + 95)
    done, found = ask(), json.loads(ask("--json").output)
    assert (done.exit_code, found["state"], found["backlog"]) == (2, "late", 0)
    assert "The oldest stored message has been waiting for 10" in done.output
    assert "3 messages, 1 of them overdue, the oldest since" in done.output
    assert (found["stored_messages"], found["overdue_messages"]) == (3, 1)
    assert datetime.fromisoformat(found["oldest_message"]).timestamp() == pytest.approx(since, abs=1e-3)
    assert found["oldest_message_age_seconds"] == pytest.approx(100, abs=30)


def test_a_server_that_is_away_is_3_in_one_sentence_without_a_password(ask: Ask) -> None:
    app = memory_app(redbeat_redis_url=f"redis://:{PASSWORD}@127.0.0.1:1/0")
    done = ask(app=app)
    assert done.exit_code == 3
    assert done.output.startswith(
        "state      unreachable: Redis at redis://:**@127.0.0.1:1/0 can't be used: "
    )
    found = json.loads(ask("--json", app=app).output)
    assert (found["state"], found["exit_code"], found["leader"]) == ("unreachable", 3, None)
    assert PASSWORD not in done.output + json.dumps(found)


def test_a_server_that_refuses_or_is_no_redis_is_3(ask: Ask, second: Server, rude_port: int) -> None:
    with second.client() as admin:
        admin.config_set("requirepass", "another")
    wrong = ask(app=memory_app(redbeat_redis_url=f"redis://:{PASSWORD}@127.0.0.1:{second.port}/0"))
    assert wrong.exit_code == 3, wrong.output
    assert "refused" in wrong.output
    assert PASSWORD not in wrong.output
    rude = ask(app=memory_app(redbeat_redis_url=f"redis://127.0.0.1:{rude_port}/0"))
    assert rude.exit_code == 3, rude.output
    assert "is no Redis" in rude.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--late-after", "nan"], "nan is no number of seconds."),
        (["--late-after", "inf"], "inf is no number of seconds."),
        (["--late-after", "-1"], "is not in the range"),
        (["--late-after", "soon"], "soon is no number of seconds"),
        (["--late"], "No such option"),
        (["--url", "redis://127.0.0.1"], "--url stands before the command"),
        (["now"], "unexpected extra argument"),
    ],
)
def test_wrong_options_are_64_which_no_probe_takes_for_late(
    ask: Ask, arguments: list[str], words: str
) -> None:
    done = ask(*arguments)
    assert done.exit_code == 64
    assert words in done.output


def test_wrong_settings_are_78(ask: Ask) -> None:
    done = ask(app=memory_app(redbeat_redis_url=f"http://:{PASSWORD}@127.0.0.1/0"))
    assert done.exit_code == 78
    assert done.output.startswith("Error: redbeat_redis_url: ")
    assert PASSWORD not in done.output
    with pytest.raises(ConfigurationError):
        RedBeatScheduler.leader(memory_app())


def test_a_cluster_is_asked_like_a_single_server(cluster: Any, ask: Ask) -> None:
    app = memory_app(redbeat_redis_url=cluster.url(), redbeat_redis_options={"cluster": True})
    assert ask(app=app).exit_code == 1
    with leader(app):
        done = ask(app=app)
        assert done.exit_code == 0, done.output
        assert "{redbeat}::lock" in done.output


def test_the_master_behind_sentinels_is_asked(sentinel: Any, ask: Ask) -> None:
    options = {"sentinels": sentinel.addresses, "service_name": sentinel.service_name}
    app = memory_app(redbeat_redis_url="sentinel://", redbeat_redis_options=options)
    with leader(app):
        done = ask(app=app)
        assert done.exit_code == 0, done.output


def test_celery_redbeat_status_follows_a_beat_through_its_life(server: Server, tmp_path: Path) -> None:
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1))
    entry_points = (ROOT / "pyproject.toml").read_text("utf-8")
    assert '[project.entry-points."celery.commands"]\nredbeat = "redbeat.cli:redbeat"' in entry_points
    env = installed(tmp_path)

    def status(*arguments: str) -> tuple[int, str]:
        with celery_command(tmp_path, "module", "redbeat", "status", *arguments, env=env) as process:
            return process.wait(60), process.output()

    code, output = status()
    assert (code, output.split()[:3]) == (1, ["state", "no", "leader:"]), output
    with celery_beat(tmp_path, "module") as beat:
        beat.wait_for("beat: Acquired lock")
        code, output = status("--json")
        assert code == 0, output
        assert json.loads(output)["leader"]["pid"] == beat.pid
    assert status()[0] == 1


def test_the_last_tick_of_a_waiting_beat_stays_young(
    server: Server, tmp_path: Path, make_app: MakeApp, client: redis.Redis
) -> None:
    app = make_app()

    def last_tick() -> datetime | None:
        found = RedBeatScheduler.leader(app)
        return found and found.last_tick

    with run_beat(tmp_path, server.url(0), redbeat_redis_url=server.url(1)) as beat:
        beat.wait_for("beat: Acquired lock")
        first = eventually(last_tick)
        eventually(lambda: last_tick() > first + timedelta(seconds=4))
        now = datetime.fromtimestamp(server_now(client), timezone.utc)
        assert now - last_tick() < timedelta(seconds=5)
