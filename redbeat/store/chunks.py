"""The one loop over many things in chunks, and the size of a chunk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")

#: how many entries one script reads, stores or deletes
CHUNK_SIZE = 500


def in_chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yield the items in lists of 500, the last one perhaps shorter; items are read when needed."""
    remaining = iter(items)
    while chunk := list(islice(remaining, CHUNK_SIZE)):
        yield chunk
