"""Changes that take longer than a page: begun here, and shown while they are made and when they are done."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

from starlette.datastructures import UploadFile
from starlette.responses import Response
from starlette.routing import BaseRoute

from redbeat.errors import (
    AccessDenied,
    ArgumentInvalid,
    CalendarError,
    EntryError,
    FileError,
    LockNotAcquired,
    RedBeatError,
    RunNotSent,
)
from redbeat.store.changes import ChangeRecord
from redbeat.web.jobs import SILENT_SECONDS, Change, Ending, Tell
from redbeat.web.routes import page, status_of
from redbeat.web.visit import Visit

#: errors after which a form is shown again
REFUSALS = (AccessDenied, ArgumentInvalid, CalendarError, EntryError, FileError, LockNotAcquired, RunNotSent)


def make_change(visit: Visit, title: str, work: Callable[[Tell[str]], Ending]) -> Response:
    """Make a change in the background; show its outcome, or the page that waits for it.

    Arguments:
        work: makes the change, and returns the outcome; it may ask nothing of the visit.
    """
    once = _digest_of(visit) if visit.form.get("once") else ""
    change = visit.dashboard.jobs.change(visit.user.name, title, work, once=once)
    if change.is_at_work:
        return visit.see("changing", id=change.id)
    return _outcome(visit, change, change.to_record())


def make_form_change(
    visit: Visit,
    title: str,
    work: Callable[[Tell[str]], Ending],
    again: Callable[[Visit, RedBeatError, int], Response],
    place: Sequence[str],
    query: Mapping[str, str | None] | None = None,
) -> Response:
    """Make a change in the background; where its values are invalid or outdated, show the form again.

    Arguments:
        again: returns the page with the form and the error, which has this status code; its visit has the
            form as it was sent.
        place: the path of the page where the form is, and ``query`` what stands behind it.
    """
    form = visit.form

    def try_it(tell: Tell[str]) -> Ending:
        try:
            return work(tell)
        except REFUSALS as exc:
            error, status = exc, status_of(exc)

        def show(later: Visit) -> Response:
            later.form = form
            return again(later, error, status)

        return Ending(str(error), tuple(place), query or {}, status, show)

    return make_change(visit, title, try_it)


def show_change(visit: Visit) -> Response:
    """Show a change that is made, or its outcome."""
    change = visit.dashboard.jobs.find(visit.query.get("id", ""), visit.user.name)
    own = change if isinstance(change, Change) else None
    record = change.to_record() if isinstance(change, Change) else change
    if record is None:
        return _render(visit, None, 404)
    if record.is_done and (own is not None or not record.has_page):
        if visit.is_fragment:  # it is a part of another page now, which is loaded as a whole
            return Response(headers={"HX-Redirect": visit.link("changing", id=visit.query.get("id", ""))})
        return _outcome(visit, own, record)
    response = _render(visit, record)
    if record.is_done and visit.dashboard.is_live:
        response.headers["Connection"] = "close"  # the next look may reach the process that has the page
    return response


def _outcome(visit: Visit, own: Change | None, record: ChangeRecord) -> Response:
    """Show the outcome of a change that this process has made, or of which it has a record alone."""
    if own is not None and own.problem is not None:
        raise own.problem
    for kind in record.forgets:
        visit.dashboard.jobs.forget(kind)
    if own is not None and own.result.page is not None:
        response: Response = own.result.page(visit)
        return response
    if record.status != 303:
        return _render(visit, record, record.status)
    return visit.see(*record.place, notice=record.told, **record.query)


def _render(visit: Visit, change: ChangeRecord | None, status: int = 200) -> Response:
    return visit.render(
        "changing_part.html" if visit.is_fragment else "changing.html",
        status,
        title="Not known" if change is None else change.title,
        change=change,
        is_silent=change is not None and change.silent_seconds > SILENT_SECONDS,
        url=visit.link("changing", id=visit.query.get("id", "")),
    )


def _digest_of(visit: Visit) -> str:
    """Return what tells a form that was sent from others: also from the same page, edited and sent again."""
    digest = hashlib.sha256(visit.path.encode("utf-8", "surrogateescape"))
    for name, value in visit.form.multi_items():
        digest.update(repr(name).encode())
        if isinstance(value, UploadFile):
            digest.update(repr(value.filename).encode() + value.file.read())
            value.file.seek(0)
        else:
            digest.update(repr(value).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


ROUTES: list[BaseRoute] = [page("/changing", show_change)]
