"""How words look: each that a badge may show has a tone, and a shape that there is."""

from __future__ import annotations

import re
from pathlib import Path

from redbeat.diagnostics.checks.finding import Severity
from redbeat.diagnostics.verdicts import VERDICTS
from redbeat.entries.query import STATES
from redbeat.entries.runs import SOUGHT
from redbeat.history import FAILED_OUTCOMES, OUTCOMES
from redbeat.web.pages import rendering
from redbeat.web.pages.looks import _LOOKS, NOTICE_ICONS, TONES, look_of

WEB = Path(rendering.__file__).parents[1]
ICONS = set(
    re.findall(r'^  "([a-z]+)": "', (WEB / "templates" / "icons.html").read_text("utf-8"), re.MULTILINE)
)
CSS = (WEB / "static" / "redbeat.css").read_text("utf-8")


def test_each_word_has_a_look_of_its_own() -> None:
    words = {*STATES, *SOUGHT, *OUTCOMES, *VERDICTS, *(one.name.lower() for one in Severity)}
    assert words - set(_LOOKS) == set()
    assert look_of("nobody knows it") not in {look_of(word) for word in words}


def test_looks_are_made_of_tones_and_icons_that_there_are() -> None:
    shapes = {look.icon for look in _LOOKS.values()} | set(NOTICE_ICONS.values())
    assert shapes <= ICONS
    assert {look.tone for look in _LOOKS.values()} == set(NOTICE_ICONS) == set(TONES)
    assert {f".tone-{tone} {{" for tone in TONES} <= set(re.findall(r"\.tone-\w+ \{", CSS))


def test_templates_name_icons_that_there_are() -> None:
    named = {
        name
        for path in (WEB / "templates").glob("*.html")
        for name in re.findall(r'(?:icon\(|shape=|icon-)"?([a-z]+)', path.read_text("utf-8"))
    } - {"name", "none", "link", "look", "shape", "tone"}
    assert named <= ICONS


def test_words_of_one_tone_that_stand_in_one_column_differ_in_shape() -> None:
    for words in (list(STATES), list(OUTCOMES)):
        looks = [look_of(word) for word in words]
        assert len({*looks}) >= len(looks) - 3  # by the word alone differ few, and none that fails
    assert len({look_of(word) for word in FAILED_OUTCOMES}) == len(FAILED_OUTCOMES)
