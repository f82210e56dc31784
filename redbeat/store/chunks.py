"""Many things in chunks: how many are written, read or removed in one step, and the one loop over them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")

#: how many entries one script reads, stores or deletes
CHUNK_SIZE = 500


def in_chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yield the items in lists of 500, the last one shorter; nothing is read before it is asked for."""
    remaining = iter(items)
    while chunk := list(islice(remaining, CHUNK_SIZE)):
        yield chunk
