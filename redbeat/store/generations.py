"""The layout in Redis as it is read and changed: ``redbeat::layout``, and when a change was begun and ended.

::

    (none) or settled  --begin-->  moving  --settle-->  settling  --end-->  settled
       generation g                 g + 1                 g + 2              g + 2

Invariant: each step is made only by whoever has read the one before (compare and set), so one process changes
the layout at a time, and another one can go on where it has ended.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redbeat.connection.retry import is_no_permission
from redbeat.errors import StoreCorrupt, StoreRefused
from redbeat.layout import MAX_SHARDS, Layout
from redbeat.store.records import text_of
from redbeat.store.scripts.script import Script

if TYPE_CHECKING:
    from redbeat.store.store import Store

#: for how long what is written to former places is moved on
SWEPT_SECONDS = 600

_CHANGE_LAYOUT = Script("change_layout")

_STATES = "", "moving", "settling"
_FIELDS = "shards", "generation", "former", "state", "swept_until"
_NUMBER = re.compile(r"0|[1-9][0-9]{0,14}")


@dataclass(frozen=True)
class LayoutRecord:
    """What ``redbeat::layout`` says.

    Attributes:
        shards: how many there are, or are to be; None: none.
        generation: how many layouts there have been; 0: there is no record.
        former: how many shards there were before; None: none.
        state: 'moving', 'settling' or ''.
        swept_until: until when former places are swept, UNIX seconds; None: they aren't.
    """

    shards: int | None = None
    generation: int = 0
    former: int | None = None
    state: str = ""
    swept_until: float | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether a change has begun and hasn't ended."""
        return self.state != ""

    @property
    def words(self) -> str:
        """What it says, as a phrase."""
        shards = f"{self.shards or 'no'} shard{'' if self.shards == 1 else 's'}"
        return f"{shards}, changed from {self.former or 'none'}" if self.is_under_way else shards

    def layout(self, store: Store) -> Layout:
        """Return the layout that it says."""
        base = store.config.base_keys
        return Layout(base, self.shards, self.generation, self.former, is_moving=self.state == "moving")


class Generations:
    """The layouts of the schedule of ``store``."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._key = store.config.base_keys.layout

    def read(self, *, is_slot_checked: bool = False) -> LayoutRecord:
        """Return what stands in Redis.

        Arguments:
            is_slot_checked: also check, in the same round trip, that the server is not part of a cluster if
                the prefix has no hash tag. Skipped if the user lacks the right to EXISTS.

        Raises:
            ConfigurationError: the server is part of a cluster, and the prefix has no hash tag.
            StoreCorrupt: the key is not a valid layout.
        """
        base = self._store.config.base_keys
        is_slot_checked = is_slot_checked and self._store.config.is_single_without_hash_tag

        def ask(client: Any) -> list[Any]:
            if not is_slot_checked:
                return list(client.hmget(self._key, _FIELDS))
            with client.pipeline(transaction=False) as pipeline:
                pipeline.hmget(self._key, _FIELDS)
                pipeline.exists(base.schedule, base.statics)
                return list(pipeline.execute()[0])

        try:
            found = self._store.ask(ask, self._key, "hash")
        except StoreRefused as exc:
            if not is_slot_checked or not is_no_permission(exc.__cause__):
                raise
            return self.read()
        shards, generation, former, state, swept_until = map(text_of, found)
        if (shards, generation) == (None, None):
            return LayoutRecord()
        numbers = _numbers_of(self._key, shards, generation, former)
        if (state or "") not in _STATES:
            raise StoreCorrupt(
                f"{self._key} says that the schedule is {state!r}, which this version doesn't know.",
                self._key,
            )
        return LayoutRecord(*numbers, state or "", _time_of(swept_until))

    def begin(self, read: LayoutRecord, former: int | None, shards: int | None) -> LayoutRecord | None:
        """Begin to move entries from ``former`` shards to others; None: somebody else has changed it."""
        return self._change(
            read, max(read.generation, 0 if former is None else 1) + 1, former, shards, "moving"
        )

    def settle(self, read: LayoutRecord) -> LayoutRecord | None:
        """Note that all entries have arrived; None: somebody else has changed it."""
        return self._change(read, read.generation + 1, read.former, read.shards, "settling")

    def end(self, read: LayoutRecord) -> LayoutRecord | None:
        """Note that nothing is on its way any more; None: somebody else has changed it."""
        return self._change(read, read.generation, read.former, read.shards, "")

    def rewrite(self, record: LayoutRecord) -> bool:
        """Write the layout as ``record`` has it, whatever stands there; False: it has changed meanwhile.

        What is of another type is kept where a reshard keeps what it can't merge.
        """
        client, key = self._store.client, self._key
        with self._store.translating():
            if text_of(client.type(key)) not in ("hash", "none"):
                client.rename(key, self._store.config.base_keys.unmoved("layout").removesuffix(":"))
        read, before = map(text_of, self._store.ask(lambda client: client.hmget(key, "generation", "state")))
        return self._write(record, read or "", before or "")

    def _change(
        self, read: LayoutRecord, generation: int, former: int | None, shards: int | None, state: str
    ) -> LayoutRecord | None:
        record = LayoutRecord(shards, generation, former, state)
        return record if self._write(record, str(read.generation or ""), read.state) else None

    def _write(self, record: LayoutRecord, read: str, before: str) -> bool:
        """Write the layout if its generation and its state are those that were read."""
        written: Any = {"read": read, "before": before, "swept_seconds": SWEPT_SECONDS}
        return bool(
            self._store.ask(_CHANGE_LAYOUT.call(record, layout=self._key, **written).run, self._key, "hash")
        )


def _time_of(text: str | None) -> float | None:
    """Return UNIX seconds; None: it is no time."""
    try:
        seconds = float(text or "nan")
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) else None


def _numbers_of(
    layout_key: str, shards: str | None, generation: str | None, former: str | None
) -> tuple[int | None, int, int | None]:
    """Return the numbers of a layout by the texts in Redis; no shards are None.

    Raises:
        StoreCorrupt: they are none.
    """
    texts = shards or "", generation or "", former or "0"
    if all(map(_NUMBER.fullmatch, texts)):
        numbers = int(texts[0]), int(texts[1]), int(texts[2])
        if numbers[1] and max(numbers[0], numbers[2]) <= MAX_SHARDS:
            return numbers[0] or None, numbers[1], numbers[2] or None
    raise StoreCorrupt(
        f"{layout_key} holds something that is no layout of a schedule: celery redbeat doctor says "
        "where entries are.",
        layout_key,
    )
