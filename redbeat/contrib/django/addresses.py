"""Names of entries in the admin's addresses. Any name of UTF-8 has one.

Invariant: ``name_of(part_for(name))`` is the name; and where the admin itself quotes a name, as in its list
of recent actions, that is understood, too.
"""

from __future__ import annotations

import re
from typing import Any

from django.contrib.admin.utils import quote

from redbeat.entries.query import iter_names
from redbeat.errors import EntryNotFound
from redbeat.log.text import is_utf8, shorten
from redbeat.web.names import digest_of

#: what comes before the digest of a name that is too long: it can't stand in a quoted name
_LONG = "="
_QUOTED = re.compile("_([0-9A-F]{2})")


def part_for(name: str) -> str | None:
    """Return what stands for ``name`` in an address; None: it can't stand there, nor in a form."""
    if not is_utf8(name):
        return None
    digest = digest_of(name)
    if digest is not None:
        return f"{_LONG}{digest}"
    text = str(quote(name)).replace("\r", "_0D")
    return text.replace(".", "_2E") if not text.strip(".") else text  # a browser resolves '..'


def name_of(part: str, app: Any) -> str:
    """Return the name for which ``part`` stands.

    Raises:
        EntryNotFound: it stands for a long name, and no entry has it.
    """
    if part.startswith(_LONG):
        for name in iter_names(app):
            if digest_of(name) == part[1:]:
                return name
        raise EntryNotFound(f"{shorten(part, 80)}: there is no such entry.", part)
    return _QUOTED.sub(lambda found: chr(int(found[1], 16)), part)
