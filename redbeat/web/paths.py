"""The paths that are more than a page's, below wherever the dashboard is mounted. Pure."""

from __future__ import annotations

from urllib.parse import quote

from starlette.types import Scope

API = "/api/"
#: what anybody may ask for: the page to log in, and what pages look like
LOGIN, STATIC = "/login", "/static/"
OPEN = (LOGIN, STATIC)


def is_api(scope: Scope) -> bool:
    """Return True if a request is one of the REST interface's."""
    return (path_of(scope) + "/").startswith(API)


def path_of(scope: Scope) -> str:
    """Return the path of a request below the place where the dashboard is mounted."""
    root, path = scope.get("root_path", ""), scope["path"]
    inside = path.startswith(root) and path[len(root) : len(root) + 1] in ("", "/")
    return (path[len(root) :] if inside else path) or "/"


def root_of(scope: Scope) -> str:
    """Return the path below which the dashboard is mounted, as an address has it: no slash at its end."""
    return quote(str(scope.get("root_path") or "").rstrip("/"), errors="replace")
