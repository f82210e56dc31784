"""The colours of the dashboard: what is read has the contrast that WCAG AA asks for, in both themes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

STATIC = Path(__file__).parents[3] / "redbeat" / "web" / "static"
CSS = (STATIC / "redbeat.css").read_text("utf-8")
RULES = re.sub(r"/\*.*?\*/", "", CSS, flags=re.DOTALL)
#: name: its colour when it is light, and when it is dark
COLOURS: dict[str, tuple[str, str]] = {
    name: (light, dark)
    for name, light, dark in re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);", CSS)
}
TONES = ("good", "warn", "danger", "info", "neutral")
GROUNDS = ("canvas", "surface", "sunken")

#: what is written on what
TEXTS = [
    *((text, ground) for text in ("text", "muted", "accent") for ground in GROUNDS),
    *((text, "accent-soft") for text in ("text", "muted", "accent")),
    ("on-accent", "accent"),
    ("on-danger", "danger"),
    *((tone, f"{tone}-soft") for tone in TONES),
    *((tone, ground) for tone in TONES for ground in GROUNDS),
    *(("text", f"{tone}-soft") for tone in TONES),
    ("surface", "neutral"),
]
#: what is seen without being read: edges of inputs, the ring of the focus, shapes
SHAPES = [
    *(("control", ground) for ground in ("canvas", "surface", "accent-soft")),
    *(("accent", ground) for ground in GROUNDS),
    ("accent", "neutral-soft"),
    ("brand", "surface"),
]


def luminance(colour: str) -> float:
    """By the formula of WCAG 2, from 0 to 1."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_contrast_of_known_colours() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize(("pairs", "least"), [(TEXTS, 4.5), (SHAPES, 3.0)], ids=["texts", "shapes"])
def test_what_is_read_and_what_is_seen_stands_out(pairs: list[tuple[str, str]], least: float) -> None:
    faint = [
        f"{one} on {other}, {theme}: {ratio:.2f}"
        for one, other in pairs
        for place, theme in enumerate(("light", "dark"))
        if (ratio := contrast(COLOURS[one][place], COLOURS[other][place])) < least
    ]
    assert faint == []


def test_levels_of_heat_rise_step_by_step() -> None:
    for place in (0, 1):
        levels = [luminance(COLOURS[f"heat-{level}"][place]) for level in range(6)]
        assert levels == sorted(levels, reverse=place == 0)


def test_rules_use_colours_by_their_names_only() -> None:
    rules = RULES.partition("--header:")[2]
    assert re.findall(r"#[0-9a-fA-F]{3,8}\b", rules) == []
    used = set(re.findall(r"var\(--([\w-]+)\)", RULES))
    known = set(re.findall(r"--([\w-]+):", RULES))
    assert used == known


def test_the_style_sheet_lists_its_classes_and_is_read_in_one_sitting() -> None:
    head = re.findall(r"\.[a-z][\w-]*", CSS[: CSS.index("*/")])
    defined = set(re.findall(r"\.(?!\d)[a-z][a-z0-9-]*", re.sub(r"\{[^}]*\}", "{}", RULES)))
    assert len(CSS.splitlines()) <= 500
    listed = {one.rstrip("-.") for one in head}
    assert {one for one in listed if one not in defined} <= {".html", ".py", ".tone", ".fill", ".line"}


def test_scripts_and_styles_load_nothing_from_elsewhere_and_evaluate_nothing() -> None:
    for name in ("redbeat.css", "redbeat.js", "theme.js", "icon.svg"):
        text = (STATIC / name).read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|@import|url\(|\beval\(|new Function|innerHTML|\.style\b", text), name


def test_templates_have_neither_script_nor_style_of_their_own() -> None:
    for path in (STATIC.parent / "templates").rglob("*.html"):
        text = path.read_text("utf-8")
        found = re.findall(
            r"<style|\sstyle=|\son[a-z]+=|hx-on|<script(?! src=\"\{\{ static\()|javascript:|https?://|\|safe",
            text,
        )
        assert found == [], path.name
