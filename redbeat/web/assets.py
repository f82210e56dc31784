"""What pages look like and how they move: files that a browser keeps.

Each is asked for with a mark of its contents, so that a new version is never mixed with an old one.
"""

from __future__ import annotations

from pathlib import Path

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

FOLDER = Path(__file__).parent / "static"
#: a file under its mark never changes; seconds
FOR_A_YEAR = 365 * 24 * 3600


class _MarkedFiles(StaticFiles):
    """The files."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        is_marked = b"v=" in scope["query_string"]
        response.headers["Cache-Control"] = f"max-age={FOR_A_YEAR}, immutable" if is_marked else "no-cache"
        return response


def static_files() -> StaticFiles:
    """Return the application that answers with the files."""
    return _MarkedFiles(directory=FOLDER)
