"""The index of names: what it holds, where pages begin in it, and what it takes."""

from __future__ import annotations

import random
import tracemalloc

from redbeat.entries.search import Place, Row
from redbeat.web.names import Index, SortedTexts


def test_an_index_finds_the_place_of_any_name(chance: random.Random) -> None:
    texts = sorted({chance.randbytes(chance.randint(0, 4)).replace(b"\xff", b"") for _ in range(300)})
    names = SortedTexts(text for text in texts for _ in range(chance.randint(1, 3)))
    assert list(names) == texts
    assert (names[0], names[len(texts) - 1], names[3:9:2]) == (texts[0], texts[-1], texts[3:9:2])
    index = Index(names, 0.0, 0.0)
    assert index.count() == len(texts)
    for at, text in enumerate(texts):
        name = text.decode("utf-8", "surrogateescape")
        assert index.offset_of(Place(Row(name))) == at + 1
        assert index.offset_before(name) == at
        assert index.offset_of(Place(Row(f"{name}\0"))) >= at + 1  # a name that isn't there
    assert [row.name.encode("utf-8", "surrogateescape") for row in index.slice(7, 500)] == texts[7:]
    assert index.slice(10_000, 5) == []


def test_names_take_little_more_than_their_text() -> None:
    tracemalloc.start()
    try:
        names = SortedTexts(b"tenant-%06d:nightly-report" % number for number in range(50_000))
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(names) == 50_000
    assert size / len(names) < 28 + 20
