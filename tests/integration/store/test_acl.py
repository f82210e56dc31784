"""The documented ACL users can do what their rule is for, need every right of it, and can do nothing else."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis
from celery import Celery
from kombu.exceptions import OperationalError
from kombu.transport.redis import Channel

from redbeat import RedBeatScheduler, later
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.entries.runs import find_runs
from redbeat.errors import MessageNotStored, RedBeatError, StoreRefused
from redbeat.keys import Keys
from redbeat.layout import Layout
from redbeat.schedulers import get_redis
from redbeat.store.layouts import look_up_layout
from redbeat.store.store import Store
from tests.integration.runs.tracked import Tracked
from tests.integration.store import rights
from tests.integration.store.rights import (
    CLAIMS,
    PASSWORD,
    Claim,
    Ground,
    documented_rights,
    in_shards,
    refused_to,
)
from tests.support.command_line import call
from tests.support.polling import eventually
from tests.support.progress import Progress
from tests.support.stored import store
from tests.support.ticks import leader, take_messages

SHARDS = 7
#: right to the part of kombu's Redis transport that needs it; not every version has it
OF_KOMBU = {"+script|load": "_refresh_binding", "+pexpire": "_get_queue_expire"}

_NOBODY_S = ("GET other", "SET other 1", "KEYS *", "CONFIG SET maxmemory 1", "PUBLISH other x", "FLUSHALL")
_LEADERSHIP = ("SET redbeat::lock x", "DEL redbeat::lock", "SET redbeat::tick 1", "PUBLISH redbeat::lock x")
_LAYOUT = ("HSET redbeat::layout shards 5", "SET redbeat::generation x", "DEL redbeat::generation")
_ENTRY = (
    *("HSET redbeat:report definition x", "DEL redbeat:report", "ZADD redbeat::schedule 1 redbeat:report"),
    *("ZREM redbeat::schedule redbeat:report", "LPUSH redbeat::history:report x", "PUBLISH redbeat::wake x"),
)
_READ_ENTRY = ("HGET redbeat:report definition", "HGETALL redbeat:report")
#: user to commands that its rule must refuse
REFUSED: dict[str, tuple[str, ...]] = {
    "beat": (),
    "beat_exactly_once": (),
    "beat_and_broker": (),
    "writer": (
        *(*_LEADERSHIP, "GET redbeat::lock", "SET redbeat::released x", "SET redbeat::singleton:feed x"),
        *("SET redbeat::lock-of-mine x", "HSET redbeat:: definition x", "SET redbeat x"),
        *("SET redbeat::body:one x", "HGETALL redbeat::tokens"),
    ),
    "worker": (
        *(*_LEADERSHIP, "GET redbeat::lock", "SET redbeat::released x", *_LAYOUT, *_READ_ENTRY),
        *("HSET redbeat:report policy x", "HSET redbeat:report meta x", "DEL redbeat:report"),
        *("ZADD redbeat::schedule 1 redbeat:report", "DEL redbeat::schedule", "LPUSH celery x"),
        *("HSET redbeat::calendar:holidays x y", "SADD redbeat::statics x", "SUBSCRIBE redbeat::wake"),
        *("SADD redbeat::owner:ann x", "SET redbeat::events-read 0-0"),
    ),
    "later": (*_LEADERSHIP[:2], *_LAYOUT, *_ENTRY[:4], *_READ_ENTRY, "GET redbeat::tokens"),
    "viewer": (*_LEADERSHIP, *_LAYOUT, *_ENTRY, "HSET redbeat::tokens x y"),
    "status": (*_LEADERSHIP, *_LAYOUT, *_ENTRY, *_READ_ENTRY, "LRANGE redbeat::history:report 0 -1"),
    "dashboard_read_only": (*_LEADERSHIP, *_LAYOUT, *_ENTRY, "HSET redbeat::tokens x y"),
    "dashboard": (
        *("SET redbeat::lock x", "DEL redbeat::tick", "HSET redbeat::tokens x y", "HDEL redbeat::tokens x"),
        *("SET redbeat::body:one x", *_LAYOUT, "CONFIG GET requirepass"),
    ),
}


@pytest.mark.parametrize(
    ("user", "claim"),
    [pytest.param(user, claim, id=f"{user}-{claim.__name__}") for user in CLAIMS for claim in CLAIMS[user]],
)
def test_user_may_do_what_its_rule_is_for(ground: Ground, user: str, claim: Claim) -> None:
    claim(ground.of(user))
    assert ground.refusals() == []


def test_user_of_beat_counts_without_zcard(ground: Ground) -> None:
    ground.save("report")
    assert find_runs(ground.of("beat").app(), ["succeeded"]) == []


def rights_to_miss() -> list[tuple[str, str]]:
    """Each right of each user. Beats that write queues: only the rights that they have in addition."""
    of_beat = documented_rights("beat")
    return [
        (user, right)
        for user in CLAIMS
        for right in documented_rights(user)
        if right[0] in "+~&" and not (user.startswith("beat_") and right in of_beat)
        if right not in OF_KOMBU or hasattr(Channel, OF_KOMBU[right])
    ]


def is_refused(ground: Ground, claim: Claim) -> bool:
    ground.server.flush()
    with suppress(RedBeatError, redis.RedisError, OperationalError, AssertionError):
        claim(ground)
    return ground.refusals() != []


@pytest.mark.few_cases(4)
@pytest.mark.parametrize(("user", "right"), rights_to_miss())
def test_right_of_a_rule_is_needed(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, user: str, right: str
) -> None:
    # it would end beat before
    monkeypatch.setattr("redbeat.scheduler.startup.check_rights", lambda _store: None)
    limited = ground.of(user)
    limited.let([other for other in documented_rights(user) if other != right])
    claims = [claim for claim in CLAIMS[user] if not user.startswith("beat_") or claim not in CLAIMS["beat"]]
    assert any(is_refused(limited, claim) for claim in claims)


#: rights of the rule that beat can do without
OPTIONAL = {"~redbeat:*", "&redbeat::wake", "+select", "+config|get", "+subscribe", "+publish"}


def test_beat_without_a_right_ends_at_its_start_and_names_it(ground: Ground) -> None:
    rule = documented_rights("beat")
    for missing in {*rule} - OPTIONAL:
        if missing[0] == "+":
            ground.let([right for right in rule if right != missing], "beat")
            with pytest.raises(StoreRefused, match=re.escape(missing[1:])):
                RedBeatScheduler(ground.app("beat"))
    ground.let([right.replace("~redbeat:*", "~other:*") for right in rule], "beat")
    with pytest.raises(StoreRefused, match=r"user beat lacks rights that beat needs. Add ~redbeat:\* to "):
        RedBeatScheduler(ground.app("beat"))


def test_saving_without_a_right_names_the_command_and_the_remedy(ground: Ground) -> None:
    ground.let([right for right in documented_rights("writer") if right != "+hset"])
    said = r"(hset|ACL LOG has which one).* Add the right to the ACL rule of the user writer"
    with pytest.raises(StoreRefused, match=said):
        Entry("report", "tasks.report", 60, app=ground.app()).save()
    assert not ground.admin.exists("redbeat:report")


@pytest.mark.parametrize("user", CLAIMS)
def test_user_may_do_nothing_else_by_command_or_script(ground: Ground, user: str) -> None:
    is_6_2 = ground.server.version.startswith("6.")
    for command in (*_NOBODY_S, *REFUSED[user]):
        if user == "dashboard" and is_6_2 and command in REFUSED[user][:-1]:
            continue  # Redis 6.2 cannot let a user read what it may not write
        refused_to(ground, user, command)


def test_user_without_the_right_gets_an_error_and_changes_nothing(ground: Ground) -> None:
    entry = Entry("report", "tasks.report", 60, app=ground.app("default")).save()
    for user, name in (("worker", ":running:x"), ("writer", ":lock"), ("viewer", "report")):
        with pytest.raises(RedBeatError):
            Entry(name, "tasks.report", 90, app=ground.app(user)).save()
    for change in (Entry.delete, Entry.pause):
        with pytest.raises(RedBeatError):
            change(Entry.get("report", ground.app("viewer")))
    with pytest.raises(RedBeatError), leader(ground.app("writer")) as scheduler:
        scheduler.tick()
    assert Entry.get("report", ground.app("default")) == entry
    assert Entry.count(ground.app("default")) == 1


@pytest.mark.parametrize(
    ("user", "arguments", "code"),
    [
        ("status", ["runs", "--json"], 77),
        ("viewer", ["why", "nothing"], 66),
        ("writer", ["why", "report"], 77),
        ("writer", ["token", "list"], 77),
        ("writer", ["list"], 0),
    ],
)
def test_command_exits_with_the_code_of_a_missing_right(
    ground: Ground, user: str, arguments: list[str], code: int
) -> None:
    Entry("report", "tasks.report", 60, app=ground.app("default")).save()
    Progress(ground.app("default"), ground.admin).started("report", "one")
    done = call(ground.app(user), *arguments)
    assert (done.exit_code, bool(done.stdout)) == (code, not code)


def test_writer_with_the_right_to_tokens_makes_and_revokes_them(ground: Ground) -> None:
    ground.let([*documented_rights("writer"), "~redbeat::tokens"])
    for arguments in (
        ["add", "ci", "--right", "read", "--expires", "1d"],
        ["list"],
        ["revoke", "ci", "--yes"],
    ):
        assert call(ground.app(), "token", *arguments).exit_code == 0
    assert ground.refusals() == []


def test_writer_cannot_store_a_message_that_is_not_json(ground: Ground) -> None:
    app = ground.app()
    with pytest.raises(MessageNotStored, match="refused"):
        store(app, "pickled", args=[1], serializer="pickle")
    assert not ground.admin.exists(Keys().later, Keys().stored_message("pickled"))
    store(ground.app("default"), "pickled", args=[1], serializer="pickle")
    assert later.cancel("pickled", app) == ["pickled"]


def test_list_shows_entries_beside_members_that_a_writer_has_spoilt(ground: Ground) -> None:
    app = ground.app("writer")
    Entry("report", "tasks.report", 60, app=app).save()
    get_redis(app).zadd("redbeat::schedule", dict.fromkeys(["", ":x", "redbeat:", "redbeat::lock"], 1))
    done = call(app, "list")
    assert (done.exit_code, "report" in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize("prefix", ["{app}:", "a*b[c]?:"])
def test_rule_of_a_writer_with_another_prefix_allows_the_same(ground: Ground, prefix: str) -> None:
    pattern = re.sub(r"([*?\[\\])", r"\\\1", prefix)
    ground.let(
        [re.sub(r"^([~&])redbeat:", rf"\g<1>{pattern}", right) for right in documented_rights("writer")]
    )
    app = ground.app(redbeat_key_prefix=prefix)
    Calendar("holidays", ["2026-12-25"], app=app).save()
    entry = Entry("report", "tasks.report", 60, exclude="holidays", app=app).save()
    entry.trigger()
    entry.delete()
    assert ground.refusals() == []
    for key in (f"{prefix}:lock", "redbeat:report"):
        with pytest.raises(redis.exceptions.NoPermissionError):
            get_redis(app).set(key, "x")


@pytest.mark.slow
def test_rule_of_a_dashboard_for_redis_6_2_allows_what_the_other_does(ground: Ground) -> None:
    rule = documented_rights("dashboard_6_2")
    assert all(re.fullmatch(r"resetchannels|[~&+][^()%\s]+", word) for word in rule), "6.2 has no selectors"
    ground = ground.of("dashboard")
    ground.let(rule)
    for claim in (rights.it_lets_in_who_has_a_token, *rights.CHANGING, rights.it_shows_all_pages):
        ground.server.flush()
        claim(ground)
        assert ground.refusals() == []


def test_beat_without_the_right_to_calendars_sends_entries_that_need_none(ground: Ground) -> None:
    writer = ground.app("writer")
    Calendar("holidays", app=writer).save()
    for name, policy in (("report", {}), ("seldom", {"exclude": "holidays"})):
        Entry(name, "tasks.report", 60, app=writer, **policy).save()
    app = ground.app("beat")
    with leader(app) as scheduler:
        ground.admin.execute_command("ACL SETUSER", "beat", "-hgetall")
        ground.make_due("report", "seldom")
        scheduler.tick()
    assert [message.entry for message in take_messages(app)] == ["report"]
    assert "can't be read" in str(ground.admin.hget("redbeat:seldom", "error"))


@pytest.mark.slow
@pytest.mark.parametrize("user", ["worker", "worker_and_broker"])
def test_worker_process_needs_no_more_than_its_rule(ground: Ground, tmp_path: Path, user: str) -> None:
    """Runs are tracked by the user, who also has broker and results with the second rule."""
    ground.let(documented_rights(user), user)
    trusted = ground.server.url(0)
    url = f"redis://{user}:{quote(PASSWORD, safe='')}@127.0.0.1:{ground.server.port}/0"
    is_broker = user == "worker_and_broker"
    settings: dict[str, Any] = {
        "redbeat_redis_url": url,
        "result_backend": url if is_broker else trusted,
        "worker_send_task_events": is_broker,
        "task_send_sent_event": is_broker,
    }
    with ground.server.client() as client:
        tracked = Tracked.write(tmp_path, url if is_broker else trusted, trusted, client, **settings)
        tracked.app.conf.broker_url = trusted
        with tracked.worker("prefork", concurrency=2) as worker:
            names = {
                tracked.send("succeed"): "succeeded",
                tracked.send("fail"): "failed",
                tracked.send("retry 0.5", "succeed"): "succeeded",
                tracked.send("requeue", "succeed", task="act_late"): "succeeded",
                tracked.send("group", "go", task="spawn", limits={"workflow": 1}): "succeeded",
            }
            client.set("go", 1)
            assert {name: tracked.outcome(name)["outcome"] for name in names} == names
            if is_broker:
                busy = tracked.begun(tracked.send("wait never"))
                with tracked.sender() as app:
                    eventually(lambda: app.control.ping(timeout=2))
                    assert app.control.inspect(timeout=5).active()
                tracked.revoke(busy, terminate=True)
                assert tracked.outcome(busy)["outcome"] == "revoked"
            assert worker.stop() == 0
    assert ground.refusals() == [], worker.output()


# -- the rules after the documented command for shards


@dataclass(frozen=True)
class ShardedGround(Ground):
    """A server whose schedules have seven shards."""

    def app(self, user: str = "", database: int = 0, **settings: Any) -> Celery:
        return super().app(user, database, redbeat_shards=SHARDS, **settings)

    def of(self, user: str) -> Ground:
        return ShardedGround(self.server, self.admin, user)


@pytest.fixture
def sharded(ground: Ground) -> ShardedGround:
    """A schedule in two databases. A beat has written to each shard."""
    if ground.server.version.startswith("6."):
        pytest.skip("Redis 6.2 has no selectors")
    for user in CLAIMS:
        ground.let(in_shards(user), user)
    made = ShardedGround(ground.server, ground.admin, "writer")
    for database in (0, 3):
        look_up_layout(Store(made.app("default", database)), is_beat=True)
    return made


def in_shard(command: str) -> str:
    """The same command for a key or a channel of one shard."""
    if "redbeat::layout" in command:
        return command
    return re.sub(r"redbeat:(?!:tokens|:calendar|:owner)", "{redbeat:3}:", command)


@pytest.mark.parametrize("user", REFUSED)
def test_rule_for_shards_refuses_the_same_in_each_shard(sharded: ShardedGround, user: str) -> None:
    assert set(documented_rights(user)) <= set(in_shards(user)), "it adds rights and takes none away"
    for command in REFUSED[user]:
        refused_to(sharded, user, in_shard(command))
    for key in ("{redbeat:sub:0}:report", "{redbeat}:report", "{redbeat2:0}:report", "{redbeat:0:"):
        refused_to(sharded, user, f"HGETALL {key}")


def it_tracks_a_run(ground: Ground) -> None:
    rights.track_runs_of_a_worker(ground, Layout(Keys(), SHARDS, 1).keys.home("report"))


def it_leads_all_shards(ground: Ground) -> None:
    names = [f"report-{number}" for number in range(20)]
    trusted = ground.app("default")
    Entry.save_many([Entry(name, "tasks.report", 10**9, app=trusted) for name in names])
    for part in Layout(Keys(), SHARDS, 1).parts:
        if members := ground.admin.zrange(part.schedule, 0, -1):
            ground.admin.zadd(part.schedule, dict.fromkeys(members, 1))
    app, sent = ground.app(), set[str]()

    def are_all_sent() -> bool:
        scheduler.tick()
        sent.update(message.entry for message in take_messages(app))
        return sent == {*names}

    with leader(app) as scheduler:
        eventually(are_all_sent)


#: user to claims that hold in shards as well, and name no key of an undivided schedule
IN_SHARDS: dict[str, tuple[Claim, ...]] = {
    "writer": (
        *(rights.it_works_in_another_database, rights.it_saves_and_deletes_many, rights.it_keeps_calendars),
        *(rights.it_changes_and_runs_by_name, rights.it_writes_down_who_changes_what),
        rights.it_applies_files_and_puts_a_schedule_back,
    ),
    "later": (rights.it_stores_messages_in_another_database,),
    "worker": (it_tracks_a_run,),
    "worker_and_broker": (it_tracks_a_run,),
    "viewer": (rights.it_looks_at_entries, rights.it_looks_at_stored_messages),
    "status": (rights.it_asks_in_another_database, rights.it_sees_who_shares_the_shards),
    "dashboard_read_only": (rights.it_looks_at_entries,),
    "dashboard": (rights.it_changes_and_runs_by_name, rights.it_applies_files_and_puts_a_schedule_back),
    "beat": (it_leads_all_shards,),
    "beat_and_broker": (it_leads_all_shards,),
}


@pytest.mark.parametrize("user", IN_SHARDS)
def test_user_may_do_in_shards_what_its_rule_is_for(sharded: ShardedGround, user: str) -> None:
    if user not in CLAIMS:
        sharded.let(in_shards(user), user)
    for claim in IN_SHARDS[user]:
        claim(sharded.of(user))
    assert sharded.refusals() == []
