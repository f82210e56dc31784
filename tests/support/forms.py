"""HTML as a browser has it: the text of a page, and the fields that a form sends."""

from __future__ import annotations

from bs4 import BeautifulSoup, Tag


def form_fields(html: str, form_id: str | None = None) -> dict[str, str]:
    """Return the fields of a page's forms that post, or of one of them, with their values."""
    found: dict[str, str] = {}
    for form in BeautifulSoup(html, "html.parser").select("form[method=post]"):
        if form_id in (None, form.get("id")):
            for field in form.select("input[name], textarea[name], select[name]"):
                kind = field.get("type")
                if kind != "submit" and (kind != "checkbox" or field.has_attr("checked")):
                    found[str(field["name"])] = _value_of(field)
    return found


def _value_of(field: Tag) -> str:
    if field.name == "textarea":
        return field.text.removeprefix("\n")
    chosen = field.select_one("option[selected]") if field.name == "select" else field
    return "" if chosen is None else str(chosen.get("value") or "")


def text_of(html: str, selector: str = "main") -> str:
    """Return the words of a part of a page, a line for each block and each row of a table."""
    part = BeautifulSoup(html, "html.parser").select_one(selector)
    assert part is not None, html[:2000]
    for unseen in part.select("script, svg, option, footer, [hidden]"):
        unseen.decompose()
    for block in part.select("div, p, h1, h2, h3, li, tr, dt, form, label, legend, summary, pre, nav"):
        block.insert_before("\n")
        block.append("\n")
    lines = (" ".join(line.split()) for line in part.get_text(" ").splitlines())
    return "\n".join(filter(None, lines))
