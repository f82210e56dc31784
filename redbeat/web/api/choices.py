"""Which entries a request is about that changes many: by their names, or by a pattern."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from redbeat.operations.selection import Wanted, look_at_each
from redbeat.web.api.cursors import look_through
from redbeat.web.api.kinds import FLAG, PATTERN, TEXT, Field, texts
from redbeat.web.api.operations import Call
from redbeat.web.api.problems import Refusal

#: how many entries one request changes at most
MOST_CHANGED = 1000


def choice_of(most: int) -> tuple[Field, ...]:
    """Return the members of a body that choose entries."""
    return (
        Field("names", texts(most), "The names of the entries."),
        Field("match", PATTERN, "Instead of names: a pattern; * and ? are wildcards."),
        Field("cursor", TEXT, "With `match`: where to go on, from `next` of the answer before."),
    )


CHOICE = choice_of(MOST_CHANGED)
ONE_CHOICE = ("names", "match")
DRY_RUN = Field("dry_run", FLAG, "Change nothing, and answer what would be changed.", default=False)


def chosen_names(call: Call, is_wanted: Wanted, match: str | None = None) -> tuple[list[str], str | None]:
    """Return the names that the ``CHOICE`` in the body means, and where a look for more goes on.

    Arguments:
        match: the pattern, where the body has neither.
    """
    names, match = _choice_in(call, match)
    if names is not None:
        return names, None
    found, cursor = look_through(call.app, match, is_wanted, call.body["cursor"], MOST_CHANGED)
    return [str(entry.name) for entry in found], cursor


class Chosen(NamedTuple):
    """Entries that are changed one after the other.

    Attributes:
        names: theirs.
        cursors: where a look goes on behind each; none: they were given by their names.
        following: where it goes on behind what was looked at; None: that was all.
    """

    names: Sequence[str]
    cursors: Sequence[str]
    following: str | None


def chosen_one_by_one(call: Call, most: int) -> Chosen:
    """Return what the ``choice_of(most)`` in the body means."""
    names, match = _choice_in(call, None)
    if names is not None:
        return Chosen(names, (), None)
    found, following = look_at_each(call.app, match, lambda _entry: True, call.body["cursor"], most)
    return Chosen([str(one.entry.name) for one in found], [one.cursor for one in found], following)


def _choice_in(call: Call, default: str | None) -> tuple[list[str] | None, str | None]:
    names, match = call.body["names"], call.body["match"]
    if names is None and match is None:
        match = default
    if (names is None) == (match is None):
        raise Refusal(422, "Give either names or match.", field="names")
    return None if names is None else list(dict.fromkeys(names)), match
