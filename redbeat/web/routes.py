"""How a page or an action becomes a route: the right that it takes, the thread that it runs in, its errors.

Invariant: no page is shown and nothing is changed without a right that stands at its route.
"""

from __future__ import annotations

import time
from collections.abc import Callable
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
    ConfigurationError,
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
from redbeat.web.access.attempts import TooManyAttempts
from redbeat.web.access.authentication import AuthFailed
from redbeat.web.access.refusals import RETRY_AFTER_SECONDS
from redbeat.web.threads import TooBusy
from redbeat.web.visit import Visit

#: shows a page, or does what a form asks for
Handler = Callable[[Visit], Response]

#: how many fields a form has at most: each entry of a page may be ticked
MAX_FIELDS = 2000

#: up to how many characters of a form are shown again, so that it can be sent once more
MAX_SHOWN_AGAIN = 500_000

#: what its user is told of an error that isn't expected
DEFECT = "This is a defect of the dashboard; its log says more."

_URLENCODED = "application/x-www-form-urlencoded"

#: the status codes of errors; the first kind that an error is counts
STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (AccessDenied, 403),
    (ArgumentInvalid, 422),
    (EntryNotFound, 404),
    (CalendarNotFound, 404),
    (EntryChanged, 412),
    (EntryBusy, 409),
    (LockNotAcquired, 409),
    (EntryError, 422),
    (CalendarError, 422),
    (FileError, 422),
    (CallRefused, 422),
    (RunNotSent, 503),
    (ConfigurationError, 500),
    (StoreUnavailable, 503),
    (StoreRefused, 503),
    (StoreCorrupt, 503),
    (TooBusy, 503),
    (TooManyAttempts, 429),
    (RedBeatError, 500),
)


def status_of(exc: Exception) -> int:
    """Return the status code of an error."""
    if isinstance(exc, HTTPException):
        return exc.status_code
    return next((status for kind, status in STATUSES if isinstance(exc, kind)), 500)


def sentence_of(exc: Exception) -> str:
    """Return what its user is told of an error; one that isn't expected is logged, and not shown."""
    if isinstance(exc, TooBusy):
        return "There are too many requests at the moment. Try again in a few seconds."
    if isinstance(exc, HTTPException):
        return {404: "There is nothing under this address.", 405: "That can't be done here."}.get(
            exc.status_code, str(exc.detail)
        )
    if isinstance(exc, RedBeatError):
        return exc.plain
    if isinstance(exc, TooManyAttempts):
        return str(exc)
    if isinstance(exc, AuthFailed):
        logger.error("Nobody can be let in: %s", exc, exc_info=exc.__cause__)
        return "The application can't say who you are: its auth has failed. The server's log says why."
    logger.error("A request can't be answered: %r", exc, exc_info=exc)
    return DEFECT


def page(path: str, show: Handler, *, right: Right = Right.READ) -> Route:
    """Return the route of a page that is only shown."""
    return Route(path, _endpoint(show, right), methods=["GET"], name=show.__name__)


def action(path: str, act: Handler, *, right: Right) -> Route:
    """Return the route of a form that changes something."""
    return Route(path, _endpoint(act, right), methods=["POST"], name=act.__name__)


def question(path: str, show: Handler) -> Route:
    """Return the route of a form that changes nothing: what it asks for is too long for an address."""
    return Route(path, _endpoint(show, Right.READ), methods=["POST"], name=show.__name__)


def open_page(path: str, show: Handler) -> Route:
    """Return the route of a page that anybody may see."""
    return Route(path, _endpoint(show, None), methods=["GET"], name=show.__name__)


def open_action(path: str, act: Handler) -> Route:
    """Return the route of a form that anybody may send, such as that with which they log in."""
    return Route(path, _endpoint(act, None), methods=["POST"], name=act.__name__)


def _endpoint(handle: Handler, right: Right | None) -> Callable[[Request], object]:
    async def endpoint(request: Request) -> Response:
        began = time.perf_counter()
        dashboard = request.scope["redbeat.dashboard"]
        visit = Visit(dashboard, request)
        try:
            if right is not None:
                visit.user.require(right)
            if request.method == "POST":
                visit = Visit(dashboard, request, await _form_of(request))
                csrf.check(request, visit.form, request.scope["redbeat.cookies"].csrf(request))
            response: Response = await dashboard.threads.run(handle, visit)
        except Exception as exc:  # noqa: BLE001 - whatever it is, the user gets a page that says it
            response = await dashboard.threads_for_errors.run(show_error, visit, exc)
        response.headers["Server-Timing"] = f"app;dur={(time.perf_counter() - began) * 1000:.1f}"
        return response

    # a test looks at every route
    endpoint.right = right  # type: ignore[attr-defined]
    return endpoint


async def _form_of(request: Request) -> FormData:
    """Return what was posted. Line breaks are as they were in the page: browsers send each as CR LF.

    Raises:
        HTTPException: there are too many fields, or text in them that isn't Unicode.
    """
    # the whole body is in memory already, and within the limit
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() == _URLENCODED:
        # not Starlette's, which takes seconds for a million ampersands, and nobody is answered meanwhile
        threads = request.scope["redbeat.dashboard"].threads
        return FormData(await threads.run(_fields_in, await request.body()))
    form = await request.form(max_files=1, max_fields=MAX_FIELDS, max_part_size=8 * 1024 * 1024)
    for name, value in form.multi_items():
        text = value if isinstance(value, str) else value.filename or ""
        if not is_utf8(name) or not is_utf8(text):
            raise HTTPException(400, "This form isn't in UTF-8.")
    return FormData(
        [
            (name, _with_line_feeds(value) if isinstance(value, str) else value)
            for name, value in form.multi_items()
        ]
    )


def _fields_in(body: bytes) -> list[tuple[str, str]]:
    text = body.decode("latin-1")
    try:
        fields = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS)
    except ValueError:
        raise HTTPException(400, f"A form has {MAX_FIELDS} fields at most.") from None
    return [(name, _with_line_feeds(value)) for name, value in fields]


def _with_line_feeds(value: str) -> str:
    return value.replace("\r\n", "\n")


def show_error(visit: Visit, exc: Exception) -> Response:
    """Return the page that says what went wrong."""
    status, sentence = status_of(exc), in_words_of(sentence_of(exc), visit.zone)
    response = visit.render(
        "error.html",
        status,
        title=_titles.get(status, "Error"),
        sentence=sentence,
        can_try_again=status == 503,
        fields=_fields_again(visit) if status == 503 else None,
    )
    if visit.is_fragment:  # the page stays as it is, and says why
        response.headers["X-RedBeat-Error"] = quote(sentence[:1000], errors="replace")
    if isinstance(exc, TooManyAttempts):
        response.headers["Retry-After"] = str(exc.seconds)
    elif status == 503:
        response.headers["Retry-After"] = RETRY_AFTER_SECONDS
    elif isinstance(exc, HTTPException):
        response.headers.update(exc.headers or {})  # such as Allow
    return response


def _fields_again(visit: Visit) -> list[tuple[str, str]] | None:
    """Return the fields of a form that couldn't be answered; None: it can't be sent again from this page.

    That is so if it wasn't read, if it is large, if it has a file, which only the browser has, and if it is
    a stranger's, who has typed a token.
    """
    if not visit.user.rights:
        return None
    given = [(name, value) for name, value in visit.form.multi_items() if name != csrf.FIELD]
    fields = [(name, value) for name, value in given if isinstance(value, str)]
    is_whole = all(isinstance(value, str) or not value.filename for _, value in given)
    size = sum(len(name) + len(value) for name, value in fields)
    return fields if fields and is_whole and size <= MAX_SHOWN_AGAIN else None


_titles = {
    403: "Not allowed",
    404: "Not found",
    409: "Busy",
    412: "Changed meanwhile",
    422: "Not possible",
    429: "Too many attempts",
    503: "Not available",
}
