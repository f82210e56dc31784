"""How long nobody leads: real beats with default settings, the leader ended in every way that there is.

Measured from the event to the next message of a one-second entry. A checker reads every message and every
change of the lock.
"""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import redis

from tests.faults.rounds import IS_LONG
from tests.support.apps import celery_beat, write_app
from tests.support.deadlines import patience
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.progress import NAMES
from tests.support.schedule import LOCK, monitored, monitoring
from tests.support.servers import Server

#: the earliest: then the due times of the messages tell since when nothing was sent
EVERY_SECOND = {"every-second": {"task": "echo", "schedule": 1.0, "misfire": "earliest"}}
STANDBYS = 20 if IS_LONG else 1

HANGING_HANDLER = """
import os, time
from celery.signals import before_task_publish

@before_task_publish.connect
def hang(**kwargs):
    if os.path.exists("hang-" + str(os.getpid())):
        time.sleep(3600)
"""


@contextmanager
def beats(folder: Path, server: Server, count: int = 2, **settings: object) -> Iterator[list[Process]]:
    """Beats of one app, the leader first: it has sent, and the others stand by. All is checked afterwards."""
    defaults = {"redbeat_redis_url": server.url(1), "beat_schedule": EVERY_SECOND}
    extra = str(settings.pop("extra", ""))
    write_app(folder, "module", server.url(0), extra=extra, **{**defaults, **settings})
    with chronicling(server) as chronicle, ExitStack() as stack:
        leader = stack.enter_context(celery_beat(folder, "module"))
        leader.wait_for("Sending due task")
        standbys = [stack.enter_context(celery_beat(folder, "module")) for _ in range(count - 1)]
        for standby in standbys:
            standby.wait_for("Standing by")
        yield [leader, *standbys]
    print(chronicle)
    assert chronicle.is_good, chronicle


def seconds_to_next_message(server: Server, happen: Callable[[], object]) -> float:
    """How long after `happen()` the next message is on the queue."""
    with server.client() as broker:
        happen()
        happened = time.monotonic()
        before = broker.llen("celery")
        eventually(lambda: broker.llen("celery") > before, interval=0.01)
        return time.monotonic() - happened


def commands_of(server: Server, seconds: float) -> Counter[str]:
    """What the server is told in so many seconds."""
    with monitoring(server) as commands:
        time.sleep(seconds)
    return Counter(command.split()[0] for command in commands)


def has_more_than(broker: redis.Redis, count: int) -> bool:
    return broker.llen("celery") > count


@pytest.mark.slow
def test_sigterm_of_the_leader_costs_no_more_than_a_second(server: Server, tmp_path: Path) -> None:
    with beats(tmp_path, server) as [leader, standby]:
        seconds = seconds_to_next_message(server, lambda: leader.signal(signal.SIGTERM))
        standby.wait_for("Sending due task")
        print(f"SIGTERM to the next message: {seconds:.2f} s")
        assert seconds <= patience(1.5)


def test_a_killed_leader_is_replaced_within_ten_seconds(server: Server, tmp_path: Path) -> None:
    with beats(tmp_path, server, count=STANDBYS + 1) as [leader, *standbys]:
        with server.client(db=1) as client:
            eventually(lambda: client.hexists(NAMES.totals, ":led"), message="the leader takes no figures")
        eventually(lambda: "HELLO" not in commands_of(server, 1.0), message="still connecting")
        commands = commands_of(server, 2.0)
        rate = commands.total() / 2
        print(f"{len(standbys)} standbys, a leader that sends once a second: {rate:.1f} commands a second")
        assert rate < 1.25 * len(standbys) + 5, commands  # a look a second, and a word now and then
        seconds = seconds_to_next_message(server, leader.kill)
        print(f"kill -9 to the next message: {seconds:.2f} s")
        assert seconds <= patience(10)
        took_over = [standby for standby in standbys if "Took the lock over" in standby.output()]
        assert len(took_over) == 1


@pytest.mark.slow
@pytest.mark.few_cases(1)
@pytest.mark.parametrize("when_lost", ["exit", "standby"])
def test_a_paused_leader_publishes_nothing_after_takeover(
    server: Server, tmp_path: Path, when_lost: str
) -> None:
    with beats(tmp_path, server, redbeat_lock_lost=when_lost) as [leader, standby]:
        seconds = seconds_to_next_message(server, lambda: leader.signal(signal.SIGSTOP))
        print(f"SIGSTOP to the next message: {seconds:.2f} s")
        assert seconds <= patience(10)
        standby.wait_for("Took the lock over")
        sent = leader.output().count("Sending due task")
        leader.signal(signal.SIGCONT)
        if when_lost == "exit":
            assert leader.wait() not in (0, None)
            assert "LockNotOwnedError" in leader.output() or "LockLost" in leader.output()
        else:
            leader.wait_for("It stands by.")
            assert standby.stop() == 0
            eventually(lambda: leader.output().count("Sending due task") > sent)
        with server.client(db=1) as client:
            assert client.get(LOCK)
        if when_lost == "exit":
            assert leader.output().count("Sending due task") == sent


@pytest.mark.slow
def test_a_lock_deleted_by_hand_is_taken_back_by_the_one_that_had_it(server: Server, tmp_path: Path) -> None:
    with beats(tmp_path, server), server.client() as broker, server.client(db=1) as client:
        longest, at = 0.0, time.monotonic()
        for _ in range(3):
            before = broker.llen("celery")
            client.delete(LOCK)
            eventually(partial(has_more_than, broker, before), interval=0.01)
            longest, at = max(longest, time.monotonic() - at), time.monotonic()
        print(f"the longest gap between two messages: {longest:.2f} s")
        assert longest <= patience(2)


@pytest.mark.slow
def test_a_leader_whose_main_thread_hangs_gives_the_lock_up(server: Server, tmp_path: Path) -> None:
    settings = {"redbeat_lock_timeout": 8, "extra": HANGING_HANDLER}
    with beats(tmp_path, server, **settings) as [leader, standby]:
        seconds = seconds_to_next_message(
            server, lambda: (tmp_path / f"hang-{leader.pid}").touch() or time.sleep(1.2)
        )
        print(f"a handler that hangs: {seconds:.2f} s to the next message")
        leader.wait_for("has done nothing for")
        standby.wait_for("Sending due task")
        assert seconds <= patience(10)
        assert "gives up the lock" in leader.output()


#: clocks are read a moment before a message leaves, in the same script
_SLACK_SECONDS = 0.05


@dataclass(frozen=True)
class Message:
    """One that left: when, for when, and with which task id; UNIX seconds."""

    left_at: float
    due: float
    task_id: str

    @property
    def late_seconds(self) -> float:
        return self.left_at - self.due


@dataclass
class Chronicle:
    """What happened, in its order.

    Attributes:
        tokens: who has held the lock, one after the other.
        unfenced: how many messages left a script that hadn't made sure of the lock.
    """

    messages: list[Message] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    unfenced: int = 0

    @property
    def doubled(self) -> int:
        return len(self.messages) - len({message.due for message in self.messages})

    @property
    def out_of_order(self) -> int:
        return sum(later.due < earlier.due for earlier, later in pairwise(self.messages))

    @property
    def off_beat(self) -> int:
        first = self.messages[0].due
        return sum(abs((it.due - first) - round(it.due - first)) > 1e-3 for it in self.messages)

    @property
    def lost(self) -> int:
        """Seconds without a message, and none before that could stand for them: it left earlier."""
        return sum(
            max(round(later.due - max(earlier.due, _last_due(earlier))) - 1, 0)
            for earlier, later in pairwise(self.messages)
        )

    @property
    def wrong_ids(self) -> int:
        return len(self.messages) - len({message.task_id for message in self.messages}) - self.doubled

    @property
    def is_good(self) -> bool:
        """Whether every promise was kept; how late is too late is the test's matter."""
        faults = (self.doubled, self.out_of_order, self.off_beat, self.lost, self.wrong_ids, self.unfenced)
        return bool(self.messages) and not any(faults)

    def __str__(self) -> str:
        late = max((message.late_seconds for message in self.messages), default=0.0)
        return (
            f"{len(self.messages)} messages, {len(self.tokens)} holders of the lock: lost {self.lost}, "
            f"doubled {self.doubled}, out of order {self.out_of_order}, off beat {self.off_beat}, "
            f"without the lock {self.unfenced}; {late:.2f} s late at most"
        )


def _last_due(message: Message) -> float:
    """The last second that was due when ``message`` left: it stands for all until then."""
    return message.due + max(int(message.late_seconds + _SLACK_SECONDS), 0)


@contextmanager
def chronicling(server: Server) -> Iterator[Chronicle]:
    """Yield a chronicle that is complete after the block."""
    chronicle = Chronicle()
    with monitored(server) as seen:
        yield chronicle
    is_fenced = False
    for one in seen:
        word, _, rest = one.command.partition(" ")
        key, _, value = rest.partition(" ")
        if not one.is_in_script:
            is_fenced = False
        if word.upper() == "SET" and key == LOCK:
            is_fenced = True
            token = value.partition(" ")[0]
            if chronicle.tokens[-1:] != [token]:
                chronicle.tokens.append(token)
        elif word.upper() == "LPUSH" and key == "celery":
            chronicle.unfenced += not is_fenced
            headers = json.loads(value)["headers"]
            due = datetime.fromisoformat(headers["redbeat_due"]).timestamp()
            chronicle.messages.append(Message(one.at, due, headers["id"]))
