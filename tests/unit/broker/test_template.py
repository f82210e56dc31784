"""Texts with holes, filled with what they were made from and with other values."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redbeat.broker.template import Path, Template, find_difference, name_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)
DOCUMENTS = st.dictionaries(st.text(), JSON, min_size=2, max_size=6)


@given(DOCUMENTS, st.data())
def test_other_values_are_written_where_the_holes_are(
    document: dict[str, object], data: st.DataObject
) -> None:
    keys = data.draw(st.lists(st.sampled_from(sorted(document)), min_size=2, unique=True))
    text = json.dumps(document)
    template = Template(text, {(key,): position for position, key in enumerate(keys)})
    assert template.fill(tuple(json.dumps(document[key]) for key in keys)) == text
    others = {key: data.draw(JSON) for key in keys}
    assert template.fill(tuple(map(json.dumps, others.values()))) == json.dumps({**document, **others})


def test_a_value_may_be_written_in_several_places() -> None:
    template = Template('{"a": 1, "b": [2, {"c": 3}]}', {("a",): 1, ("b", 0): 0, ("b", 1, "c"): 1})
    assert template.fill(("10", "20")) == '{"a": 20, "b": [10, {"c": 20}]}'


@pytest.mark.parametrize("text", ['{"a":1,"b":2}', '{"a": 1, "b": "ä"}', '{"a": 1, "a": 1, "b": 2}'])
def test_json_that_python_would_write_otherwise_has_no_template(text: str) -> None:
    with pytest.raises(ValueError, match="isn't written as"):
        Template(text, {("a",): 0, ("b",): 1})


@pytest.mark.parametrize("path", [("c",), ("b", 2), ("b", "x")])
def test_a_hole_must_be_somewhere(path: Path) -> None:
    with pytest.raises(LookupError, match="there is no"):
        Template('{"a": 1, "b": [1, 2]}', {("a",): 0, path: 1})


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({"a": 1, "b": {"c": [1, 2]}}, None),
        ({"a": 2, "b": {"c": [1, 2]}}, "a"),
        ({"a": 1, "b": {"c": [1, 3]}}, "b.c.1"),
        ({"a": 1, "b": {"c": [1]}}, "b.c"),
        ({"a": 1, "b": {"c": [1, 2], "d": 0}}, "b.d"),
        ({"a": 1}, "b"),
        ({"a": True, "b": {"c": [1, 2]}}, "a"),
        ({"b": {"c": [1, 2]}, "a": 1}, "text"),
    ],
)
def test_the_first_difference_is_named(other: object, name: str | None) -> None:
    path = find_difference({"a": 1, "b": {"c": [1, 2]}}, other)
    assert (None if path is None else name_of(path)) == name
