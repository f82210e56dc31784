"""Directives that write RedBeat's own tables into the documentation, so that the two can't differ.

``.. redbeat-settings::`` lists ``redbeat.config.SETTINGS``, ``.. redbeat-options::`` lists ``OPTIONS``. Each
row becomes a ``confval``, to which ``:confval:`redbeat_redis_url``` refers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import redbeat.config.config
from redbeat.config import OPTIONS, SETTINGS, Setting

SOURCE = str(redbeat.config.config.__file__)


def escape(text: str) -> str:
    """Return plain ``text`` so that reStructuredText shows it as it is."""
    return re.sub(r"([\\*`|_:<>])", r"\\\1", text)


def describe_setting(setting: Setting) -> Iterator[str]:
    default = setting.default_words or f"``{setting.default!r}``"
    yield f".. confval:: {setting.name}"
    yield f"   :default: {default}"
    yield ""
    yield f"   {setting.doc}"
    yield ""
    yield f"   Allowed: {escape(setting.allowed)}."
    yield ""


def describe_option(name: str, doc: str) -> Iterator[str]:
    yield f".. confval:: {name}"
    yield ""
    yield f"   {doc[0].upper()}{doc[1:]}."
    yield ""


class Table(SphinxDirective):
    """What both directives do: parse the lines that describe the rows."""

    def lines(self) -> Iterator[str]:
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(SOURCE)
        node = nodes.container()
        self.state.nested_parse(StringList(list(self.lines()), SOURCE), self.content_offset, node)
        return node.children


class SettingsTable(Table):
    def lines(self) -> Iterator[str]:
        for setting in SETTINGS.values():
            yield from describe_setting(setting)


class OptionsTable(Table):
    def lines(self) -> Iterator[str]:
        for name, doc in OPTIONS.items():
            yield from describe_option(name, doc)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("redbeat-settings", SettingsTable)
    app.add_directive("redbeat-options", OptionsTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
