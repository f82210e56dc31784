"""What beat has told its log already: each thing once, however often it is seen again."""

from __future__ import annotations

import time
from collections.abc import Sequence

from redbeat.beat.planner import Run
from redbeat.entries.failures import sha1_of
from redbeat.errors import ConfigurationError, RedBeatError
from redbeat.leadership.lock import LeaderLock
from redbeat.log.logger import logger
from redbeat.log.text import as_stored, printable, shorten
from redbeat.process.exit_codes import CONFIG, CommandLineError, is_beat_command
from redbeat.process.memory import Memory
from redbeat.store.records import Claimed


def brief(exc: RedBeatError) -> RedBeatError:
    """Return ``exc`` as beat ends with it: Celery prints all causes, twice, and the sentence says it all."""
    logger.debug("beat: Ending because of this:", exc_info=exc)
    return exc.with_traceback(None)


class ending_briefly:  # noqa: N801 - a context; contextlib's would put the whole traceback back
    """Lets errors of ours end beat :func:`brief`.

    A wrong configuration ends the program ``celery beat`` with a sentence and the code for it.

    Arguments:
        is_logging: there is a log, beat's banner has been shown.
    """

    def __init__(self, *, is_logging: bool = True) -> None:
        self._is_logging = is_logging

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, exc: BaseException | None, _traceback: object) -> None:
        if not isinstance(exc, RedBeatError):
            return
        if isinstance(exc, ConfigurationError) and is_beat_command():
            if not self._is_logging:
                raise CommandLineError(str(exc), CONFIG) from None
            logger.critical("beat: %s", exc)
            raise SystemExit(CONFIG) from None  # Celery logs the traceback of everything else
        raise brief(exc) from None


#: a standby says this often who it is waiting for; seconds
STANDBY_SECONDS = 60.0


#: of how many entries is remembered what was said; then all is forgotten, and may be said again
MAX_REMEMBERED = 10_000

#: the same of missing entries, whose keys may be all there is of them
MAX_MISSING = 100_000

#: of many entries that are removed together, how many have a line of their own, and how many more are named
NAMED_ALONE, NAMED_TOGETHER = 3, 10

#: characters that are shown of such a name
MAX_NAME = 100

#: an entry that was missing, and didn't come up again for so long, has been removed by somebody else; seconds
MISSING_SECONDS = 600.0


class Reports:
    """One beat's memory of its log; what is recorded with an entry itself needs no place here."""

    def __init__(self) -> None:
        self._missing: dict[str, float] = {}  # since when, the oldest first
        self._said = Memory[tuple[str, str], str](MAX_REMEMBERED)  # what about which entry
        self._next_standby_at = 0.0

    def note_present(self, claimed: Claimed) -> None:
        """Forget that an entry was missing: it is there."""
        self._missing.pop(claimed.key, None)

    def note_missing(self, claimed: Claimed) -> bool:
        """Note that an entry's hash is gone; return whether it was so already."""
        if self._missing.pop(claimed.key, None) is None:
            now = time.monotonic()
            while self._missing and next(iter(self._missing.values())) < now - MISSING_SECONDS:
                del self._missing[next(iter(self._missing))]
            if len(self._missing) < MAX_MISSING:  # else later: forgetting others, none would ever be known
                self._missing[claimed.key] = now
            return False
        return True

    def report_removed(self, keys: Sequence[str]) -> None:
        """Log that entries are removed from the schedule as their hashes are gone: of many the first few."""
        for key in keys[:NAMED_ALONE]:
            logger.error(
                "beat: Failed to load %s, removing it from the schedule: its hash is gone, usually because "
                "Redis evicted it (see maxmemory-policy).",
                printable(key),
            )
        others = keys[NAMED_ALONE:]
        if others:
            logger.error(
                "beat: Failed to load %d more, removing them from the schedule for the same reason: %s%s",
                len(others),
                ", ".join(shorten(printable(key[:MAX_NAME]), MAX_NAME) for key in others[:NAMED_TOGETHER]),
                ", ..." if len(others) > NAMED_TOGETHER else ".",
            )

    def report_costly(self, claimed: Claimed, seconds: float) -> None:
        """Log, once for each definition, that an entry takes too much processor time to read and to send."""
        if not self._said.is_news(("costly", claimed.key), sha1_of(claimed)):
            return
        texts = (claimed.definition, claimed.meta, claimed.policy)
        logger.warning(
            "beat: The entry %s takes %.0f ms of processor time at each run, to read it and to send it, and "
            "has %s bytes: it goes after the others, which wait meanwhile. Put large data somewhere else and "
            "its address into the entry.",
            printable(claimed.key),
            seconds * 1000,
            f"{sum(len(as_stored(text)) for text in texts if text):,}",
        )

    def report_quarantined(self, claimed: Claimed, reason: str, is_news: bool) -> None:
        """Log why an entry can't be used. ``is_news``: its hash doesn't say so yet."""
        if claimed.type != "hash":  # nowhere to write the reason
            is_news = self._said.is_news(("quarantined", claimed.key), reason)
        if is_news:
            logger.error("beat: Quarantined an entry that can't be used, it is kept as it is: %s", reason)

    def report_typos(self, run: Run) -> None:
        """Log keys of an entry, its schedule or its policy that are unknown and nearly known."""
        found = (run.entry.typos, getattr(run.entry.schedule, "typos", ""))
        typos = shorten(printable(", ".join(filter(None, found))))
        if typos and self._said.is_news(("typos", run.claimed.key), typos):
            logger.warning(
                "beat: The entry %s has keys RedBeat doesn't know: %s.", printable(run.claimed.key), typos
            )

    def report_contested(self, claimed: Claimed) -> str:
        """Log that an entry changes each time it is sent; return that in words."""
        reason = (
            "the entry changes each time while it is sent, so its run can't be recorded and isn't sent: look "
            "for a signal handler, a task's apply_async or another program that writes to it at each run"
        )
        key = printable(claimed.key)
        if self._said.is_news(("contested", claimed.key), reason):
            logger.error("beat: Couldn't send %s, trying again with growing pauses: %s.", key, reason)
        return reason

    def report_standby(self, candidacy: LeaderLock) -> None:
        """Log, now and then, who this beat is waiting for."""
        if time.monotonic() >= self._next_standby_at:
            self._next_standby_at = time.monotonic() + STANDBY_SECONDS
            logger.info("beat: Standing by: %s.", candidacy.describe_holder())

    def report_trouble(self, trouble: str) -> None:
        """Log what keeps all entries from being sent; '' once there is nothing any more."""
        if trouble and self._said.is_news(("trouble", ""), trouble):
            logger.error("beat: Nothing can be sent: %s", trouble)
        elif not trouble and self._said.pop(("trouble", ""), ""):
            logger.info("beat: Sending again.")

    def report_left_out(self, what: str) -> None:
        """Log what the leader can't do at its start, and goes on without."""
        if self._said.is_news(("left out", what), what):
            logger.warning("beat: %s", what)
