"""Names of entries in the admin's addresses: each has one, and comes back from it."""

from __future__ import annotations

from urllib.parse import urljoin

from django.contrib.admin.utils import quote
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from redbeat.contrib.django.addresses import name_of, part_for

#: characters that mean something somewhere on the way
SPECIAL = st.text(st.sampled_from("._-=/\\?#%&;:+@,$<>\"'[]()\n\r\t\0 aA0F2Eéß漢😀"), min_size=1, max_size=20)
NAMES = st.one_of(SPECIAL, st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=50))


@given(NAMES)
def test_a_name_comes_back_from_its_address(name: str) -> None:
    part = part_for(name)
    assert part is not None
    assert name_of(part, None) == name
    assert not part.startswith("=")


@given(NAMES)
def test_an_address_is_the_same_in_the_admins_own_way_and_when_a_browser_has_resolved_it(name: str) -> None:
    assert name_of(str(quote(name)), None) == name
    url = reverse("admin:redbeat_entry_change", args=(part_for(name),))
    assert urljoin("http://localhost/admin/", url) == f"http://localhost{url}"


def test_a_name_that_is_not_unicode_has_none() -> None:
    assert part_for("\udcff") is None
