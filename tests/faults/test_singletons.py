"""Three singletons of one program, killed, stopped, cut off and resumed: never two at work, no long gap."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path

import pytest

from tests.conftest import SEED
from tests.support.deadlines import patience
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.servers import Server
from tests.support.singletons import start_singleton, writer, writes

TIMEOUT_SECONDS = 3.0
SECONDS = 60


class Node:
    """A singleton on a machine of its own: its way to Redis can be cut without the others'."""

    def __init__(self, server: Server, file: Path) -> None:
        self.proxy = Proxy((server.host, server.port))
        self._url = self.proxy.url(server.url())
        self._file = file
        self.heals_at = 0.0
        self.start()

    def start(self) -> None:
        options = ("--timeout", f"{TIMEOUT_SECONDS}", "--grace", "1")
        self.process = start_singleton(self._url, *writer(self._file), options=options)

    def disturb(self, chance: random.Random) -> str:
        """Do something to it that `heal` makes good."""
        self.heals_at = time.monotonic() + chance.uniform(0.1, 2 * TIMEOUT_SECONDS)
        kind = chance.choice(["kill -9", "SIGTERM", "SIGSTOP", "freeze", "cut", "kill the watchdog"])
        signals = {"kill -9": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGSTOP": signal.SIGSTOP}
        if kind in signals:
            self.process.signal(signals[kind])
        elif kind == "freeze":
            self.proxy.freeze()
        elif kind == "cut":
            self.proxy.refuse()
            self.proxy.drop()
        else:
            pid = self.process.pid
            with suppress(FileNotFoundError, IndexError, ProcessLookupError):
                children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                os.kill(int(children[0]), signal.SIGKILL)
        return kind

    def heal(self) -> None:
        self.process.signal(signal.SIGCONT)
        self.proxy.thaw()
        self.proxy.accept()
        if not self.process.is_running:
            self.start()

    def close(self) -> None:
        self.heal()
        self.process.stop()
        self.proxy.close()


@pytest.fixture
def nodes(server: Server, tmp_path: Path) -> Iterator[list[Node]]:
    with ExitStack() as stack:
        made = []
        for _ in range(3):
            node = Node(server, tmp_path / "written")
            stack.callback(node.close)
            made.append(node)
        yield made


@pytest.mark.long_form
def test_never_two_are_at_work_and_no_gap_is_longer_than_the_timeout_and_two_seconds(
    nodes: list[Node], tmp_path: Path
) -> None:
    print(f"REDBEAT_SEED={SEED}")
    chance = random.Random(f"{SEED} singletons")
    eventually(lambda: writes(tmp_path / "written"))
    done: list[tuple[float, str]] = []
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline or (
        # on a slow machine, or with many waits for a lock that nobody is to take
        len({pid for pid, _ in writes(tmp_path / "written")}) <= 3 and time.monotonic() < deadline + 60
    ):
        disturbed = [node for node in nodes if node.heals_at]
        for node in disturbed:
            if time.monotonic() >= node.heals_at:
                node.heal()
                node.heals_at = 0.0
        if len(disturbed) < 2:  # one is left that could do the work
            well = [node for node in nodes if not node.heals_at]
            leading = [node for node in well if _is_at_work(node, tmp_path / "written")]
            fault = chance.choice(leading * 3 or well).disturb(chance)
            done.append((time.monotonic(), fault))
        time.sleep(chance.uniform(0.05, 1.0))  # between the faults, whose instants are to be anywhere

    seen = writes(tmp_path / "written")
    spans = [pid for index, (pid, _) in enumerate(seen) if index == 0 or seen[index - 1][0] != pid]
    gap = max(_gaps([moment for _, moment in seen], [moment for moment, _ in done]))
    print(f"{len(done)} faults, {len(spans)} spans of work, {len(seen)} writes; longest gap {gap:.2f} s")
    assert len(spans) > 3, "the faults have done nothing"
    assert len(spans) == len(set(spans)), "two have been at work at once"
    assert gap <= TIMEOUT_SECONDS + patience(2), done


def _gaps(written: list[float], faults: list[float]) -> Iterator[float]:
    """From each write, or the last fault after it, to the next one: whoever took over may be hit as well."""
    for earlier, later in pairwise(written):
        yield later - max([earlier, *(fault for fault in faults if earlier < fault < later)])


def _is_at_work(node: Node, file: Path) -> bool:
    """Whether the last write is that of a command of this node's."""
    seen = writes(file)
    return bool(seen) and f"(process {seen[-1][0]})" in node.process.output()
