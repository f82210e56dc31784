"""The doctor: what is wrong with the schedule, what to do about it, and what can be repaired from here."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

from starlette.responses import Response
from starlette.routing import BaseRoute

from redbeat.access import Right
from redbeat.diagnostics.doctor import examine
from redbeat.diagnostics.findings import SHOWN_OF_A_KIND, Diagnosis, Group
from redbeat.entries.wording import in_words_of
from redbeat.log.text import counted
from redbeat.operations.operating import fix_findings
from redbeat.operations.showing import hide_in_findings
from redbeat.web.jobs import Result, Tell
from redbeat.web.routes import action, page
from redbeat.web.visit import Visit

#: for how long a schedule is looked at: usually, and where the user wants all; seconds
BUDGET_SECONDS, LONG_SECONDS = 20.0, 120.0
#: how old an examination may be that is shown beside other things, and how long workers are asked; seconds
FRESH_SECONDS, WORKERS_SECONDS = 60.0, 2.0
#: how many findings of a kind are shown alone, and how many sentences about repairs
SHOWN, SHOWN_REPAIRS = 100, 200


def ask_doctor(
    visit: Visit,
    *,
    workers: bool = False,
    is_long: bool = False,
    fresh_seconds: float = FRESH_SECONDS,
    **options: Any,
) -> Result[Diagnosis]:
    """Return what the doctor has found last, and have it look again if that is old, or wanted."""

    def look(_tell: Tell[Diagnosis]) -> Diagnosis:
        found = examine(
            visit.app,
            is_dashboard=True,
            workers_seconds=WORKERS_SECONDS if workers else None,
            max_seconds=LONG_SECONDS if is_long else BUDGET_SECONDS,
        )
        return hide_in_findings(visit.app, found)

    return visit.dashboard.jobs.read("doctor", workers, look, fresh_seconds=fresh_seconds, **options)


def groups_of(found: Diagnosis, kind: str = "", first: int = 0) -> list[Group]:
    """Return the groups as they are shown, the worst first; of one kind the findings from ``first`` on."""
    groups = [group for group in found.groups() if kind in ("", group.kind)]
    return [
        replace(group, findings=group.findings[first:][: SHOWN if kind else SHOWN_OF_A_KIND[group.severity]])
        for group in groups
    ]


def show_doctor(visit: Visit) -> Response:
    """Return the page, or its part that changes."""
    workers = visit.query.get("workers") == "yes"
    kind, first = visit.query.get("kind", ""), visit.number("first")
    # a user who opens the page wants to see what is so now
    result = ask_doctor(visit, workers=workers, fresh_seconds=FRESH_SECONDS if visit.is_fragment else 0.0)
    return visit.render(
        "doctor_part.html" if visit.is_fragment else "doctor.html",
        title="Doctor",
        result=result,
        groups=groups_of(result.found, kind, first) if result.found is not None else [],
        counts=result.found.counts() if result.found is not None else {},
        in_words=lambda sentence: in_words_of(sentence, visit.zone),
        workers=workers,
        kind=kind,
        first=first,
        most=SHOWN,
        here=visit.link("doctor", workers="yes" if workers else None, kind=kind or None, first=first or None),
    )


def look_again(visit: Visit) -> Response:
    """Have the doctor look again; it changes nothing."""
    workers, is_long = visit.query.get("workers") == "yes", visit.query.get("long") == "yes"
    ask_doctor(visit, workers=workers, is_wanted=True, is_long=is_long)
    return visit.see("doctor", workers="yes" if workers else None)


def show_fix(visit: Visit) -> Response:
    """Return the page that says what would be repaired: of what the doctor has found last."""
    return _fix(visit, visit.query.get("kind", ""), dry_run=True)


def do_fix(visit: Visit) -> Response:
    """Repair what the doctor has found last, and say what was done."""
    kind = visit.typed("kind")
    if not visit.is_confirmed:
        return visit.see("doctor", "fix", kind=kind or None)
    return _fix(visit, kind, dry_run=False)


def _fix(visit: Visit, kind: str, *, dry_run: bool) -> Response:
    """Return the page about repairs; while the doctor still looks it says so, and nothing is repaired."""
    result, sentences = ask_doctor(visit, fresh_seconds=inf), list[str]()
    if result.found is None:
        dry_run = True
    else:
        wanted = [one for one in result.found.findings if kind in ("", one.kind)]
        sentences = fix_findings(visit.actor, wanted, dry_run=dry_run)
    if not dry_run:
        visit.dashboard.jobs.forget("doctor")
    return visit.render(
        "doctor_fix.html",
        title="What would be repaired" if dry_run else "What was repaired",
        kind=kind,
        sentences=sentences[:SHOWN_REPAIRS],
        more=max(len(sentences) - SHOWN_REPAIRS, 0),
        is_dry=dry_run,
        what=counted(len(sentences), "repair", "repairs"),
        result=result,
        here=visit.link("doctor", "fix", kind=kind or None),
    )


ROUTES: list[BaseRoute] = [
    page("/doctor", show_doctor),
    page("/doctor/look", look_again),
    page("/doctor/fix", show_fix, right=Right.ADMIN),
    action("/doctor/fix", do_fix, right=Right.ADMIN),
]
