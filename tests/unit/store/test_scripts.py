"""How scripts are sent and their replies read."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files
from typing import Any

import pytest
from redis.exceptions import NoScriptError

from redbeat.keys import NO_PART, Keys
from redbeat.store import records
from redbeat.store import scripts as lua
from redbeat.store.schedule import commit_call
from redbeat.store.scripts.script import Script
from tests.support.fetched import fetched
from tests.support.scripts import SCRIPTS


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


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_body_of_a_script_uses_what_its_header_declares_and_nothing_else(script: Script) -> None:
    body = re.sub(r"--.*", "", files(lua).joinpath(f"{script.name}.lua").read_text("utf-8"))
    assert not re.search(r"\b(KEYS|ARGV)\b", body)
    source = re.sub(r"--.*", "", script.source).partition(script.header.variables())[2]
    assert [name for name in script.header.names if not re.search(rf"\b{name}\b", source)] == []


def test_call_with_other_names_than_the_header_has_is_an_error_that_names_the_script() -> None:
    with pytest.raises(TypeError, match="write_entries: missing or unknown: definitions, entry, fence"):
        Script("write_entries").call(Keys(), entries=[], beside=[], rows=[], states=[], state_of=[], entry=1)


def test_half_a_character_in_an_argument_is_an_error_about_that_text_alone() -> None:
    call = Script("note_beat").call(NO_PART, beats="k", layout="l", beat="half \ud800", life_ms=1)
    with pytest.raises(UnicodeEncodeError) as raised:
        call.words()
    assert raised.value.object == "half \ud800"


def test_key_that_is_not_utf8_is_sent_as_the_bytes_that_were_read() -> None:
    client = Client(["ok", 0, "1", [], ""])
    commits = [records.Commit(fetched("k\udcff", "1", "{}"), "2")]
    commit_call(Keys(), records.Fence(), commits).run(client)
    assert b"k\xff" in client.sent[-1]


def test_reply_in_bytes_is_read_as_text() -> None:
    others, texts = b'[{"row": 1, "score": "2"}]', b"\0".join([b"k\xff", b"1", b"{\xff}", *[b""] * 5])
    reply = [b"ok", b"1.5", b"2.5", 1, others, texts, [[b"id\0runs\xff", b"1.25", None]], b"3.5", b"4.5"]
    assert records.fetched_of(reply) == records.Fetched(
        records.LockStatus.HELD,
        now=1.5,
        next_score=2.5,
        has_more=True,
        rows=[fetched("k\udcff", "1", "{\udcff}", current_score="2")],
        deadlines=[records.Deadline("id\0runs\udcff", "1.25", None)],
        next_deadline=3.5,
        other_score=4.5,
    )


def test_text_that_looks_like_a_digest_is_sent_as_a_digest() -> None:
    assert records.digest_of("#text") == f"#{hashlib.sha1(b'#text').hexdigest()}"
