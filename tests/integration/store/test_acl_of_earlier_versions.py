"""Users with the ACL rules of 2.x and 3.0: what works without newer rights, which missing ones are named."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat import track_runs
from redbeat.config.timing import Timing
from redbeat.errors import StoreRefused
from redbeat.store import rights
from redbeat.store.notifier import WakeChannel
from redbeat.store.rights import Feature
from redbeat.store.store import Store
from redbeat.telemetry.metrics.gathering import LASTING_REFUSALS
from tests.integration.store.rights import (
    CLAIMS,
    PASSWORD,
    SINCE_3_0,
    Ground,
    documented_rights,
    gathering_of,
    it_ends_runs_that_are_lost,
    run_twice,
)
from tests.support.apps import celery_beat, run_beat, write_app
from tests.support.command_line import call
from tests.support.logs import errors_in, warnings_in
from tests.support.polling import eventually
from tests.support.schedule import LOCK, sent_names
from tests.support.shards import election_in
from tests.support.ticks import take_messages

_BEAT = (
    "~redbeat:* resetchannels &redbeat::wake +select +eval +evalsha +time +config|get +publish +subscribe "
    "+type +exists +get +set +del +pttl +smembers +sadd +srem +hget +hmget +hstrlen +hgetall +hset +hdel "
    "+zadd +zrem +zscore +zrangebyscore +zcount +lpush +ltrim"
)
_BEAT_EXACTLY_ONCE = f"{_BEAT} ~celery* +info +lpop +pexpire"
#: the rules in the documentation of 3.0. They never grow: what needs another right is a Feature
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
#: rights added since then that only sharded schedules and delayed tasks need
ONLY_FOR_SHARDS = {
    *("~redbeat::layout", "~redbeat::generation", "~redbeat::beats", "~redbeat::moving"),
    *("~redbeat::later:*", "+hmget", "+zrange"),
}


@pytest.fixture
def old(ground: Ground) -> Ground:
    """The users with the rules of 3.0."""
    for user, words in RULES_OF_3_0.items():
        ground.let(words.split(), user)
    return ground


@pytest.mark.parametrize("user", RULES_OF_3_0)
def test_right_added_since_3_0_belongs_to_a_feature_that_can_be_off(user: str) -> None:
    added = set(documented_rights(user)) - set(RULES_OF_3_0[user].split()) - ONLY_FOR_SHARDS
    assert added <= {right for feature in FEATURES for right in feature.rights.split()}


@pytest.mark.parametrize("user", RULES_OF_3_0)
def test_user_with_the_rules_of_3_0_can_do_what_it_could(old: Ground, user: str) -> None:
    for fetched in CLAIMS[user]:
        if fetched not in SINCE_3_0:
            fetched(old.of(user))
            old.server.flush()


def test_beat_process_with_the_rules_of_3_0_warns_of_nothing(old: Ground, tmp_path: Path) -> None:
    url = f"redis://beat_exactly_once:{quote(PASSWORD, safe='')}@127.0.0.1:{old.server.port}/0"
    assert call(old.app("writer"), "add", "report", "echo", "--every", "200ms").exit_code == 0
    with run_beat(tmp_path, old.server.url(0), redbeat_redis_url=url) as beat:
        eventually(lambda: sent_names(old.admin))
        assert call(old.app("status"), "status").exit_code == 0
    assert "WARNING" not in beat.output()
    assert "ERROR" not in beat.output()


# -- features that are off without a right


def send_in_one_step(ground: Ground) -> None:
    run_twice(ground, broker_url=ground.server.url(0), task_default_queue="celery")


def wait_for_a_change(ground: Ground) -> None:
    beat = Store(ground.app("beat"))
    channel = WakeChannel(beat.client, [beat.keys.wake], beat.rights)
    assert [channel.wait(0.5) for _ in range(2)] == [False, False]


def run_by_hand(ground: Ground, *, is_tracked: bool = False) -> None:
    app = ground.app()
    if is_tracked:
        track_runs(app)
    sent = [Entry.get("report", app).trigger().id for _ in range(2)]
    assert [message.id for message in take_messages(app)] == sent


def run_a_tracked_task_by_hand(ground: Ground) -> None:
    run_by_hand(ground, is_tracked=True)


def pause_twice(ground: Ground) -> None:
    app = ground.app()
    for name in ("report", "other"):
        Entry.get(name, app).pause()
    assert Entry.count(app, state="paused") == 2


def lose_twice(ground: Ground) -> None:
    app = ground.app("beat")
    for _ in range(2):
        it_ends_runs_that_are_lost(ground, app)


def stand_by_twice(ground: Ground) -> None:
    ground.admin.set(LOCK, "another", px=60_000)
    election = election_in(ground.app("beat"), Timing(60))
    assert [election.look() for _ in range(2)] == [[], []]
    ground.admin.delete(LOCK)
    assert election.look()
    election.resign()


def gather_twice(ground: Ground) -> None:
    run_twice(ground)
    gathering = gathering_of(ground.app("beat"))
    for _ in range(2 * LASTING_REFUSALS):
        gathering.gather()
        assert not gathering.views


#: a feature, the user, the right of 3.0 that is taken away too, and what works all the same
WITHOUT: list[tuple[Feature, str, str, Callable[[Ground], None]]] = [
    (rights.HISTORIES, "beat", "+lpush", run_twice),
    (rights.HISTORIES, "beat", "+ltrim", run_twice),
    (rights.HISTORIES, "writer", "+ltrim", run_by_hand),
    (rights.WAKE_UPS, "beat", "+subscribe", wait_for_a_change),
    (rights.STANDBYS, "beat", "", stand_by_twice),
    (rights.RUNS, "beat", "", lose_twice),
    (rights.EVENTS, "writer", "", pause_twice),
    (rights.BY_HAND, "writer", "", run_a_tracked_task_by_hand),
    (rights.METRICS, "beat", "", gather_twice),
    (rights.PUSHES, "beat", "", send_in_one_step),
]


@pytest.mark.parametrize(
    ("feature", "user", "missing", "do"),
    [pytest.param(*one, id=f"{one[3].__name__} without {one[2] or 'more'}") for one in WITHOUT],
)
def test_feature_without_its_right_is_off_and_warned_of_once(
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
    # the rules of 3.0 lack these, so the warning comes with every pause, list and status
    usual = rights.EVENTS, rights.FAILING, rights.STORED, rights.UNRUN
    others = tuple(f"beat: {one.is_off}" for one in usual if one is not feature)
    found = [text for text in warnings_in(caplog) if text.startswith("beat: ")]
    [warning] = [text for text in found if not text.startswith(others)]
    assert warning.startswith(f"beat: {feature.is_off}, as the user of Redis seems to lack rights (")


def test_writer_without_the_right_to_publish_writes(old: Ground) -> None:
    old.let([right for right in RULES_OF_3_0["writer"].split() if right != "+publish"])
    app = old.app()
    for name in ("report", "other"):
        Entry(name, "tasks.report", 60, app=app).save()
    Entry.get("report", app).update(args=[1])
    assert Entry.delete_many(["report", "other"], app) == 2


# -- the rights that celery-redbeat 2.x needs

_2X = (
    "~redbeat:* +del +evalsha +exec +get +hello +hget +hset +hsetnx +multi +pexpire +ping +pttl +sadd "
    "+script|load +select +set +smembers +srem +zadd +zrangebyscore +zrank +zrem +zscore"
)
OF_2X = _2X.split()


@pytest.fixture
def user_of_2x(ground: Ground) -> Ground:
    made = ground.of("old")
    made.let(OF_2X)
    return made


def missing_in(words: str) -> list[str]:
    found = re.search(r"its user old lacks these rights that .* needs: (.*?)\. Add them", words)
    assert found is not None, words
    return found[1].split()


def test_save_with_the_rights_of_2x_names_all_missing_rights(user_of_2x: Ground) -> None:
    entry = Entry("report", "t", 60, app=user_of_2x.app())
    with pytest.raises(StoreRefused) as caught:
        entry.save()
    missing = missing_in(str(caught.value))
    assert {"+time", "+hmget", "+exists", "&redbeat::wake"} <= set(missing)
    assert not set(missing) & set(OF_2X)
    assert user_of_2x.admin.dbsize() == 0
    user_of_2x.let([*OF_2X, *missing])
    entry.save()
    entry.save()
    Entry.from_key("redbeat:report", app=entry.app).delete()
    assert user_of_2x.refusals() == []
    user_of_2x.let(["~other:*", "&*", "+@all"])
    with pytest.raises(StoreRefused, match=r"needs: ~redbeat:\*\. Add"):
        entry.save()


@pytest.mark.parametrize("more", [{}, {"redbeat_shards": 3}], ids=["one lock", "shards"])
def test_beat_with_the_rights_of_2x_names_all_missing_rights_and_exits(
    user_of_2x: Ground, tmp_path: Path, more: dict[str, Any]
) -> None:
    server = user_of_2x.server
    options = {"username": "old", "password": PASSWORD}
    settings = {"redbeat_redis_url": server.url(0), "redbeat_redis_options": options, **more}
    extra = "app.conf.beat_schedule = {'often': {'task': 'echo', 'schedule': 0.5}}"
    write_app(tmp_path, "module", server.url(1), extra=extra, **settings)
    with celery_beat(tmp_path, "module") as refused:
        assert refused.wait() != 0
    *_, line = [line for line in refused.output().splitlines() if "lacks these rights" in line]
    user_of_2x.let([*OF_2X, *missing_in(line)])
    with celery_beat(tmp_path, "module") as beat:
        beat.wait_for("Sending due task often")
    warned = [line for line in beat.output().splitlines() if "lack rights" in line]
    assert all("Runs are delivered at least once" in line for line in warned), warned
