"""What beats that share a schedule log: which shards they lead by now, and each thing once."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Iterator

import pytest
from celery import Celery

from redbeat.config.timing import Timing
from redbeat.errors import LayoutChanged
from redbeat.layout import shards_named
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.support.polling import eventually
from tests.support.sharing import SharingBeat, step

SHARDS = 16


@pytest.fixture
def beats(make_app: MakeApp) -> Iterator[list[SharingBeat]]:
    """Two beats."""
    made = [SharingBeat(make_app(redbeat_shards=SHARDS)) for _ in range(2)]
    for beat in made:
        beat.shares.keep_alive()
    yield made
    for beat in made:
        beat.shares.resign()


@pytest.fixture(autouse=True)
def _informed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def messages(caplog: pytest.LogCaptureFixture, pattern: str) -> list[str]:
    return [message for message in caplog.messages if re.search(pattern, message)]


def numbers_of(beat: SharingBeat) -> str:
    return ", ".join(re.findall(r"\d+", " ".join(sorted(beat.led, key=lambda one: int(one[9:-2])))))


def test_some_shards_are_named_by_their_numbers() -> None:
    assert shards_named([3], 16) == "shard 3 of 16"
    assert shards_named([7, 0, 3], 16) == "shards 0, 3, 7 of 16"
    assert shards_named(range(16), 16) == "all 16 shards"
    assert shards_named([0], 1) == "shard 0 of 1"
    named = ", ".join(map(str, range(16)))
    assert shards_named(range(40), 64) == f"shards {named} and 24 more of 64"
    assert shards_named([2, 14], 4) == "shards 2, 14", "one of a former layout"
    assert shards_named([None], 16) == "the part without shards"
    assert shards_named([None, 1, 2], 16) == "shards 1, 2 of 16 and the part without shards"


def test_it_is_said_which_shards_are_acquired_handed_over_and_released(
    beats: list[SharingBeat], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = beats
    first.step()
    assert messages(caplog, "Acquired") == ["beat: Acquired 16 locks: all 16 shards; this beat leads 16 now."]
    eventually(lambda: step(beats) or (second.led and not first.shares.leaving))
    handed = numbers_of(second)
    assert messages(caplog, "Hands") == [
        f"beat: Hands shards {handed} of 16 over to other beats; this beat leads {len(first.led)} now."
    ]
    count = len(second.led)
    assert messages(caplog, "Acquired")[1:] == [
        f"beat: Acquired {count} locks: shards {handed} of 16; this beat leads {count} now."
    ]
    second.shares.resign()
    assert messages(caplog, "Releasing") == [f"beat: Releasing {count} locks: shards {handed} of 16"]


def test_what_is_taken_over_from_one_beat_is_told_of_together(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    slow = Timing(60.0, 4.0)  # the locks outlive their holder
    gone, living = (SharingBeat(make_app(redbeat_shards=SHARDS), slow) for _ in range(2))
    gone.shares.keep_alive()
    gone.step()
    gone.crash()
    eventually(lambda: living.step(at_once=False) or len(living.led) == SHARDS)
    living.shares.resign()
    [said] = messages(caplog, "Took")
    who = f"process {os.getpid()} on {socket.gethostname()}"
    assert said.startswith(f"beat: Took all 16 shards over from {who}, which has not renewed for ")


def test_locks_that_were_gone_are_told_of_together(
    beats: list[SharingBeat], caplog: pytest.LogCaptureFixture
) -> None:
    """As when a node comes back empty."""
    beat, _ = beats
    beat.step()
    keys = [str(leadership.lock_key) for leadership in beat.shares.leaderships[:5]]
    beat.store.client.delete(*keys)
    eventually(lambda: beat.store.client.exists(*keys) == 5)
    eventually(lambda: (beat.shares.check(), messages(caplog, "taken back"))[1])
    [said] = messages(caplog, "taken back")
    assert said == "beat: The locks of shards 0, 1, 2, 3, 4 of 16 were gone and are taken back."
    [event] = [record.redbeat for record in caplog.records if hasattr(record, "redbeat")][-1:]
    assert (event["event"], event["lock"].split()) == ("redbeat.leader.retaken", keys)


def test_a_standby_of_a_schedule_that_is_divided_releases_no_lock(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    leader, standby = (SharingBeat(make_app()) for _ in range(2))
    step([leader, standby])
    divide(leader.app)
    leader.shares.resign()
    caplog.clear()
    with pytest.raises(LayoutChanged):
        standby.step()
    standby.set_parts(standby.store.parts)
    assert not messages(caplog, "Releasing")
    standby.step()
    assert len(standby.led) == SHARDS
    standby.shares.resign()


def divide(app: Celery) -> None:
    """Divide a schedule without entries, as another process does."""
    store = Store(app)
    guard = f"1 {SHARDS}"
    store.client.hset("redbeat::layout", mapping={"shards": SHARDS, "generation": 1})
    store.client.mset({"redbeat::generation": guard.replace(str(SHARDS), "closed")})
    store.client.mset({f"{{redbeat:{shard}}}::generation": guard for shard in range(SHARDS)})
