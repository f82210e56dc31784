"""The shard of an entry, its keys, and what a reshard does with each kind of key."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.keys import OF_A_PART, EntryKeys, Keys, identity_of, shard_prefix
from redbeat.layout import Layout, ShardedKeys, shard_of
from redbeat.policy.jitter import delayed_before
from redbeat.policy.policy import Policy
from redbeat.store.layouts import Refusal, refusal_of
from redbeat.store.store import Store
from redbeat.task_ids import task_id_of
from tests.support.ticks import fake_redis_app, leader


def test_shard_of_a_name_is_its_cluster_slot_modulo_the_number_of_shards() -> None:
    # the specification of Redis Cluster has this value for "123456789", and 4096 is a quarter of its slots
    assert shard_of("123456789", 4096) == 0x31C3 % 4096
    assert [shard_of("report", shards) for shards in (1, 4, 16)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("redbeat:", "{redbeat:3}:"),
        ("{redbeat}:", "{redbeat:3}:"),
        ("my:app:", "{my:app:3}:"),
        ("app", "{app:3}:"),
    ],
)
def test_prefix_with_a_hash_tag_spreads_shards_over_slots(prefix: str, expected: str) -> None:
    assert shard_prefix(prefix, 3) == expected


@pytest.mark.parametrize("shards", [None, 16])
@pytest.mark.parametrize(
    "name", ["report", "a{b}c", "ü", "\udcff", "\ud800x", "", ":x", "redbeat:twice", "*?[]\\"]
)
def test_keys_of_an_entry_are_all_in_its_shard_and_say_its_name(name: str, shards: int | None) -> None:
    keys = Layout(Keys(), shards, 1).keys
    home = keys.of_shard(shard_of(name, shards)) if isinstance(keys, ShardedKeys) and shards else keys
    assert keys.about(name) == home.about(name)
    assert keys.about(name).entry == keys.entry(name) == f"{home.prefix}{name}"
    assert keys.name(keys.entry(name)) == name
    assert keys.entry_of(keys.entry(name)) == keys.entry(name)
    assert all(key.startswith(home.prefix) for key in keys.about(name))


def test_key_that_each_shard_has_cannot_be_asked_of_the_whole_schedule() -> None:
    keys = Layout(Keys(), 4, 1).keys
    with pytest.raises(LookupError, match="its own redbeat::schedule"):
        keys.schedule  # noqa: B018 - it raises
    assert (keys.audit, keys.layout, keys.calendar("x")) == (
        "redbeat::audit",
        "redbeat::layout",
        "redbeat::calendar:x",
    )


def test_moving_layout_contains_the_former_shards() -> None:
    moving = Layout(Keys(), 4, 2, former=None, is_moving=True)
    assert [keys.prefix for keys in moving.parts] == [*(f"{{redbeat:{k}}}:" for k in range(4)), "redbeat:"]
    fewer = Layout(Keys(), 2, 3, former=4, is_moving=True)
    assert [keys.prefix for keys in fewer.parts] == [f"{{redbeat:{k}}}:" for k in range(4)]
    none = Layout(Keys(), None, 4, former=2, is_moving=True)
    assert [keys.prefix for keys in none.parts] == ["redbeat:", "{redbeat:0}:", "{redbeat:1}:"]
    assert none.keys.entry("report") == "redbeat:report"
    assert none.keys.name("{redbeat:1}:report") == "report"
    assert {keys.guard for keys in none.parts} == {"4 0 from 2"}


@pytest.mark.parametrize(
    ("prefix", "shard"), [("app:", "{app:12}:"), ("{own}:", "{own:3}:"), ("x", "{x:0}:")]
)
def test_task_id_and_jitter_are_the_same_in_every_shard(prefix: str, shard: str) -> None:
    assert Layout(Keys(prefix), 16, 2).keys.prefix == prefix  # this is how a process learns of shards
    assert identity_of(f"{shard}a}}:b{{c") == f"{prefix}a}}:b{{c"
    due = "2026-01-31T07:30:00.000000+00:00"
    assert task_id_of(f"{shard}report", due) == task_id_of(f"{prefix}report", due)
    at, bounds = datetime(2026, 1, 31, 7, 30, tzinfo=timezone.utc), Policy(jitter=60)
    assert delayed_before(f"{shard}report", bounds, at, None) == delayed_before(
        f"{prefix}report", bounds, at, None
    )


@pytest.mark.parametrize(
    "key", ["redbeat:report", "{redbeat}:report", "{unknown:3}:report", "{redbeat:x}:report", ""]
)
def test_identity_of_a_key_without_a_known_shard_is_the_key(key: str) -> None:
    assert Layout(Keys(), 16, 2).keys.prefix == "redbeat:"
    assert identity_of(key) == key


def test_keys_of_two_entries_are_disjoint() -> None:
    named = Keys()
    names = ("report", "reports", "report:", ":history", "history:report", "")
    found = [key for name in names for key in named.about(name)]
    assert len(set(found)) == len(found) == len(names) * len(EntryKeys._fields)


# -- what a reshard does with each kind of key

#: keys of a shard with a member per entry, which moves with the entry
OF_ENTRIES = {
    *("schedule", "later", "statics", "static_owners", "downgraded"),
    *("deadlines", "expected", "streaks"),
}
#: keys of a beat or a mover, which stay
OF_BEATS = {
    *("lock", "tick", "wake", "released", "teller"),
    *("mover", "moving", "left", "arrived", "arriving"),
}
#: keys that no shard has, besides those of the layout
SHARED = {"layout", "beats", "audit", "tokens", "pinged"}


def own_keys() -> set[str]:
    """The names of all keys that a part, or the schedule, has once."""
    made_by = type(vars(Keys)["lock"])
    return {"schedule", "statics"} | {name for name, one in vars(Keys).items() if isinstance(one, made_by)}


def test_every_key_has_a_rule_for_a_reshard() -> None:
    known = [OF_ENTRIES, OF_BEATS, SHARED, {"generation"}, set(OF_A_PART)]
    assert sorted(own_keys()) == sorted(name for names in known for name in names)


def test_fake_server_with_shards_has_all_entries_sent() -> None:
    app, names = fake_redis_app(redbeat_shards=4), [f"entry-{number}" for number in range(20)]
    Entry.save_many(Entry(name, "echo", timedelta(hours=1), app=app) for name in names)
    for name in names:
        home = Store(app).parts.of(name)
        app.redbeat_redis.zadd(home.schedule, {home.entry(name): 1})
    with leader(app) as scheduler:
        while not scheduler.tick():
            pass
    assert [Entry.get(name, app).total_run_count for name in names] == [1] * 20


def test_refusal_by_the_layout_check_names_the_key_and_its_value() -> None:
    said = 'RESHARDED {redbeat:1}::generation holds "3 4", not "2 16".'
    assert refusal_of(Exception(said)) == Refusal("{redbeat:1}::generation", "3 4")
    assert refusal_of(Exception('RESHARDED my"key:generation holds "", not "2 16".')) == Refusal(
        'my"key:generation', ""
    )
    assert refusal_of(Exception("WRONGTYPE")) is refusal_of(None) is None


def test_entry_name_is_found_in_its_key_under_any_layout() -> None:
    for layout in (
        Layout(Keys(), 4, 1),
        Layout(Keys(), None, 2),
        Layout(Keys(), 4, 3, None, is_moving=True),
    ):
        for key in ("redbeat:report", "{redbeat:3}:report", "{redbeat:15}:report"):
            assert layout.name_of(key) == "report"
    assert Layout(Keys()).name_of("{redbeat:3}:report") == "{redbeat:3}:report", "it was never divided"
