"""The audit list: who has changed what, when and from where."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from starlette.responses import Response
from starlette.routing import BaseRoute

from redbeat.entries.audit import AuditRecord, details_in_words
from redbeat.operations.showing import audit
from redbeat.web.jobs import Result, Tell
from redbeat.web.pages.runs import choices_with
from redbeat.web.routes import page
from redbeat.web.visit import Visit

#: how many records a page has, and how many names and characters of a detail each of them shows at once
SHOWN, NAMES, DETAIL = 50, 5, 100
SPANS = (("", "any time"), ("1h", "1 h"), ("1d", "1 day"), ("7d", "7 days"), ("30d", "30 days"))
_FILTERS = ("name", "user", "verb", "since")
#: the id of a record, as Redis numbers them
_ID = re.compile(r"[0-9]{1,19}-[0-9]{1,19}")


def show_audit(visit: Visit) -> Response:
    """Return the page."""
    given = {field: visit.query.get(field, "").strip() for field in _FILTERS}
    given |= {field: visit.pattern(field) for field in ("user", "verb")}
    before, errors = visit.query.get("before") or None, dict[str, str]()
    result = Result[Sequence[AuditRecord]]()
    since = visit.time("since", errors)
    if before is not None and not _ID.fullmatch(before):
        before = None
    if not errors:
        result = _find(visit, given, since, before)
    records = list(result.found or ())
    kept = {field: value for field, value in given.items() if value}
    last = records[SHOWN - 1].id if len(records) > SHOWN else None
    return visit.render(
        "audit_part.html" if visit.is_fragment else "audit.html",
        422 if errors else 200,
        title="Audit",
        result=result,
        rows=[(record, list(details_in_words(record, visit.zone))) for record in records[:SHOWN]],
        given=given,
        errors=errors,
        spans=choices_with(SPANS, given["since"]),
        is_filtered=bool(kept),
        most=DETAIL,
        most_names=NAMES,
        here=visit.link("audit", **kept, before=before),
        newest=visit.link("audit", **kept) if before is not None else None,
        older=visit.link("audit", **kept, before=last) if last is not None else None,
    )


def _find(
    visit: Visit, given: dict[str, str], since: datetime | None, before: str | None
) -> Result[Sequence[AuditRecord]]:
    def find(_tell: Tell[Sequence[AuditRecord]]) -> Sequence[AuditRecord]:
        return audit(
            visit.actor,
            name=given["name"] or None,
            user=given["user"] or None,
            verb=given["verb"] or None,
            since=since,
            before_id=before,
            limit=SHOWN + 1,
        )

    if any(given[field] for field in ("name", "user", "verb")):  # all of them may have to be looked through
        return visit.dashboard.jobs.read("audit", (*given.items(), before), find)
    return Result(find(lambda _found: None), is_whole=True)


ROUTES: list[BaseRoute] = [page("/audit", show_audit)]
