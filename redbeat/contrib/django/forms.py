"""The forms of an entry: its fields as the dashboard has them, with Django's widgets; or the entry as JSON.

Invariant: a form looks only at what was typed. What is wrong with it as an entry is noted by
``note_problems``, in the sentences of the field API, each at its field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms
from django.contrib.admin.widgets import AdminTextareaWidget, AdminTextInputWidget

from redbeat.diagnostics.hints import known_tasks
from redbeat.web.pages.entry_editing import MOST_SUGGESTED
from redbeat.web.pages.entry_form import EXAMPLES, GROUPS, Field

#: what an admin's page has besides the fields: the entry as it was shown, and its revision
BASE, REVISION = "base", "revision"
#: how many groups of fields are open; others are if one of their fields is set
_OPEN_GROUPS = 2
_SCHEDULE_HINT = " ".join(f"{kind}: {example}." for kind, (example, _) in EXAMPLES.items())


class _Tasks(AdminTextInputWidget):
    """A line of text with the names of tasks to choose from."""

    template_name = "admin/redbeat/entry/task_widget.html"

    def __init__(self, tasks: list[str]) -> None:
        super().__init__(attrs={"list": "known-tasks"})
        self._tasks = tasks

    def get_context(self, name: str, value: Any, attrs: Any) -> Any:
        return {**super().get_context(name, value, attrs), "tasks": self._tasks}


class _Text(forms.CharField):
    """Text as it was typed, with line breaks as browsers don't send them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(required=False, strip=False, **options)

    def to_python(self, value: Any) -> Any:
        return str(super().to_python(value)).replace("\r\n", "\n")


class EntryForm(forms.Form):
    """An entry's form in either way.

    Arguments:
        shown: the texts of its fields, as they are shown at first.
        is_new: a name is asked for.
    """

    is_json = False
    base = forms.CharField(widget=forms.HiddenInput, required=False, strip=False)
    revision = forms.CharField(widget=forms.HiddenInput, required=False)

    def __init__(self, data: Any = None, *, shown: Mapping[str, str], is_new: bool, **options: Any) -> None:
        super().__init__(data, initial=dict(shown), **options)
        if is_new:
            self.fields["name"] = _Text(widget=AdminTextInputWidget(attrs={"autocomplete": "off"}))

    def typed(self) -> dict[str, str]:
        """Return the texts of the fields; of a box that is ticked 'yes'."""
        self.is_valid()
        texts = {}
        for name in self.fields:
            value = self.cleaned_data.get(name, self.data.get(name, ""))
            texts[name] = value if isinstance(value, str) else "yes" if value else ""
        return texts

    def note_problems(self, problems: Mapping[str, str]) -> None:
        """Show what is wrong, each sentence at its field."""
        for name, words in problems.items():
            if name in self.fields and not self.fields[name].widget.is_hidden:
                self.add_error(name, words)
            else:
                self.add_error(None, f"{name}: {words}" if name else words)

    def fieldsets(self) -> list[tuple[str | None, dict[str, Any]]]:
        """Return the groups of fields as the admin has them."""
        raise NotImplementedError

    def make_read_only(self) -> None:
        """Show the fields to somebody who may not change them."""
        for one in self.fields.values():
            one.disabled = True


class FieldsForm(EntryForm):
    """The fields of an entry in groups."""

    def __init__(
        self, data: Any = None, *, shown: Mapping[str, str], is_new: bool, app: Any, **options: Any
    ) -> None:
        super().__init__(data, shown=shown, is_new=is_new, **options)
        for _, group in GROUPS:
            for one in group:
                self.fields[one.name] = _field_of(one, shown.get(one.name, ""))
        self.fields["task"].widget = _Tasks(known_tasks(app)[:MOST_SUGGESTED])
        self._set = {name for name, text in shown.items() if text and (name, text) != ("state", "runs")}

    def fieldsets(self) -> list[tuple[str | None, dict[str, Any]]]:
        found: list[tuple[str | None, dict[str, Any]]] = []
        if "name" in self.fields:
            found.append((None, {"fields": ("name",)}))
        for number, (title, group) in enumerate(GROUPS):
            names = tuple(one.name for one in group)
            given = self._set | set(self.errors if self.is_bound else ())
            is_folded = number >= _OPEN_GROUPS and given.isdisjoint(names)
            found.append((title, {"fields": names, "classes": ("collapse",) if is_folded else ()}))
        return found


class DocumentForm(EntryForm):
    """An entry as JSON."""

    is_json = True
    document = _Text(
        label="The entry as JSON",
        widget=AdminTextareaWidget(attrs={"rows": 24, "spellcheck": "false"}),
        help_text="As in files, each field under its name. What stands as (hidden) stays as it is stored.",
    )

    def __init__(self, data: Any = None, *, shown: Mapping[str, str], **options: Any) -> None:
        super().__init__(data, shown=shown, is_new=False, **options)

    def note_problems(self, problems: Mapping[str, str]) -> None:
        for name, words in problems.items():
            self.add_error("document", f"{name}: {words}" if name else words)

    def fieldsets(self) -> list[tuple[str | None, dict[str, Any]]]:
        return [(None, {"fields": ("document",)})]


def _field_of(one: Field, shown: str) -> forms.Field:
    """Return Django's field for one of the form."""
    hint = _SCHEDULE_HINT if one.kind == "schedule" else one.hint
    usual: dict[str, Any] = {"label": one.label, "help_text": hint}
    if one.kind == "check":
        return forms.BooleanField(required=False, **usual)
    if one.kind == "choice":
        known = [(choice, choice or "default") for choice in one.choices]
        if shown and shown not in one.choices:
            known.append((shown, shown))  # of an entry that can't be used
        return forms.ChoiceField(choices=known, required=False, **usual)
    attributes = {"spellcheck": "false", "autocomplete": "off"}
    if one.example:
        attributes["placeholder"] = one.example
    if one.kind in ("note", "schedule", "json"):
        return _Text(widget=AdminTextareaWidget(attrs={**attributes, "rows": "2"}), **usual)
    return _Text(widget=AdminTextInputWidget(attrs=attributes), **usual)
