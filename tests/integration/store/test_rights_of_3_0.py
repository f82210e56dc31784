"""Users that were given their rights when 3.0 came out can do with later versions all that they could."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from redbeat import RedBeatScheduler, track_runs
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.config.timing import Timing
from redbeat.entries.audit import audited
from redbeat.entries.runs import find_runs
from redbeat.keys import Keys
from redbeat.leadership.elector import Leadership
from redbeat.leadership.status import read_status
from redbeat.store import rights
from redbeat.store.beats import Beats
from redbeat.store.changes import ChangeRecord, ChangeRecords
from redbeat.store.events import Events
from redbeat.store.later import LaterStore
from redbeat.store.nodes import call_on_nodes
from redbeat.store.records import Fence
from redbeat.store.rights import Feature
from redbeat.store.store import Store
from redbeat.telemetry.metrics.gathering import LASTING_REFUSALS
from tests.support.apps import run_beat
from tests.support.command_line import call
from tests.support.logs import errors_in, warnings_in
from tests.support.polling import eventually
from tests.support.progress import Progress
from tests.support.rights import (
    CLAIMS,
    PASSWORD,
    SINCE_3_0,
    Ground,
    documented_rights,
    gathering_of,
    it_ends_runs_that_are_lost,
    run_twice,
)
from tests.support.schedule import LOCK, sent_names
from tests.support.stored import store
from tests.support.ticks import leader, take_messages

_BEAT = (
    "~redbeat:* resetchannels &redbeat::wake +select +eval +evalsha +time +config|get +publish +subscribe "
    "+type +exists +get +set +del +pttl +smembers +sadd +srem +hget +hmget +hstrlen +hgetall +hset +hdel "
    "+zadd +zrem +zscore +zrangebyscore +zcount +lpush +ltrim"
)
_BEAT_EXACTLY_ONCE = f"{_BEAT} ~celery* +info +lpop +pexpire"
#: the rules that the documentation of 3.0 has. They don't grow: what needs another right is a Feature
RULES_OF_3_0 = {
    "beat": _BEAT,
    "beat_exactly_once": _BEAT_EXACTLY_ONCE,
    "beat_and_broker": f"{_BEAT_EXACTLY_ONCE} ~_kombu.* +ping +multi +exec +llen +script|load",
    "writer": (
        "~redbeat:[^:]* ~redbeat::schedule ~redbeat::statics ~redbeat::static-owners ~redbeat::downgraded "
        "~redbeat::owner:* ~redbeat::calendar:* ~redbeat::history:* ~redbeat::backfilled:* "
        "~redbeat::backfilling:* resetchannels &redbeat::wake +select +eval +evalsha +time +multi +exec "
        "+publish +type +exists +get +set +del +hget +hmget +hstrlen +hgetall +hset +hdel +zadd +zrem "
        "+zrank +zscore +zscan +zcard +zrange +zrangebyscore +lpush +ltrim +lrange +rpush +sadd +srem "
        "+scard +smembers +smismember"
    ),
    "viewer": (
        "~redbeat:* resetchannels +select +eval +evalsha +time +type +exists +get +pttl +hmget +hstrlen "
        "+hgetall +lrange +zcard +zcount +zrank +zscore +zrangebyscore"
    ),
    "status": (
        "~redbeat::schedule ~redbeat::lock ~redbeat::tick resetchannels +select +eval +evalsha +time "
        "+type +get +pttl +zcount +zrangebyscore"
    ),
}

FEATURES = [found for found in vars(rights).values() if isinstance(found, Feature)]


@pytest.fixture
def old(ground: Ground) -> Ground:
    """The users as 3.0 has described them."""
    for user, words in RULES_OF_3_0.items():
        ground.let(words.split(), user)
    return ground


@pytest.mark.parametrize("user", RULES_OF_3_0)
def test_a_right_that_is_asked_for_since_then_is_one_of_a_feature_that_can_be_off(user: str) -> None:
    before, now = set(RULES_OF_3_0[user].split()), set(documented_rights(user))
    # nobody misses these as long as the schedule isn't divided into shards
    before |= {
        "~redbeat::layout",
        "~redbeat::generation",
        "~redbeat::beats",
        "~redbeat::moving",
        "~redbeat::later:*",  # where hashes of delayed tasks are since then
        "+hmget",
        "+zrange",
    }
    assert now - before <= {right for feature in FEATURES for right in feature.rights.split()}


@pytest.mark.parametrize("user", RULES_OF_3_0)
def test_what_a_user_could_do_it_can_do_still(old: Ground, user: str) -> None:
    for claim in CLAIMS[user]:
        if claim in SINCE_3_0:
            continue
        claim(old.of(user))
        old.server.flush()


def test_a_beat_and_the_command_line_have_enough_of_them(old: Ground, tmp_path: Path) -> None:
    def printed(user: str, *arguments: str) -> str:
        done = call(old.app(user), *arguments)
        assert done.exit_code == 0, done.output
        return done.output

    url = f"redis://beat_exactly_once:{quote(PASSWORD, safe='')}@127.0.0.1:{old.server.port}/0"
    printed("writer", "add", "report", "echo", "--every", "200ms")
    with run_beat(tmp_path, old.server.url(0), redbeat_redis_url=url) as beat:
        eventually(lambda: sent_names(old.admin))
        printed("writer", "pause", "report", "--yes")
        assert "paused" in printed("viewer", "list")
        printed("status", "status")
    assert "WARNING" not in beat.output()
    assert "ERROR" not in beat.output()


# -- without one of them


def wait_for_replicas(ground: Ground) -> None:
    run_twice(ground, redbeat_wait_replicas=1)


def send_in_one_step(ground: Ground) -> None:
    run_twice(ground, broker_url=ground.server.url(0), task_default_queue="celery")


def start_twice(ground: Ground) -> None:
    app = ground.app("beat")
    for _ in range(2):
        RedBeatScheduler(app).close()


def wait_for_a_change(ground: Ground) -> None:
    store = Store(ground.app("beat"))
    for _ in range(2):
        assert store.wake_channel().wait(0.5) is False


def run_by_hand(ground: Ground) -> None:
    app = ground.app()
    entry = Entry.get("report", app)
    sent = [entry.trigger().id for _ in range(2)]
    entry.pause()
    entry.resume()
    assert [message.id for message in take_messages(app)] == sent


def delete_one_after_the_other(ground: Ground) -> None:
    app = ground.app()
    assert [Entry.delete_many([name], app) for name in ("report", "other")] == [1, 1]


def pause_twice(ground: Ground) -> None:
    app = ground.app()
    for name in ("report", "other"):
        Entry.get(name, app).pause()
    assert Entry.count(app, state="paused") == 2


def change_twice(ground: Ground) -> None:
    app = ground.app()
    for _ in range(2):
        with audited(app, "ann", "cli", "delete", ["report"]):
            pass
    assert not ground.admin.exists("redbeat::audit")


def tell_of_changes_twice(ground: Ground) -> None:
    records, record = ChangeRecords(Store(ground.app())), ChangeRecord("one", "ann", "Apply")
    for _ in range(2):
        assert records.claim("click", record), "its own process begins it"
        records.write("click", record)
        assert records.read("click") is None


def lose_twice(ground: Ground) -> None:
    app = ground.app("beat")
    for _ in range(2):
        it_ends_runs_that_are_lost(ground, app)


def listen_twice(ground: Ground) -> None:
    events = Events(Store(ground.app("beat")))
    for _ in range(2):
        assert events.read({Keys(): Fence()}, "teller") == {}


def look_twice(ground: Ground) -> None:
    app = ground.app()
    for _ in range(2):
        assert [entry.name for entry in Entry.list(app, match="report")] == ["report"]
        assert call(app, "list").exit_code == 0


def list_failures_twice(ground: Ground) -> None:
    progress = Progress(ground.app("default"), ground.admin)
    progress.end(progress.started("report", "one"), "failed")
    app = ground.app("viewer")
    for _ in range(2):
        assert [run.task_id for run in find_runs(app, ["failed"])] == ["one"]


def trigger_twice(ground: Ground) -> None:
    app = ground.app("writer")
    track_runs(app)
    for _ in range(2):
        Entry.get("report", app).trigger()
    assert len(take_messages(app)) == 2


def list_runs_twice(ground: Ground) -> None:
    Progress(ground.app("default"), ground.admin).started("report", "one")
    app = ground.app("viewer")
    for _ in range(2):
        assert [run.task_id for run in find_runs(app)] == ["one"]


def _last_runs(ground: Ground, user: str) -> list[tuple[str | None, int | None]]:
    """What a list that is printed twice says of two runs that have failed."""
    progress, app = Progress(ground.app("default"), ground.admin), ground.app(user)
    for name in ("report", "other"):
        progress.end(progress.started(name, "one"), "failed")
    assert call(app, "list").exit_code == 0
    documents = [json.loads(line) for line in call(app, "list", "--json").stdout.splitlines()]
    return [(one["last_outcome"], one["failures_in_a_row"]) for one in documents]


def list_without_outcomes(ground: Ground) -> None:
    assert _last_runs(ground, "viewer") == [(None, 1)] * 2


def list_without_failures(ground: Ground) -> None:
    assert _last_runs(ground, "writer") == [("failed", None)] * 2


def show_twice(ground: Ground) -> None:
    Progress(ground.app("default"), ground.admin).started("report", "one")
    app = ground.app("viewer")
    for _ in range(2):
        assert json.loads(call(app, "show", "report", "--json").stdout)["running"] is None
        assert "In progress" not in call(app, "show", "report").stdout
        assert call(app, "why", "report").exit_code == 0


def give_up_twice(ground: Ground) -> None:
    progress, app = Progress(ground.app("default"), ground.admin), ground.app("beat")
    for number in range(2):
        progress.started("report", f"{number}", 1000.0 + number)
        assert len(Entry.get("report", app).give_up_runs()) == 1
        assert Entry.get("report", app).running() == []


def look_at_a_run_twice(ground: Ground) -> None:
    Progress(ground.app("default"), ground.admin).started("report", "one", overlap="skip")
    app = ground.app("viewer")
    for _ in range(2):
        [run] = find_runs(app, name="report")
        assert run.held_until is None


def stand_by_twice(ground: Ground) -> None:
    ground.admin.set(LOCK, "somebody", px=60_000)
    leadership = Leadership(Store(ground.app("beat")), LOCK, Timing(60))
    for _ in range(2):
        assert not leadership.stand()
    assert not ground.admin.exists(Keys().standbys), "nor a key without an end"
    ground.admin.delete(LOCK)
    assert leadership.stand()
    leadership.resign()


def share_twice(ground: Ground) -> None:
    store = Store(ground.app("beat"))
    beats = Beats(store)
    for _ in range(2):
        [reply] = call_on_nodes(store.client, [beats.note_call("somebody", 15)])
        assert beats.noted(reply) is None


def ask_twice_who_leads(ground: Ground) -> None:
    app = ground.app("status")
    with leader(ground.app("default")):
        for _ in range(2):
            found = read_status(app)
            assert (found.leader is not None, found.standbys) == (True, None)
        assert "may not read who stands by" in call(app, "status").stdout


def ask_twice_for_messages(ground: Ground) -> None:
    app = ground.app("status")
    ground.let([*RULES_OF_3_0["status"].split(), "~redbeat::standbys"], "status")
    with leader(ground.app("default")):
        for _ in range(2):
            found = read_status(app)
            assert (found.stored_messages, found.standbys) == (None, [])
        assert "may not read which messages are stored" in call(app, "status").stdout


def gather_twice(ground: Ground) -> None:
    run_twice(ground)
    gathering = gathering_of(ground.app("beat"))
    for _ in range(2 * LASTING_REFUSALS):
        gathering.gather()
        assert not gathering.views


#: a feature, what of 3.0's rules is taken from which user, and what goes on all the same
WITHOUT: list[tuple[Feature, str, str, Callable[[Ground], None]]] = [
    (rights.HISTORIES, "beat", "+lpush", run_twice),
    (rights.HISTORIES, "beat", "+ltrim", run_twice),
    (rights.HISTORIES, "writer", "+lpush", run_by_hand),
    (rights.HISTORIES, "writer", "+ltrim", run_by_hand),
    (rights.HISTORIES, "writer", "~redbeat::history:*", run_by_hand),
    (rights.REMAINS, "writer", "~redbeat::history:*", delete_one_after_the_other),
    (rights.WAKE_UPS, "beat", "+subscribe", wait_for_a_change),
    (rights.STANDBYS, "beat", "", stand_by_twice),
    (rights.BEATS, "beat", "", share_twice),
    (rights.STANDBYS, "status", "", ask_twice_who_leads),
    (rights.STORED, "status", "", ask_twice_for_messages),
    (rights.REPLICAS, "beat", "", wait_for_replicas),
    (rights.EVICTION, "beat", "+config|get", start_twice),
    (rights.DOWNGRADED, "writer", "~redbeat::downgraded", look_twice),
    (rights.RUNS, "beat", "", lose_twice),
    (rights.EVENTS, "writer", "", pause_twice),
    (rights.BY_HAND, "writer", "", trigger_twice),
    (rights.AUDIT, "writer", "", change_twice),
    (rights.CHANGES, "writer", "", tell_of_changes_twice),
    (rights.FAILURES, "viewer", "", list_failures_twice),
    (rights.OUTCOMES, "viewer", "+lrange", list_without_outcomes),
    (rights.FAILING, "writer", "", list_without_failures),
    (rights.RUNNING, "viewer", "+hgetall", show_twice),
    (rights.IN_PROGRESS, "viewer", "", list_runs_twice),
    (rights.DEADLINES, "viewer", "+zscore", look_at_a_run_twice),
    (rights.GIVING_UP, "beat", "", give_up_twice),
    (rights.SIGNALS, "beat", "", listen_twice),
    (rights.METRICS, "beat", "", gather_twice),
    (rights.PUSHES, "beat", "", send_in_one_step),
]


@pytest.mark.few_cases(18)
@pytest.mark.parametrize(
    ("feature", "user", "missing", "do"),
    [pytest.param(*one, id=f"{one[3].__name__} without {one[2] or 'more'}") for one in WITHOUT],
)
def test_what_takes_a_right_that_is_missing_is_off_and_that_is_said_once(
    old: Ground,
    caplog: pytest.LogCaptureFixture,
    feature: Feature,
    user: str,
    missing: str,
    do: Callable[[Ground], None],
) -> None:
    for name in ("report", "other"):
        Entry(name, "tasks.report", 60, app=old.app("default")).save()
    old.let([right for right in RULES_OF_3_0[user].split() if right != missing], user)
    do(old)
    assert errors_in(caplog) == []
    # the rules of 3.0 have no right to these, so that is said wherever somebody pauses or lists entries, or
    # asks who leads
    usual = (rights.EVENTS, rights.FAILING, rights.STORED)
    others = tuple(f"beat: {one.is_off}" for one in usual if one is not feature)
    found = [text for text in warnings_in(caplog) if text.startswith("beat: ")]
    [warning] = [text for text in found if not text.startswith(others)]
    assert warning.startswith(f"beat: {feature.is_off}, as the user of Redis seems to lack rights (")


def test_who_may_not_publish_may_still_write(old: Ground) -> None:
    old.let([right for right in RULES_OF_3_0["writer"].split() if right != "+publish"])
    app = old.app()
    for name in ("report", "other"):
        Entry(name, "tasks.report", 60, app=app).save()
    Entry.get("report", app).update(args=[1])
    assert Entry.delete_many(["report", "other"], app) == 2


def test_a_viewer_lists_stored_messages_without_a_right_to_their_ranks(old: Ground) -> None:
    store(old.app("default"), "one", "three", "two")
    messages = LaterStore(old.app("viewer"))
    assert [one.task_id for one in messages.first(5, 1)] == ["three", "two"]
    assert messages.count() == 3


def test_each_feature_that_can_be_off_is_tried() -> None:
    assert {one[0] for one in WITHOUT} | {rights.UNRUN} == set(FEATURES)


def test_deletions_before_the_first_run_are_not_counted_without_the_right(
    old: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    app = old.app()
    for name in ("report", "other"):
        Entry(name, "tasks.report", 60, app=old.app("default")).save()
        Entry.get(name, app).delete()
    assert Entry.count(app) == 0
    assert errors_in(caplog) == []
    assert sum(text.startswith(f"beat: {rights.UNRUN.is_off}, as") for text in warnings_in(caplog)) == 1
