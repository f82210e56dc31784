"""A word to the user while Redis doesn't answer, as a command may wait long for it.

Invariant: it is said only if Redis was asked and hasn't answered, never because a command takes long or waits
for the user; and it changes nothing of how the command ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from typing import Any

from redbeat.entries.wording import one_line
from redbeat.errors import RedBeatError, StoreUnavailable
from redbeat.store.server import Server
from redbeat.store.store import Store

#: after this time Redis is asked whether it is there, and has as long as that to answer; seconds
LOOK_AFTER_SECONDS, ANSWER_SECONDS = 3.0, 2.0


@contextmanager
def telling_of_silence(session: Any) -> Iterator[None]:
    """Within this, tell on stderr once if Redis doesn't answer after some seconds."""
    timer = Timer(LOOK_AFTER_SECONDS, tell_if_silent, (session,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def tell_if_silent(session: Any) -> None:
    """Ask Redis for the time, on a connection of its own, and say so if it doesn't answer."""
    try:
        with Store.hasty(session.app, ANSWER_SECONDS) as store:
            Server(store).now()
    except StoreUnavailable:
        session.note(f"Redis at {one_line(session.server)} doesn't answer yet …")
    except RedBeatError:  # the command itself tells of it
        return
