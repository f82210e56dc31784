"""In which shard an entry is, and the names that follow from that."""

from __future__ import annotations

import pytest

from redbeat.keys import Keys, shard_prefix
from redbeat.layout import Layout, ShardedKeys, assumed_layout, shard_of


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
    assert {keys.guard for keys in none.parts} == {"4 0"}
