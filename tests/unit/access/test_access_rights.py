"""Which rights include which, and that nobody gets one by mistake."""

from __future__ import annotations

import pytest

from redbeat.access import Right, rights_of
from redbeat.access.rights import names_of


def test_admin_includes_all_and_every_other_right_includes_reading_only() -> None:
    assert rights_of(["admin"]) == set(Right)
    for right in set(Right) - {Right.ADMIN}:
        assert rights_of([right]) == {right, Right.READ}
    assert rights_of([]) == set()


@pytest.mark.parametrize("names", ["reed", ["read", ""], ["READ"], ["read", "*"], [None]])
def test_an_unknown_right_is_refused(names: list[str]) -> None:
    with pytest.raises(ValueError, match="there is no right"):
        rights_of(names)


def test_the_names_of_rights_stand_for_the_same_rights() -> None:
    for names in ([], ["read"], ["admin"], ["read", "pause", "run"], ["delete", "edit"]):
        assert rights_of(names_of(rights_of(names))) == rights_of(names)
    assert names_of(rights_of(["pause", "admin"])) == ["admin"]
    assert names_of(rights_of(["pause"])) == ["read", "pause"]
