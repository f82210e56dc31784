"""The ACL users that the documentation describes can do all that RedBeat does, and little else."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis
from kombu.exceptions import OperationalError
from kombu.transport.redis import Channel

from redbeat import RedBeatScheduler, later
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.errors import MessageNotStored, RedBeatError, StoreRefused
from redbeat.keys import Keys
from redbeat.schedulers import get_redis
from redbeat.store.store import Store
from redbeat.store.tokens import Tokens
from tests.support.command_line import call
from tests.support.dashboards import Browser, dashboard_of
from tests.support.logs import errors_in, warnings_in
from tests.support.programs import Program
from tests.support.progress import Progress
from tests.support.rights import (
    CLAIMS,
    PASSWORD,
    RECIPES,
    Claim,
    Ground,
    documented_rights,
    refused_to,
    run_twice,
)
from tests.support.rights_of_dashboards import (
    it_changes_entries_by_forms,
    it_does_what_programs_ask,
    it_lets_in_who_has_a_token,
    it_shows_all_pages,
)
from tests.support.schedule import field, write_raw
from tests.support.stored import store
from tests.support.ticks import leader, take_messages
from tests.support.tracked import Tracked

#: users that only look
LOOKERS = ("viewer", "status", "dashboard_read_only")

#: right to the part of kombu's Redis transport that asks for it; not all versions have it
OF_KOMBU = {"+script|load": "_refresh_binding", "+pexpire": "_get_queue_expire"}


@pytest.mark.few_cases(60)
@pytest.mark.parametrize(
    ("user", "claim"),
    [pytest.param(user, claim, id=f"{user}-{claim.__name__}") for user in CLAIMS for claim in CLAIMS[user]],
)
def test_a_user_may_do_what_is_claimed(ground: Ground, user: str, claim: Claim) -> None:
    claim(ground.of(user))
    assert ground.refusals() == []


def test_who_may_not_look_at_runs_is_told_so_and_not_that_there_are_none(ground: Ground) -> None:
    Entry("report", "tasks.report", 60, app=ground.app("default")).save()
    Progress(ground.app("default"), ground.admin).started("report", "one")
    for arguments in (["runs"], ["runs", "--json"], ["runs", "report"], ["runs", "--state", "failed"]):
        done = call(ground.app("status"), *arguments)
        assert (done.exit_code, done.stdout) == (77, ""), arguments


def rights_to_miss() -> list[tuple[str, str]]:
    """Each right of each user; of the beats that write queues only what they have besides."""
    of_beat = documented_rights("beat")
    found = []
    for user in CLAIMS:
        rights = [right for right in documented_rights(user) if right[0] in "+~&"]
        if user.startswith("beat_"):
            assert set(of_beat) < set(documented_rights(user))
            rights = [right for right in rights if right not in of_beat]
        found += [
            (user, right) for right in rights if right not in OF_KOMBU or hasattr(Channel, OF_KOMBU[right])
        ]
    return found


@pytest.mark.few_cases(10)
@pytest.mark.parametrize(("user", "right"), rights_to_miss())
def test_no_right_is_there_for_nothing(ground: Ground, user: str, right: str) -> None:
    limited = ground.of(user)
    limited.let([other for other in documented_rights(user) if other != right])
    claims = [claim for claim in CLAIMS[user] if not user.startswith("beat_") or claim not in CLAIMS["beat"]]
    assert any(is_refused(limited, claim) for claim in claims)


def is_refused(ground: Ground, claim: Claim) -> bool:
    """Tell whether the server refuses something that `claim` asks for."""
    ground.server.flush()
    with suppress(RedBeatError, redis.RedisError, OperationalError, AssertionError):
        claim(ground)
    return ground.refusals() != []


@pytest.mark.few_cases(40)
@pytest.mark.parametrize("user", CLAIMS)
@pytest.mark.parametrize(
    "command",
    [
        "FLUSHALL",
        "KEYS *",
        "GET other",
        "SET other 1",
        "CONFIG SET maxmemory 1",
        "PUBLISH other x",
        "SHUTDOWN",
    ],
)
def test_neither_may_touch_anything_else(ground: Ground, user: str, command: str) -> None:
    client = get_redis(ground.app(user))
    with pytest.raises(redis.exceptions.NoPermissionError):
        client.execute_command(*command.split())


@pytest.mark.few_cases(16)
@pytest.mark.parametrize("user", LOOKERS)
@pytest.mark.parametrize(
    "command",
    [
        "SET redbeat::lock 1",
        "DEL redbeat::lock",
        "ZADD redbeat::schedule 1 a",
        "ZREM redbeat::schedule a",
        "HSET redbeat:report definition x",
        "LPUSH redbeat::history:report x",
        "PUBLISH redbeat::wake x",
    ],
)
def test_who_only_looks_may_not_write(ground: Ground, user: str, command: str) -> None:
    refused_to(ground, user, command)


@pytest.mark.few_cases(16)
@pytest.mark.parametrize(
    "command",
    [
        "SET redbeat::lock x",
        "DEL redbeat::lock",
        "GET redbeat::lock",
        "SET redbeat::released x",
        "SET redbeat::tick 1",
        "ZADD redbeat::schedule 1 redbeat:report",
        "ZREM redbeat::schedule redbeat:report",
        "HSET redbeat:report definition x",
        "HSET redbeat:report policy x",
        "HSET redbeat:report meta x",
        "HDEL redbeat:report definition",
        "HGET redbeat:report definition",
        "HGETALL redbeat:report",
        "HSET redbeat::calendar:holidays x y",
        "HSET redbeat::downgraded x y",
        "SADD redbeat::statics x",
        "SADD redbeat::owner:ann x",
        "DEL redbeat:report",
        "DEL redbeat::schedule",
        "SET redbeat::events-read 0-0",
        "PUBLISH redbeat::lock x",
        "SUBSCRIBE redbeat::wake",
        "LPUSH celery x",
        "DEL redbeat::generation",
        "INCR redbeat::generation",
        "HSET redbeat::layout shards 5",
    ],
)
def test_a_worker_may_write_neither_schedule_nor_definitions_nor_lock(ground: Ground, command: str) -> None:
    Entry("report", "tasks.report", 60, app=ground.app("default")).save()
    refused_to(ground, "worker", command)


def test_a_real_worker_needs_no_more_than_its_rule(ground: Ground, tmp_path: Path) -> None:
    url = f"redis://worker:{quote(PASSWORD, safe='')}@127.0.0.1:{ground.server.port}/1"
    with ground.server.client(db=1) as client:
        places = ground.server.url(0), ground.server.url(1), client
        tracked = Tracked.write(tmp_path, *places, redbeat_redis_url=url)
        with tracked.worker("prefork", concurrency=2) as worker:
            client.set("go", 1)
            names = {
                tracked.send("succeed"): "succeeded",
                tracked.send("fail_badly"): "failed",
                tracked.send("retry", 1): "succeeded",
                tracked.send("ignore"): "ignored",
                tracked.send("ask"): "succeeded",
                tracked.send("spawn", "group", "go", limits={"workflow": 1}): "succeeded",
            }
            assert {name: tracked.outcome(name)["outcome"] for name in names} == names
            assert worker.stop() == 0
            assert "runs: " not in worker.output(), worker.output()
        assert not client.exists("redbeat::deadlines", "redbeat::workers")
    assert ground.refusals() == []


def test_a_worker_can_neither_save_nor_lead(ground: Ground) -> None:
    entry = Entry("report", "tasks.report", 60, app=ground.app("default")).save()
    with pytest.raises(RedBeatError):
        Entry("report", "tasks.report", 90, app=ground.app("worker")).save()
    with pytest.raises(RedBeatError):
        Entry(":running:x", "tasks.report", 90, app=ground.app("worker")).save()
    with pytest.raises(RedBeatError), leader(ground.app("worker")) as scheduler:
        scheduler.tick()
    assert Entry.get("report", ground.app("default")) == entry


@pytest.mark.parametrize("command", ["HGET redbeat:report definition", "LRANGE redbeat::history:report 0 -1"])
def test_a_probe_may_not_read_entries(ground: Ground, command: str) -> None:
    refused_to(ground, "status", command)


@pytest.mark.parametrize(
    "command",
    [
        "SET redbeat::lock x",
        "DEL redbeat::lock",
        "GET redbeat::lock",
        "SET redbeat::tick 1",
        "SET redbeat::released x",
        "SET redbeat::singleton:feed x",
        "SET redbeat::lock-of-mine x",
        "HSET redbeat:: definition x",
        "SET redbeat x",
        "PUBLISH redbeat::lock x",
    ],
)
def test_a_writer_may_not_touch_what_beats_agree_by(ground: Ground, command: str) -> None:
    refused_to(ground, "writer", command)


@pytest.mark.parametrize(
    "command",
    ["SET redbeat::lock x", "DEL redbeat::tick", "HSET redbeat::tokens x y", "HDEL redbeat::tokens x",
     "CONFIG GET requirepass"],
)  # fmt: skip
def test_a_dashboard_may_read_but_not_write_the_lock_and_tokens(ground: Ground, command: str) -> None:
    assert get_redis(ground.app("dashboard")).execute_command("HGETALL", "redbeat::tokens") == {}
    if ground.server.version.startswith("6.") and "CONFIG" not in command:
        pytest.skip("Redis 6.2 can't allow to read what may not be written")
    refused_to(ground, "dashboard", command)


def test_the_rule_of_a_dashboard_for_redis_6_2_allows_what_the_other_does_without_selectors(
    ground: Ground,
) -> None:
    rule = documented_rights("dashboard_6_2")
    assert all(re.fullmatch(r"resetchannels|[~&+][^()%\s]+", word) for word in rule), "all that 6.2 knows"
    other = {word for word in documented_rights("dashboard") if word[0] not in "()~"}
    assert other == {word for word in rule if word[0] != "~"}
    assert [word for word in rule if word.startswith("~")] == ["~redbeat:*"]
    ground = ground.of("dashboard")
    ground.let(rule)
    for claim in (
        it_shows_all_pages,
        it_lets_in_who_has_a_token,
        it_changes_entries_by_forms,
        it_does_what_programs_ask,
    ):
        ground.server.flush()
        claim(ground)
        assert ground.refusals() == []
    assert get_redis(ground.app()).set("redbeat::lock", "x"), "as the documentation says"


def test_only_who_has_the_right_to_tokens_makes_them(ground: Ground) -> None:
    ground = ground.of("writer")
    with pytest.raises(StoreRefused):
        Tokens(Store(ground.app())).add("ci", ["admin"], None)
    assert call(ground.app(), "token", "list").exit_code == 77
    ground.let([*documented_rights("writer"), "~redbeat::tokens"])
    assert call(ground.app(), "token", "add", "ci", "--right", "read", "--expires", "1d").exit_code == 0
    assert call(ground.app(), "token", "list").exit_code == 0
    assert call(ground.app(), "token", "revoke", "ci", "--yes").exit_code == 0
    assert ground.refusals() == []
    refused_to(ground.of("viewer"), "viewer", "HSET redbeat::tokens x y")


def test_a_writer_can_not_let_a_worker_read_what_is_not_json(ground: Ground) -> None:
    app = ground.app()
    with pytest.raises(MessageNotStored, match="refused"):
        store(app, "pickled", args=[1], serializer="pickle")
    assert not ground.admin.exists(Keys().later, Keys().stored_message("pickled"))
    refused_to(ground, "writer", "SET redbeat::body:one x")
    store(ground.app("default"), "pickled", args=[1], serializer="pickle")
    assert later.cancel("pickled", app) == ["pickled"]
    assert ground.admin.exists(Keys().message_body("pickled")), "which the doctor finds"
    if not ground.server.version.startswith("6."):
        refused_to(ground, "dashboard", "SET redbeat::body:one x")


@pytest.mark.parametrize(
    "command",
    [
        "SET redbeat::lock x",
        "ZADD redbeat::schedule 1 redbeat:report",
        "HSET redbeat:report definition x",
        "HGET redbeat:report definition",
        "GET redbeat::tokens",
        "SUBSCRIBE redbeat::wake",
        "SET redbeat::generation x",
        "HSET redbeat::layout shards 5",
    ],
)
def test_who_stores_messages_may_touch_nothing_of_the_schedule(ground: Ground, command: str) -> None:
    refused_to(ground, "later", command)


def test_a_dashboard_without_rights_to_stored_messages_says_which_and_shows_the_rest(ground: Ground) -> None:
    store(ground.app("default"), "one")
    rule = [word for word in documented_rights("dashboard_6_2") if word != "~redbeat:*"]
    keys = ("[^:]*", ":schedule", ":statics", ":running:*", ":history:*", ":failing:*", ":tokens", ":audit")
    ground.let([*rule, *(f"~redbeat:{key}" for key in keys)], "dashboard")
    app = ground.app("dashboard")
    browser = Browser(dashboard_of(app))
    assert "+zrange ~redbeat::later" in browser.read("/later")
    assert "+zrange ~redbeat::later" in browser.read("/later/message", status=503, task_id="one")
    assert "Entries" in browser.read("/entries")
    program = Program(app, token=Tokens(Store(ground.app("default"))).add("ci", ["admin"], None)[1])
    assert "+zrange ~redbeat::later" in program.ask("GET", "/later").json()["detail"]
    # as the rule of earlier versions for Redis 7: all may be read, and what is known then may be written
    ground.let([*rule, *(f"~redbeat:{key}" for key in keys), "~redbeat::later"], "dashboard")
    assert "one<" in browser.read("/later")
    ground.let([word for word in documented_rights("dashboard_read_only") if word[0] != "&"], "dashboard")
    refused = browser.post("/later/cancel", task_id="one", confirmed="yes")
    assert (refused.status_code, "+zrem +del ~redbeat::later" in refused.text) == (503, True)
    assert ground.admin.zcard(Keys().later) == 1


def test_a_writer_can_not_silence_a_beat(ground: Ground) -> None:
    app = ground.app("default")
    Entry("report", "tasks.report", 60, app=ground.app("writer")).save()
    client = get_redis(ground.app("writer"))
    with leader(app) as scheduler:
        token = ground.admin.get("redbeat::lock")
        for script in ("return redis.call('SET', KEYS[1], 'x')", "return redis.call('DEL', KEYS[1])"):
            with pytest.raises(redis.exceptions.ResponseError):
                client.eval(script, 1, "redbeat::lock")
        with pytest.raises(RedBeatError):
            Entry(":lock", "tasks.report", 60, app=ground.app("writer")).save()
        ground.make_due("report")
        scheduler.tick()
        assert ground.admin.get("redbeat::lock") == token
    assert [message.entry for message in take_messages(app)] == ["report"]


@pytest.mark.parametrize("prefix", ["app.", "{app}:", "no-colon", "a*b[c]?:"])
def test_the_writer_s_rule_follows_a_prefix(ground: Ground, prefix: str) -> None:
    pattern = re.sub(r"([*?\[\\])", r"\\\1", prefix)
    rights = [
        right.replace("~redbeat:", f"~{pattern}").replace("&redbeat:", f"&{pattern}")
        for right in documented_rights("writer")
    ]
    ground.let(rights)
    app = ground.app(redbeat_key_prefix=prefix)
    Calendar("holidays", ["2026-12-25"], app=app).save()
    entry = Entry("report", "tasks.report", 60, exclude="holidays", app=app).save()
    entry.trigger()
    entry.delete()
    assert ground.refusals() == []
    client = get_redis(app)
    for key in (f"{prefix}:lock", f"{prefix}:tick", "redbeat:report"):
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.set(key, "x")


def test_a_viewer_can_neither_save_nor_delete(ground: Ground) -> None:
    Entry("report", "tasks.report", 60, app=ground.app("writer")).save()
    seen = Entry.get("report", ground.app("viewer"))
    seen.args = [1]
    for change in (seen.save, seen.delete, seen.pause):
        with pytest.raises(StoreRefused, match="refused"):
            change()
    assert not Entry.get("report", ground.app("writer")).args


@pytest.mark.parametrize("command", ["show", "why"])
def test_a_viewer_learns_that_there_is_no_such_entry(ground: Ground, command: str) -> None:
    done = call(ground.app("viewer"), command, "nothing")
    assert (done.exit_code, "There is no entry 'nothing'" in done.stderr) == (66, True), done.stderr


def test_the_writer_cannot_run_a_beat(ground: Ground) -> None:
    with pytest.raises(StoreRefused, match="refused"), leader(ground.app("writer")) as scheduler:
        scheduler.tick()


@pytest.mark.parametrize("missing", [["+lpush"], ["+ltrim"], ["+lpush", "+ltrim"]], ids=" ".join)
@pytest.mark.parametrize("lock", [{}, {"redbeat_lock_key": None}], ids=["with a lock", "without a lock"])
def test_a_beat_that_may_not_write_histories_runs_on(
    ground: Ground, missing: list[str], lock: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """As one with the rule of a version before there were histories."""
    ground.let([right for right in documented_rights("beat") if right not in missing], "beat")
    Entry("report", "tasks.report", 60, app=ground.app("default")).save()
    write_raw(ground.admin, "broken", "{oops")
    run_twice(ground, **lock)
    assert field(ground.admin, "report", "meta")["total_run_count"] == 2
    assert not ground.admin.hexists("redbeat:report", "error")
    assert not ground.admin.exists("redbeat::history:report"), "what can't be cut would grow for ever"
    assert len(errors_in(caplog)) == 1, "about the broken one"


@pytest.mark.parametrize("missing", [["+lpush"], ["+ltrim"]], ids=" ".join)
def test_a_run_by_hand_that_cannot_be_recorded_is_sent_once_all_the_same(
    ground: Ground, caplog: pytest.LogCaptureFixture, missing: list[str]
) -> None:
    ground.let([right for right in documented_rights("writer") if right not in missing])
    app = ground.app("writer")
    entry = Entry("report", "tasks.report", 60, app=app).save()
    sent = entry.trigger()
    ground.admin.set("redbeat::history:report", "no list")
    other = entry.trigger()
    assert [message.id for message in take_messages(app)] == [sent.id, other.id]
    assert len(warnings_in(caplog)) == (1 if "+ltrim" in missing else 2), "a right, and a key of another type"


def test_a_beat_that_may_not_read_calendars_runs_what_needs_none(ground: Ground) -> None:
    writer = ground.app("writer")
    Calendar("holidays", app=writer).save()
    for name, policy in (("report", {}), ("seldom", {"exclude": "holidays"})):
        Entry(name, "tasks.report", 60, app=writer, **policy).save()
    ground.admin.execute_command("ACL SETUSER", "beat", "-hgetall")
    app = ground.app("beat")
    with leader(app) as scheduler:
        ground.make_due("report", "seldom")
        scheduler.tick()
    assert [message.entry for message in take_messages(app)] == ["report"]
    assert "can't be read" in str(ground.admin.hget("redbeat:seldom", "error"))


def test_a_user_that_may_not_read_the_configuration_is_warned_and_starts(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    ground.admin.execute_command("ACL SETUSER", "beat", "-config")
    RedBeatScheduler(ground.app("beat"))
    assert "CONFIG can't be read" in caplog.text


def test_what_looks_at_the_lock_is_not_for_a_writer_and_the_documentation_says_so(ground: Ground) -> None:
    Entry("report", "tasks.report", 60, app=ground.app("writer")).save()
    text = (RECIPES.parent / "configuration.rst").read_text()
    for command, code in ((["why", "report"], 77), (["downgrade"], 77), (["status"], 3), (["list"], 0)):
        assert call(ground.app("writer"), *command).exit_code == code, command
        assert not code or f"``{command[0]}``" in text.partition("that manage entries")[2].partition("::")[0]


@pytest.mark.parametrize("member", ["", ":x", "redbeat:", "redbeat::lock"])
def test_what_a_writer_spoils_ends_no_list(ground: Ground, member: str) -> None:
    app = ground.app("writer")
    Entry("report", "tasks.report", 60, app=app).save()
    client = get_redis(app)
    client.zadd("redbeat::schedule", {member: 1})
    client.hset("redbeat::downgraded", "a", 1)
    assert "report" in [entry.name for entry in Entry.list(app=app)]
    done = call(app, "list")
    assert (done.exit_code, "report" in done.stdout) == (0, True), done.stderr
