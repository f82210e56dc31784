"""How scripts are sent and their replies read, and how a large batch is read in portions."""

from __future__ import annotations

import hashlib
import random
import re
from dataclasses import fields
from importlib.resources import files
from typing import Any

import pytest
from redis.exceptions import NoScriptError

from redbeat.connection.retry import RequestBroken
from redbeat.errors import StoreRefused
from redbeat.keys import Keys
from redbeat.store import records
from redbeat.store import scripts as lua
from redbeat.store.portions import Portions
from redbeat.store.records import Claimed, KeyType, Stored
from redbeat.store.scripts.script import Script
from tests.support.scripts import BOUND


class Client:
    """Records commands. It knows no script until it is sent its source."""

    def __init__(self, reply: Any) -> None:
        self.reply, self.sent = reply, list[tuple[Any, ...]]()

    def evalsha(self, *words: Any) -> Any:
        self.sent.append(("evalsha", *words))
        raise NoScriptError

    def eval(self, *words: Any) -> Any:
        self.sent.append(("eval", *words))
        return self.reply


def test_script_that_the_server_does_not_know_is_sent_as_source() -> None:
    client = Client(1)
    call = Script("release_lock").call(lock="lock", mark="", token="token", wake="wake")
    assert call.run(client) == 1
    source = call.script.source
    values = 2, b"lock", b"lock", b'{"token":"token","wake":"wake"}'
    assert client.sent == [
        ("evalsha", hashlib.sha1(source.encode()).hexdigest(), *values),
        ("eval", source, *values),
    ]


@pytest.mark.parametrize("script", BOUND.values(), ids=BOUND)
def test_body_of_a_script_uses_what_its_header_declares_and_nothing_else(script: Script) -> None:
    body = re.sub(r"--.*", "", files(lua).joinpath(f"{script.name}.lua").read_text("utf-8"))
    assert not re.search("KEYS|ARGV", body)
    assert [name for name in script.header.names if not re.search(rf"\b{name}\b", body)] == []


def test_call_with_other_names_than_the_header_has_is_an_error_that_names_the_script() -> None:
    with pytest.raises(
        TypeError, match="save_entries: definitions is missing, entry is unknown, fence is miss"
    ):
        Script("save_entries").call(Keys(), entries=[], states=[], state_of=[], entry=1)


def test_half_a_character_in_an_argument_is_an_error_about_that_text_alone() -> None:
    call = Script("note_beat").call(beats="k", layout="l", beat="half \ud800", life_ms=1)
    with pytest.raises(UnicodeEncodeError) as raised:
        call.words(None)
    assert raised.value.object == "half \ud800"


def test_key_that_is_not_utf8_is_sent_as_the_bytes_that_were_read() -> None:
    client = Client(["ok", 0, "1", [], ""])
    lua.commit_runs(
        client, Keys(), records.Fence(), [records.Commit(records.Claimed("k\udcff", "1", "{}"), "2")]
    )
    assert b"k\xff" in client.sent[-1]


def test_reply_in_bytes_is_read_as_text() -> None:
    row = [b"k\xff", b"1", b"{}", None, None, None, b"2"]
    reply = [b"ok", b"1.5", b"2.5", 1, 1, [row], [[b"id\0runs\xff", b"1.25", None]], b"3.5", b"4.5"]
    keys = lua.ClaimKeys("schedule", "deadlines", "other", Keys())
    claim = lua.claim_due(
        Client(reply), keys, records.Fence(), lua.ClaimLimits(1, 1, 1, 0, "", sizes=records.Sizes(0, 1))
    )
    assert claim == records.Claim(
        records.LockStatus.HELD,
        now=1.5,
        next_score=2.5,
        has_more=True,
        is_held=True,
        rows=[records.Claimed("k\udcff", "1", "{}", score="2")],
        deadlines=[records.Deadline("id\0runs\udcff", "1.25", None)],
        next_deadline=3.5,
        other_score=4.5,
    )


def test_text_that_looks_like_a_digest_is_sent_as_a_digest() -> None:
    assert records.digest_of("#text") == f"#{hashlib.sha1(b'#text').hexdigest()}"


class Server:
    """Answers at most `limit` bytes."""

    def __init__(self, sizes: dict[str, int], limit: int) -> None:
        self.sizes, self.limit = sizes, limit
        self.answers: list[list[str]] = []
        self.breaks = 0

    def read(self, keys: list[str], is_blamed: bool) -> list[Stored]:
        assert is_blamed == (len(keys) == 1)
        if sum(self.sizes[key] for key in keys) > self.limit:
            self.breaks += 1
            raise StoreRefused("no") from RequestBroken(ConnectionError("reset"))
        self.answers.append(keys)
        return [Stored(key, f"the definition of {key}", type=KeyType.HASH) for key in keys]


def rows_of(sizes: dict[str, int]) -> list[Claimed]:
    return [Claimed(key, "1", unread_bytes=size) for key, size in sizes.items()]


def test_portions_read_every_entry_that_fits_the_limit() -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chosen = random.Random(seed)
    for _ in range(50):
        sizes = {f"k{number}": int(10 ** chosen.uniform(0, 6)) for number in range(chosen.randrange(1, 300))}
        limit = int(10 ** chosen.uniform(1, 6))
        server, rows = Server(sizes, limit), rows_of(sizes)
        Portions().fill(rows, server.read)
        for row in rows:
            is_read = sizes[row.key] <= limit
            assert row.definition == (f"the definition of {row.key}" if is_read else None)
            assert row.unread_bytes == (0 if is_read else sizes[row.key])
        assert [key for answer in server.answers for key in answer] == [
            row.key for row in rows if sizes[row.key] <= limit
        ]


def test_portion_fills_all_fields_of_a_fetched_row() -> None:
    found = Stored("k", "d", "m", 2.5, "p", "e", KeyType.HASH, is_meta_foreign=True, revision="r")
    [row] = rows = rows_of({"k": 5})
    Portions().fill(rows, lambda *_: [found])
    names = [one.name for one in fields(Claimed) if hasattr(found, one.name) and one.name != "score"]
    assert {name: getattr(row, name) for name in names} == {name: getattr(found, name) for name in names}


def test_refusal_for_want_of_a_right_is_raised() -> None:
    def refuse(keys: list[str], is_blamed: bool) -> list[Stored]:
        raise StoreRefused("NOPERM")

    with pytest.raises(StoreRefused, match="NOPERM"):
        Portions().fill(rows_of({"k": 1}), refuse)
