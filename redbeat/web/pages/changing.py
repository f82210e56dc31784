"""Changes that take longer than a page: begun here, and shown while they are made and when they are done."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TypeVar

from starlette.datastructures import UploadFile
from starlette.responses import Response
from starlette.routing import BaseRoute

from redbeat.errors import RedBeatError
from redbeat.store.changes import ChangeRecord
from redbeat.web.changes import SILENT_SECONDS, Change, Ending, Tell
from redbeat.web.routes import DEFECT, page, sentence_of, status_of
from redbeat.web.visit import Visit

Outcome = TypeVar("Outcome")


def make_change(
    visit: Visit, title: str, work: Callable[[Tell], Outcome], end: Callable[[Outcome], Ending]
) -> Response:
    """Make a change in the background; show what became of it, or the page that waits for it.

    Arguments:
        work: makes the change; it may ask nothing of the visit.
        end: says what became of it, by what ``work`` has returned; likewise.
    """
    once = _digest_of(visit) if visit.form.get("once") else ""
    change = visit.dashboard.changes.make(visit.user.name, title, work, end, once=once)
    return _shown(visit, change) if change.is_done else visit.see("changing", id=change.id)


def show_change(visit: Visit) -> Response:
    """Show a change that is made, or what became of it."""
    change = visit.dashboard.changes.find(visit.query.get("id", ""), visit.user.name)
    if isinstance(change, ChangeRecord):
        return _show_elsewhere(visit, change)
    if change is None or not change.is_done:
        return _render(visit, change, 200 if change is not None else 404)
    return _whole_page(visit) if visit.is_fragment else _shown(visit, change)


def _show_elsewhere(visit: Visit, change: ChangeRecord) -> Response:
    """Show a change that another process makes, or has made."""
    if change.is_done and not change.has_page:
        if visit.is_fragment:
            return _whole_page(visit)
        if change.status != 303:
            return _render(visit, change, change.status)
        for kind in change.forgets:
            visit.dashboard.background.forget(kind)
        return visit.see(*change.place, notice=change.told, **change.query)
    response = _render(visit, change)
    if change.is_done and visit.dashboard.is_live:
        response.headers["Connection"] = "close"  # the next look may reach the process that has the page
    return response


def _whole_page(visit: Visit) -> Response:
    """Have the page, a part of which was asked for, loaded as a whole: it is another one now."""
    return Response(headers={"HX-Redirect": visit.link("changing", id=visit.query.get("id", ""))})


def _render(visit: Visit, change: Change | ChangeRecord | None, status: int = 200) -> Response:
    return visit.render(
        "changing_part.html" if visit.is_fragment else "changing.html",
        status,
        title="Not known" if change is None else change.title,
        change=change,
        is_silent=isinstance(change, ChangeRecord) and change.silent_seconds > SILENT_SECONDS,
        url=visit.link("changing", id=visit.query.get("id", "")),
    )


def ending_of(exc: Exception) -> Ending:
    """Return what became of a change whose work has raised an error."""
    words = sentence_of(exc) if isinstance(exc, RedBeatError) else DEFECT  # that is logged already
    return Ending(words, status=status_of(exc))


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


def _shown(visit: Visit, change: Change) -> Response:
    if change.problem is not None:
        raise change.problem
    ending = change.ending
    assert ending is not None  # noqa: S101 - it is done, and hasn't failed
    for kind in ending.forgets:
        visit.dashboard.background.forget(kind)
    if ending.page is not None:
        response: Response = ending.page(visit)
        return response
    return visit.see(*ending.place, notice=ending.words, **ending.query)


ROUTES: list[BaseRoute] = [page("/changing", show_change)]
