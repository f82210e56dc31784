"""What pages look like and how they move: files that a browser keeps.

Each is asked for with a mark of its contents, so that a new version is never mixed with an old one.
"""

from __future__ import annotations

import functools
from hashlib import sha256
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

FOLDER = Path(__file__).parent / "static"
#: a file under its mark never changes; seconds
FOR_A_YEAR = 365 * 24 * 3600
_METHODS = ("GET", "HEAD")


@functools.cache
def mark_of(name: str) -> str:
    """Return the mark of a file's contents."""
    return sha256((FOLDER / name).read_bytes()).hexdigest()[:12]


class _MarkedFiles(StaticFiles):
    """The files."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        if scope["method"] not in _METHODS:
            raise HTTPException(405, headers={"Allow": ", ".join(_METHODS)})
        response = await super().get_response(path, scope)
        # during an upgrade another process may have made the page, for a file of another version
        is_marked = scope["query_string"] == b"v=" + mark_of(path).encode()
        response.headers["Cache-Control"] = f"max-age={FOR_A_YEAR}, immutable" if is_marked else "no-cache"
        return response


def static_files() -> StaticFiles:
    """Return the application that answers with the files."""
    return _MarkedFiles(directory=FOLDER)
