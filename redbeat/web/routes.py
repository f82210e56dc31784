"""How a page or an action becomes a route: the right that it takes, the thread that it runs in, its errors.

Invariant: no page is shown and nothing is changed without a right that stands at its route.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote

from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from redbeat.access import Right
from redbeat.entries.wording import in_words_of
from redbeat.errors import (
    AccessDenied,
    ArgumentInvalid,
    CalendarError,
    CalendarNotFound,
    CallRefused,
    EntryBusy,
    EntryChanged,
    EntryError,
    EntryNotFound,
    FileError,
    LockNotAcquired,
    RedBeatError,
    RunNotSent,
    StoreCorrupt,
    StoreRefused,
    StoreUnavailable,
)
from redbeat.log.logger import web_logger as logger
from redbeat.log.text import is_utf8
from redbeat.web.access import csrf
from redbeat.web.access.gate import MAX_BODY_BYTES
from redbeat.web.visit import Visit

if TYPE_CHECKING:
    from redbeat.web.dashboard import Dashboard

#: shows a page, or does what a form asks for
Handler = Callable[[Visit], Response]

#: how many fields a form has at most: each entry of a page may be ticked
MAX_FIELDS = 2000

#: when to try again if Redis is unreachable, or if there is too much to do
RETRY_AFTER_SECONDS = "5"

#: what its user is told of an error that isn't expected
DEFECT = "Internal error. See the server log."

#: the errors of each status code; the first code that an error has counts
_ERRORS: dict[int, tuple[type[Exception], ...]] = {
    403: (AccessDenied,),
    404: (EntryNotFound, CalendarNotFound),
    412: (EntryChanged,),
    409: (EntryBusy, LockNotAcquired),
    422: (ArgumentInvalid, EntryError, CalendarError, FileError, CallRefused),
    503: (RunNotSent, StoreUnavailable, StoreRefused, StoreCorrupt),
}


def status_of(exc: Exception) -> int:
    """Return the status code of an error."""
    if isinstance(exc, HTTPException):
        return exc.status_code
    return next((status for status, kinds in _ERRORS.items() if isinstance(exc, kinds)), 500)


def sentence_of(exc: Exception) -> str:
    """Return what its user is told of an error; one that isn't expected is logged, and not shown."""
    if isinstance(exc, HTTPException):
        known = {404: "Not found.", 405: "This address doesn't take that method."}
        return known.get(exc.status_code, exc.detail)
    if isinstance(exc, RedBeatError):
        return exc.plain
    logger.error("A request can't be answered: %r", exc, exc_info=exc)
    return DEFECT


def page(path: str, show: Handler, *, right: Right | None = Right.READ) -> Route:
    """Return the route of a page that is only shown; None: everybody may see it."""
    return Route(path, _endpoint(show, right), methods=["GET"])


def action(path: str, act: Handler, *, right: Right | None) -> Route:
    """Return the route of a form; None: everybody may send it, such as that with which they log in."""
    return Route(path, _endpoint(act, right), methods=["POST"])


def _endpoint(handle: Handler, right: Right | None) -> Callable[[Request], object]:
    async def endpoint(request: Request) -> Response:
        dashboard: Dashboard = request.scope["redbeat.dashboard"]
        visit = Visit(dashboard, request)
        try:
            if right is not None:
                visit.user.require(right)
            if request.method == "POST":
                visit.form = await _form_of(request)
                csrf.check(request, visit.form, visit.cookies.get("csrf"))
            return await dashboard.run(handle, visit)
        except Exception as exc:  # noqa: BLE001 - whatever it is, the user gets a page that says it
            return show_error(visit, exc)

    # a test looks at every route
    endpoint.right = right  # type: ignore[attr-defined]
    return endpoint


async def _form_of(request: Request) -> FormData:
    """Return a form. Line breaks are as they were in the page: browsers send each as CR LF.

    Raises:
        HTTPException: it has too many fields, or text that isn't Unicode.
    """
    if request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        form = await request.form(max_files=1, max_fields=MAX_FIELDS, max_part_size=MAX_BODY_BYTES)
        fields: Sequence[tuple[str, Any]] = form.multi_items()
    else:  # not by Starlette's parser, which takes seconds for a million ampersands
        text = (await request.body()).decode("latin-1")
        try:
            fields = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS)
        except ValueError:
            raise HTTPException(400, f"A form has {MAX_FIELDS} fields at most.") from None
    for name, value in fields:
        if not is_utf8(name) or not is_utf8(value if isinstance(value, str) else value.filename or ""):
            raise HTTPException(400, "This form isn't in UTF-8.")
    return FormData(
        [(name, value.replace("\r\n", "\n") if isinstance(value, str) else value) for name, value in fields]
    )


def show_error(visit: Visit, exc: Exception) -> Response:
    """Return the page that says what went wrong."""
    status, sentence = status_of(exc), in_words_of(sentence_of(exc), visit.zone)
    response = visit.render(
        "error.html",
        status,
        title=_titles.get(status, "Error"),
        sentence=sentence,
        can_try_again=status == 503,
    )
    if visit.is_fragment:  # the page stays as it is, and says why
        response.headers["X-RedBeat-Error"] = quote(sentence[:1000], errors="replace")
    if status == 503:
        response.headers["Retry-After"] = RETRY_AFTER_SECONDS
    if isinstance(exc, HTTPException):
        response.headers.update(exc.headers or {})  # such as Allow
    return response


_titles = {
    403: "Not allowed",
    404: "Not found",
    409: "Busy",
    412: "Changed meanwhile",
    422: "Not possible",
    429: "Too many attempts",
    503: "Not available",
}
