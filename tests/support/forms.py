"""What a browser sends with a form of a page: each field with the value that it has."""

from __future__ import annotations

from html.parser import HTMLParser


class _Fields(HTMLParser):
    def __init__(self, form_id: str | None) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self._form_id = form_id
        self._is_inside = False
        self._name: str | None = None
        self._is_text = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        name = given.get("name")
        if tag == "form":
            self._is_inside = given.get("method") == "post" and self._form_id in (None, given.get("id"))
        if not self._is_inside or (name is None and tag != "option"):
            return
        if tag == "input" and (given.get("type") != "checkbox" or "checked" in given):
            self.found[str(name)] = given.get("value") or ""
        elif tag == "textarea":
            self._name, self._is_text, self.found[str(name)] = name, True, ""
        elif tag == "select":
            self._name = name
            self.found[str(name)] = ""
        elif tag == "option" and self._name is not None and "selected" in given:
            self.found[self._name] = given.get("value") or ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._is_inside = False
        if tag == "textarea" and self._name is not None:
            self.found[self._name] = self.found[self._name].removeprefix("\n")
        if tag in ("textarea", "select"):
            self._name, self._is_text = None, False

    def handle_data(self, data: str) -> None:
        if self._is_text and self._name is not None:
            self.found[self._name] += data


def form_fields(html: str, form_id: str | None = None) -> dict[str, str]:
    """The fields of a page's forms that post, or of one of them."""
    reader = _Fields(form_id)
    reader.feed(html)
    return reader.found
