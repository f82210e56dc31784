"""In which shard an entry is, and the names that follow from that."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from redbeat.keys import Keys, identity_of, shard_prefix
from redbeat.layout import Layout, ShardedKeys, assumed_layout, shard_of
from redbeat.policy.jitter import delayed_before
from redbeat.policy.policy import Policy
from redbeat.task_ids import task_id_of


def test_the_shard_is_the_checksum_of_a_cluster_s_slots() -> None:
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
def test_a_hash_tag_in_the_prefix_doesn_t_put_all_shards_into_one_slot(prefix: str, expected: str) -> None:
    assert shard_prefix(prefix, 3) == expected


@pytest.mark.parametrize("name", ["report", "a{b}c", "ü", "\udcff", "\ud800x", ""])
def test_what_is_kept_for_an_entry_is_in_its_shard(name: str) -> None:
    keys = Layout(Keys(), 16, 1).keys
    assert isinstance(keys, ShardedKeys)
    home = keys.of_shard(shard_of(name, 16))
    assert keys.about(name) == home.about(name)
    assert keys.name(keys.entry(name)) == name
    assert keys.entry_of(keys.entry(name)) == keys.entry(name)
    assert all(key.startswith(home.prefix) for key in keys.about(name))


def test_what_each_shard_has_of_its_own_can_t_be_asked_of_all() -> None:
    keys = Layout(Keys(), 4, 1).keys
    with pytest.raises(LookupError, match="its own redbeat::schedule"):
        keys.schedule  # noqa: B018 - it raises
    assert (keys.audit, keys.layout, keys.calendar("x")) == (
        "redbeat::audit",
        "redbeat::layout",
        "redbeat::calendar:x",
    )


def test_without_shards_nothing_is_different() -> None:
    base = Keys()
    assert assumed_layout(base, None).keys is base
    assert assumed_layout(base, None).parts == (base,)
    assert assumed_layout(base, None).guard == ""


def test_while_entries_move_the_former_parts_are_parts_too() -> None:
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
def test_what_follows_from_an_entry_s_key_is_the_same_in_each_shard(prefix: str, shard: str) -> None:
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
def test_other_keys_say_themselves_what_entry_they_are(key: str) -> None:
    assert Layout(Keys(), 16, 2).keys.prefix == "redbeat:"
    assert identity_of(key) == key
