"""Each name of an entry has one address, and no address is that of anything else."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, unquote_to_bytes

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redbeat.web.api import addresses
from redbeat.web.api.addresses import BadAddress, name_of, segment_of, segments_of

NAMES = st.one_of(
    st.text(max_size=30),
    st.text("/.=%\\ +;a", max_size=6),
    st.binary(max_size=20).map(lambda data: data.decode("utf-8", "surrogateescape")),
).filter(
    lambda name: all(not "\ud800" <= char <= "\udc7f" and not "\udd00" <= char <= "\udfff" for char in name)
)


def scope_of(path: str, raw: bytes | None = None, root: str = "", **environ: str) -> dict[str, Any]:
    return {"path": root + path, "root_path": root, "raw_path": raw, "wsgi_environ": environ}


@settings(max_examples=60)
@given(NAMES)
def test_a_name_comes_back_from_its_address(name: str) -> None:
    segment = segment_of(name)
    assert name_of(unquote(segment)) == name
    assert "/" not in unquote(unquote(segment))
    assert unquote(segment) not in ("", ".", "..")
    assert all("!" <= char <= "~" for char in segment)


@settings(max_examples=60)
@given(NAMES, NAMES)
def test_two_names_have_two_addresses(one: str, other: str) -> None:
    assert (unquote(segment_of(one)) == unquote(segment_of(other))) is (one == other)


@settings(max_examples=60)
@given(NAMES, st.sampled_from(["", "/redbeat", "/a b"]))
def test_segments_are_those_that_were_written(name: str, root: str) -> None:
    written = f"/entries/{segment_of(name)}/pause"
    expected = ["entries", unquote(segment_of(name)), "pause"]
    raw = (root.replace(" ", "%20") + written).encode()
    for scope in (
        scope_of(unquote(written), raw, root),
        scope_of(unquote(written), written.encode(), root),  # a proxy has cut the prefix off
        scope_of(unquote(written), None, root),
        scope_of(unquote(written), None, root, RAW_URI=f"{raw.decode()}?x=%2F"),
    ):
        assert segments_of(scope) == expected


@pytest.mark.parametrize("raw", [b"/entries/a%2Fpause", b"/entries/a%2fpause", b"/x/entries/a%2Fpause"])
def test_an_encoded_slash_is_refused_where_the_server_tells(raw: bytes) -> None:
    for scope in (
        scope_of("/entries/a/pause", raw),
        scope_of("/entries/a/pause", None, RAW_URI=raw.decode()),
    ):
        with pytest.raises(BadAddress, match="=YS9wYXVzZQ"):
            segments_of(scope)


@pytest.mark.parametrize("segment", ["=*", "=a", "= ", "=é", "=YQ===", "=Y Q"])
def test_what_is_no_base64_is_no_address(segment: str) -> None:
    with pytest.raises(BadAddress):
        name_of(segment)


def test_a_path_that_is_no_utf8_is_refused() -> None:
    for raw in (b"/entries/%ff", None):
        with pytest.raises(BadAddress, match="UTF-8"):
            segments_of(scope_of("/entries/\ufffd", raw))


def test_of_a_path_with_thousands_of_slashes_each_part_is_decoded_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded: list[bytes] = []

    def decode(part: bytes) -> bytes:
        decoded.append(part)
        return unquote_to_bytes(part)

    monkeypatch.setattr(addresses, "unquote_to_bytes", decode)
    raw = b"/api/v1/" + b"/" * 9000 + b"%41" * 2200
    assert segments_of(scope_of(f"/{'/' * 9000}{'A' * 2200}", raw)) == ["A" * 2200]
    assert b"/".join(decoded[: raw.count(b"/") + 1]) == raw
    assert len(decoded) <= raw.count(b"/") + 2
