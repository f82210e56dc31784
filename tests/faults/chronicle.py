"""Every message that left one server and every change of the lock, with the server's times, and the verdict.

Read from MONITOR, which shows what scripts do, too: nothing passes unseen, whoever did it. For entries that
are due once a second.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

from tests.support.schedule import LOCK, monitored
from tests.support.servers import Server

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
