"""The packages that the pages in the admin need, besides Django and what RedBeat needs anyway.

Invariant: where one is missing the pages are missing, too, and a system check says so; the rest works.
"""

from __future__ import annotations

from importlib.util import find_spec

#: what the dashboard imports, and what it is mounted with
PACKAGES = ("a2wsgi", "anyio", "jinja2", "markupsafe", "starlette", "uvicorn")


def find_missing() -> list[str]:
    """Return those that aren't installed."""
    return [name for name in PACKAGES if find_spec(name) is None]
