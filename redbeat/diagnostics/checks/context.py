"""The schedule that the checks examine, read once and in bounded time.

Invariant: nothing here writes.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import islice
from typing import Any

from redbeat.config.config import RedBeatConfig, ensure_conf
from redbeat.diagnostics.facts import try_decode
from redbeat.diagnostics.routes import Destinations
from redbeat.entries.calendar_loading import load_calendars
from redbeat.entries.due import is_quarantined
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.query import PAGE_SIZE, read_all
from redbeat.leadership.status import Status
from redbeat.log.text import counted, printable, shorten
from redbeat.schedules.occurrences import Excluded
from redbeat.store.members import count_members
from redbeat.store.records import Stored
from redbeat.store.server import Server
from redbeat.store.store import Store


@dataclass(frozen=True)
class Row:
    """A member of the schedule.

    Attributes:
        member: the text in the schedule: the entry's key, or its bare name.
        name: the entry's name.
        entry: None: it is invalid, and ``problem`` says why.
    """

    member: str
    name: str
    stored: Stored
    entry: RedBeatSchedulerEntry | None
    problem: str

    @property
    def key(self) -> str:
        """The entry's key."""
        return self.stored.key

    @property
    def is_quarantined(self) -> bool:
        """Whether beat doesn't run the entry, as it is invalid or its times can't be computed."""
        return bool(self.problem) if self.entry is None else is_quarantined(self.entry, self.stored)


@dataclass
class Context:
    """One examination.

    Attributes:
        status: who leads, and what is due.
        has_tasks: the app is the user's own, so its tasks and routes are known.
        is_dashboard: the dashboard asks: its user of Redis isn't expected to be beat's.
        workers_seconds: how long workers are asked for their queues; None: they aren't asked.
        deadline: monotonic; after it, what is large isn't looked at any further.
        knows_tasks: the modules with the tasks were imported, and there are some.
        unseen: what wasn't looked at, in words.
        noted: names of entries that a check of the whole schedule is to report together, by its kind.
    """

    app: Any
    store: Store
    status: Status
    has_tasks: bool
    is_dashboard: bool
    workers_seconds: float | None
    deadline: float
    knows_tasks: bool = False
    unseen: list[str] = field(default_factory=list)
    noted: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    _calendars: dict[str, Excluded] = field(default_factory=dict)

    @property
    def config(self) -> RedBeatConfig:
        """The app's settings."""
        return ensure_conf(self.app)

    @property
    def now(self) -> datetime:
        """The server's clock when the examination began."""
        return self.status.now

    @property
    def is_late(self) -> bool:
        """Whether the time for the examination is over."""
        return time.monotonic() >= self.deadline

    def name_of(self, key: str) -> str:
        """Return the name of the entry under ``key``."""
        return self.store.keys.name(key)

    @property
    def place(self) -> str:
        """The subject of findings about the whole schedule: its key, or the prefix of its shards."""
        parts = self.store.parts
        if not parts.is_divided:
            return parts[0].schedule
        return f"{self.store.keys.prefix} ({counted(len(parts), 'shard', 'shards')})"

    @cached_property
    def destinations(self) -> Destinations:
        """Where the entries' runs go, as far as that was noted."""
        return Destinations(self.app)

    @cached_property
    def server(self) -> Server:
        """The schedule's server."""
        return Server(self.store)

    def nodes(self) -> Iterator[tuple[str, Server]]:
        """Yield each server that has some of the schedule, and a sentence that names it in a cluster."""
        self.store.parts  # noqa: B018 - it looks where entries are
        for node, store in self.store.by_node().items():
            yield f" It is the node {node}." if node else "", Server(store)

    def pages(self) -> Iterator[list[Row]]:
        """Yield the members of the schedule, page by page, until the time is over."""
        members = read_all(self.store)
        count = 0
        while page := [self.row_of(member, stored) for member, stored, _ in islice(members, PAGE_SIZE)]:
            entries = [row.entry for row in page if row.entry is not None]
            load_calendars(self.store, entries, self._calendars)
            yield page
            count += len(page)
            if self.is_late:
                total = count_members(self.store)
                if count < total:
                    self.unseen.append(f"{total - count} of {total} entries")
                return

    def row_of(self, member: str, stored: Stored) -> Row:
        """Return the row of the entry ``stored``."""
        return Row(member, self.name_of(stored.key), stored, *try_decode(stored, self.app))

    def pages_of_keys(self) -> Iterator[list[str]]:
        """Yield the keys of the schedule, page by page, until the time is over.

        Some may be of shards that are no longer part of it.
        """
        pages = self.server.scan(*(part.prefix for part in self.store.parts))
        yield next(pages)
        for page in pages:
            if self.is_late:
                self.unseen.append("some of the server's keys")
                return
            yield page


def some_of(names: Sequence[str], most: int = 3) -> str:
    """Return the first of ``names``, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(printable(name) for name in names[:most]) + more


def said(exc: Exception) -> str:
    """Return the error of the application's code, or of a library that it uses, for a sentence."""
    return f"{type(exc).__name__}: {shorten(' '.join(str(exc).split()), 200).rstrip('.')}"
