"""The doctor: what is wrong with the schedule, what to do about it, and what can be repaired from here."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from starlette.responses import Response
from starlette.routing import BaseRoute

from redbeat.access import Right
from redbeat.diagnostics.checks import Diagnosis, Finding, Severity, examine
from redbeat.entries.wording import in_words_of
from redbeat.log.text import counted
from redbeat.operations.repairing import fix
from redbeat.operations.showing import hide_in_findings
from redbeat.web.background import Result, Tell
from redbeat.web.routes import action, page
from redbeat.web.visit import Visit

#: for how long a schedule is looked at: usually, and where somebody wants all; seconds
BUDGET_SECONDS, LONG_SECONDS = 20.0, 120.0
#: how old an examination may be that is shown beside other things, and how long workers are asked; seconds
FRESH_SECONDS, WORKERS_SECONDS = 60.0, 2.0
#: how many findings of a kind are shown among others, and alone
SHOWN_OF_A_KIND, SHOWN = {Severity.ERROR: 10, Severity.WARNING: 3, Severity.NOTE: 3}, 100
#: what an advice says of commands, and what pages have in their places
_IN_PLACE = (
    (r"--fix (?=[a-z])", "a repair "),
    (r" with --max-seconds", ""),
    (r", or give them longer: --workers takes a number of seconds", ""),
    (r"celery redbeat show has the last ones; rerun sends", "Its page has the last ones; Rerun there sends"),
    (r"celery redbeat route names", "the page Routes names"),
    (r"celery redbeat status says", "The overview says"),
    (
        r"celery redbeat later show says what it is, and later cancel",
        "the page Later says what it is, and Revoke there",
    ),
    (r"celery redbeat runs .+ --give-up ends", "Give up, on its page, ends"),
    (r"its next runs with celery redbeat next", "its next runs on its page"),
    (r"celery redbeat set .+ --enabled brings", "saving a change on its page brings"),
)
#: how many sentences about repairs are shown
SHOWN_REPAIRS = 200


@dataclass(frozen=True)
class Group:
    """The findings of a kind and severity.

    Attributes:
        count: how many there are, with those that aren't kept.
        shown: those that are shown.
        fixable: how many of them can be repaired from here.
    """

    severity: Severity
    kind: str
    count: int
    shown: Sequence[Finding]
    fixable: int


def ask_doctor(
    visit: Visit,
    *,
    workers: bool = False,
    is_long: bool = False,
    fresh_seconds: float = FRESH_SECONDS,
    **options: Any,
) -> Result[Diagnosis]:
    """Return what the doctor has found last, and have it look again if that is old, or wanted.

    A younger look for which workers were asked counts for one without.
    """

    def look(_tell: Tell[Diagnosis]) -> Diagnosis:
        found = examine(
            visit.app,
            is_dashboard=True,
            workers_seconds=WORKERS_SECONDS if workers else None,
            max_seconds=LONG_SECONDS if is_long else BUDGET_SECONDS,
        )
        return hide_in_findings(visit.app, found)

    background = visit.dashboard.background
    result = background.result_of("doctor", workers, look, fresh_seconds=fresh_seconds, **options)
    if workers:
        return result
    other: Result[Diagnosis] = background.last("doctor", True)
    is_younger = other.is_whole and not (result.is_whole and result.age_seconds <= other.age_seconds)
    return replace(other, is_awaited=result.is_awaited, problem=result.problem) if is_younger else result


def groups_of(found: Diagnosis, kind: str = "", first: int = 0) -> list[Group]:
    """Return the findings, the worst first, those of a kind together; of one kind from the ``first`` on."""
    grouped: dict[tuple[Severity, str], list[Finding]] = {}
    for finding in sorted(found.findings, key=lambda finding: -finding.severity):
        grouped.setdefault((finding.severity, finding.kind), []).append(finding)
    last = {of_kind: severity for severity, of_kind in grouped}
    groups = []
    for (severity, of_kind), findings in grouped.items():
        if kind in ("", of_kind):
            count = len(findings) + (found.more[of_kind] if last[of_kind] == severity else 0)
            shown = findings[first : first + SHOWN] if kind else findings[: SHOWN_OF_A_KIND[severity]]
            fixable = sum(finding.repair is not None for finding in findings)
            groups.append(Group(severity, of_kind, count, shown, fixable))
    return groups


def counts_of(found: Diagnosis) -> dict[str, int]:
    """Return how many findings there are of each severity, the worst first; none is 0."""
    counts: dict[str, int] = {}
    for group in groups_of(found):
        word = group.severity.name.lower()
        counts[word] = counts.get(word, 0) + group.count
    return counts


def show_doctor(visit: Visit) -> Response:
    """Return the page, or its part that changes."""
    workers = visit.query.get("workers") == "yes"
    kind, first = visit.query.get("kind", ""), _number(visit.query.get("first", ""))
    # whoever opens the page wants to see what is so now
    result = ask_doctor(visit, workers=workers, fresh_seconds=FRESH_SECONDS if visit.is_fragment else 0.0)
    groups = groups_of(result.found, kind, first) if result.found is not None else []
    here = visit.link("doctor", workers="yes" if workers else None, kind=kind or None, first=first or None)
    return visit.render(
        "doctor_part.html" if visit.is_fragment else "doctor.html",
        title="Doctor",
        result=result,
        groups=groups,
        counts=counts_of(result.found) if result.found is not None else {},
        in_words=lambda sentence: in_words_of(sentence, visit.zone),
        advice_of=lambda finding: in_words_of(on_page(finding.advice), visit.zone),
        workers=workers,
        kind=kind,
        first=first,
        most=SHOWN,
        here=here,
        fixable=sum(group.fixable for group in groups),
    )


def on_page(advice: str) -> str:
    """Return an advice of the doctor with the words of its page in the place of commands."""
    for command, words in _IN_PLACE:
        advice = re.sub(command, words, advice, flags=re.DOTALL)
    return advice


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 7 else 0


def look_again(visit: Visit) -> Response:
    """Have the doctor look again; it changes nothing."""
    workers, is_long = visit.query.get("workers") == "yes", visit.query.get("long") == "yes"
    ask_doctor(visit, workers=workers, is_wanted=True, is_long=is_long)
    return visit.see("doctor", workers="yes" if workers else None)


def show_fix(visit: Visit) -> Response:
    """Return the page that says what would be repaired: of what the doctor has found last."""
    kind, is_new = visit.query.get("kind", ""), visit.query.get("new") == "yes"
    result = ask_doctor(visit, fresh_seconds=inf)
    if result.found is None or (is_new and result.is_awaited):
        return _told(visit, kind, (), result=result)
    findings = _fixable(result.found, kind)
    sentences = fix(visit.actor, findings, dry_run=True)
    return _told(visit, kind, sentences, seen=_digest_of(findings), is_new=is_new)


def do_fix(visit: Visit) -> Response:
    """Repair what was seen, and say what was done."""
    kind, seen = str(visit.form.get("kind", "")), str(visit.form.get("seen", ""))
    if visit.form.get("confirmed") != "yes":
        return visit.see("doctor", "fix", kind=kind or None)
    background = visit.dashboard.background
    for workers in (False, True):
        last: Result[Diagnosis] = background.last("doctor", workers)
        if last.found is not None and _digest_of(findings := _fixable(last.found, kind)) == seen:
            break
    else:  # another process has found it, or this one something else meanwhile
        ask_doctor(visit, is_wanted=True)
        return visit.see("doctor", "fix", kind=kind or None, new="yes")
    sentences = fix(visit.actor, findings, dry_run=False)
    background.forget("doctor")
    return _told(visit, kind, sentences)


def _told(
    visit: Visit,
    kind: str,
    sentences: Sequence[str],
    *,
    seen: str = "",
    is_new: bool = False,
    result: Result[Diagnosis] | None = None,
) -> Response:
    """Return the page about repairs; with a result, that the doctor is still looking."""
    is_dry = bool(seen) or result is not None
    return visit.render(
        "doctor_fix.html",
        title="What would be repaired" if is_dry else "What was repaired",
        seen=seen,
        is_new=is_new,
        kind=kind,
        sentences=sentences[:SHOWN_REPAIRS],
        more=max(len(sentences) - SHOWN_REPAIRS, 0),
        is_dry=is_dry,
        what=counted(len(sentences), "repair", "repairs"),
        result=result,
        here=visit.link("doctor", "fix", **visit.query),
    )


def _fixable(found: Diagnosis, kind: str) -> list[Finding]:
    return [one for one in found.findings if one.repair is not None and kind in ("", one.kind)]


def _digest_of(findings: Sequence[Finding]) -> str:
    """Return what tells some repairs from others."""
    text = repr(sorted(repr(one.repair) for one in findings))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


ROUTES: list[BaseRoute] = [
    page("/doctor", show_doctor),
    page("/doctor/look", look_again),
    page("/doctor/fix", show_fix, right=Right.ADMIN),
    action("/doctor/fix", do_fix, right=Right.ADMIN),
]
