"""Files: planned and applied, imported, and exported.

Invariant: what is applied is the plan that was shown; if the schedule has changed since then, the new plan is
shown instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from secrets import token_urlsafe
from typing import Any

from starlette.datastructures import UploadFile
from starlette.responses import Response
from starlette.routing import BaseRoute

from redbeat.access import Right
from redbeat.entries.wording import one_line
from redbeat.errors import AccessDenied, FileError
from redbeat.keys import is_owner_name
from redbeat.log.text import counted, shorten
from redbeat.manifest.format import Declared, decode_file, read_file, write_file
from redbeat.manifest.plan import Plan
from redbeat.operations.actor import Actor
from redbeat.store.members import count_members
from redbeat.store.store import Store
from redbeat.web.access.gate import MAX_BODY_BYTES
from redbeat.web.jobs import Ending, Pace, Result, Tell
from redbeat.web.pages.changing import make_change
from redbeat.web.routes import action, page
from redbeat.web.verbs import files as verbs
from redbeat.web.visit import Visit

#: how many entries are shown of each kind, and how many days of each calendar
MAX_SHOWN, MAX_DAYS_SHOWN = 200, 10
#: an export that was written is kept so long for its download, seconds
KEPT_SECONDS = 120.0
#: how large a file may be that comes back from the page with its plan, beside the other fields of the form
MAX_FILE_BYTES = MAX_BODY_BYTES - 64 * 1024

#: what is wrong where two files are given
BOTH = "Choose a file or paste a text, not both: which of them is meant isn't known."

#: what an error says of options of the command line, and what this page has in their places
_IN_PLACE = {
    "give --owner, or 'owner:' in the file": "fill in Owner, or write 'owner:' into the file",
    "or take it over (--take-over)": "or tick 'Take over'",
    "--replace writes over what there is": "tick 'Replace' to write over what there is",
    "use --replace": "tick 'Replace'",
}

Line = tuple[str, str]


@dataclass(frozen=True)
class Given:
    """What somebody wants to do with a file.

    Attributes:
        verb: 'apply' or 'import'.
        is_replacing: with 'import': overwrite entries of the same names.
        has_both: a file was chosen, and a text was typed, too; ``text`` is the typed one.
    """

    verb: str
    origin: str
    text: str
    owner: str
    prune: bool
    take_over: bool
    is_replacing: bool
    has_both: bool

    @classmethod
    def of(cls, visit: Visit) -> Given:
        """Return what a form asks for.

        Raises:
            FileError: the file is no text.
        """
        upload, typed = visit.form.get("file"), visit.form.get("text")
        origin, text = "the text", typed if isinstance(typed, str) else ""
        has_both = False
        if isinstance(upload, UploadFile) and upload.filename:
            has_both = bool(text.strip())
            if not has_both:
                origin = one_line(upload.filename, 200)
                text = decode_file(upload.file.read(), origin)
        elif visit.form.get("origin"):
            origin = one_line(visit.form["origin"], 200)

        def is_ticked(name: str) -> bool:
            return visit.form.get(name) == "yes"

        owner = visit.form.get("owner")
        return cls(
            "import" if visit.form.get("verb") == "import" else "apply",
            origin,
            text,
            owner.strip() if isinstance(owner, str) else "",
            is_ticked("prune"),
            is_ticked("take_over"),
            is_ticked("replace"),
            has_both,
        )

    @property
    def sent_bytes(self) -> int:
        """How large its text is when a browser sends it, with two bytes for each line break."""
        text = self.text.replace("\r\n", "\n")
        return len(text.encode("utf-8", "surrogateescape")) + text.count("\n")

    def declared(self) -> Declared:
        """Return the file.

        Raises:
            FileError: it can't be used.
        """
        if self.owner and not is_owner_name(self.owner):
            raise FileError("The owner must be a name without control characters.", self.origin)
        if self.has_both:
            raise FileError(BOTH, self.origin)
        if not self.text.strip():
            raise FileError("Choose a file, or paste its text.", self.origin)
        try:
            return read_file(self.text, self.origin)
        except RecursionError:
            raise FileError(f"{self.origin}: is nested too deeply.", self.origin) from None


def show_files(visit: Visit) -> Response:
    """Return the page."""
    return _form(visit, None, "")


@dataclass(frozen=True)
class Told:
    """What has become of a file.

    Attributes:
        problem: why it can't be used; '': it can.
        plan: what there is to show of its plan; None: it was carried out.
        words: what was done.
        status: the status code of a problem.
    """

    problem: str = ""
    plan: Mapping[str, Any] | None = None
    words: str = ""
    status: int = 422


def plan_file(visit: Visit) -> Response:
    """Show what a file would change."""
    try:
        given = Given.of(visit)
    except FileError as exc:
        return _form(visit, None, str(exc))
    if given.sent_bytes > MAX_FILE_BYTES:
        problem = (
            f"{given.origin}: is too large for this page, which takes {MAX_FILE_BYTES:,} bytes, two for each "
            f"line break; celery redbeat {given.verb} takes it."
        )
        return _form(visit, given, problem, 413)
    actor = visit.actor

    def make(tell: Tell[str]) -> Told:
        try:
            declared, owner = given.declared(), given.owner or None
            tell(f"Comparing {counted(len(declared.entries), 'entry', 'entries')} with the schedule")
            if given.verb == "import":
                plan = verbs.import_plan(actor, declared, owner, is_replacing=given.is_replacing)
            else:
                plan = verbs.plan(actor, declared, owner, prune=given.prune, take_over=given.take_over)
        except FileError as exc:
            return Told(str(exc))
        except AccessDenied as exc:  # a task that isn't allowed, say: what was typed stays
            return Told(str(exc), status=403)
        return Told(plan=_plan(actor, given, plan, is_new=False))

    return make_change(visit, "Plan", make, partial(_ending, given))


def apply_file(visit: Visit) -> Response:
    """Carry out the plan that was shown."""
    try:
        given = Given.of(visit)
    except FileError as exc:
        return _form(visit, None, str(exc))
    actor, seen = visit.actor, str(visit.form.get("seen", ""))

    def store(tell: Tell[str]) -> Told:
        try:
            declared, owner = given.declared(), given.owner or None
            tell(f"Storing {counted(len(declared.entries), 'entry', 'entries')}")
            if given.verb == "import":
                done = verbs.import_(actor, declared, owner, is_replacing=given.is_replacing, seen=seen)
            else:
                done = verbs.apply(
                    actor, declared, owner, prune=given.prune, take_over=given.take_over, seen=seen
                )
        except FileError as exc:
            return Told(str(exc))
        except AccessDenied as exc:  # a task that isn't allowed, say: what was typed stays
            return Told(str(exc), status=403)
        if not done.is_done:
            return Told(plan=_plan(actor, given, done.plan, is_new=True))
        words = _summary(done.plan.to_dict(), is_done=True)
        return Told(words=shorten(" ".join([words, *done.plan.outcome]), 500))

    return make_change(visit, "Import" if given.verb == "import" else "Apply", store, partial(_ending, given))


def _ending(given: Given, told: Told) -> Ending:
    place = ("files",)
    if told.problem:
        problem = _in_words(told.problem)

        def show_form(visit: Visit) -> Response:
            return _form(visit, given, problem, told.status)

        return Ending(problem, place, status=told.status, page=show_form)
    plan = told.plan
    if plan is None:
        return Ending(told.words, place, forgets=("calendars",))
    status = 412 if plan["is_new"] else 200

    def show_plan(visit: Visit) -> Response:
        return visit.render("files_plan.html", status, given=given, **plan)

    words = f"{'The schedule has changed, so nothing was done. ' if plan['is_new'] else ''}{plan['summary']}"
    return Ending(words, place, status=status, page=show_plan)


def _in_words(problem: str) -> str:
    for option, words in _IN_PLACE.items():
        problem = problem.replace(option, words)
    return problem


def _form(visit: Visit, given: Given | None, problem: str, status: int = 422) -> Response:
    problem = _in_words(problem)
    return visit.render(
        "files.html",
        status if problem else 200,
        title="Files",
        given=given,
        problem=problem,
        both=BOTH,
        max_bytes=4,
    )


def _plan(actor: Actor, given: Given, plan: Plan, *, is_new: bool) -> dict[str, Any]:
    """Return what there is to show of a plan; the plan itself may be large."""
    document = verbs.told(actor, plan)
    calendars = document["calendars"]
    left = [*document["left"], *(f"calendar {name}" for name in calendars["left"])]
    return {
        "title": "Import" if given.verb == "import" else "Plan",
        "lines": [*_lines(document), *_calendar_lines(calendars)],
        "summary": _summary(document),
        "number": plan.number or len(plan.calendars.changes),
        "removed": len(document["removed"]) + len(calendars["removed"]),
        "is_new": is_new,
        "left": [] if given.prune else left[:20],
        "more_left": max(len(left) - 20, 0),
        "warnings": document["warnings"][:50],
        "seen": verbs.fingerprint(actor, plan),
        "has_changes": bool(plan),
    }


def _summary(document: Mapping[str, Any], *, is_done: bool = False) -> str:
    """Return how many entries and calendars would be changed, or were, a sentence."""
    words = ("added", "changed", "removed") if is_done else ("to add", "to change", "to remove")
    kinds = dict(zip(("added", "changed", "removed", "same"), (*words, "the same"), strict=True))

    def numbers(of: Mapping[str, Any]) -> str:
        return ", ".join(f"{len(of[kind])} {word}" for kind, word in kinds.items())

    calendars = document["calendars"]
    has_calendars = any(calendars[kind] for kind in ("added", "changed", "removed", "same"))
    return f"Entries: {numbers(document)}." + (f" Calendars: {numbers(calendars)}." if has_calendars else "")


def _lines(document: Mapping[str, Any]) -> Iterator[Line]:
    """Yield the lines about entries, the first of each kind."""
    for kind, sign in (("added", "+"), ("changed", "~"), ("removed", "-")):
        for name, fields in list(document[kind].items())[:MAX_SHOWN]:
            yield sign, one_line(name)
            for field, value in fields.items():
                yield (
                    sign,
                    f"    {one_line(field)}: {_changed(value) if kind == 'changed' else _shown(value)}",
                )
        if len(document[kind]) > MAX_SHOWN:
            yield sign, f"and {len(document[kind]) - MAX_SHOWN} more"


def _calendar_lines(calendars: Mapping[str, Any]) -> Iterator[Line]:
    for kind, sign in (("added", "+"), ("changed", "~"), ("removed", "-")):
        for name, fields in list(calendars[kind].items())[:MAX_SHOWN]:
            yield sign, f"calendar {one_line(name)}"
            for day, value in list(fields.items())[:MAX_DAYS_SHOWN]:
                own, label = sign, value
                if kind == "changed":
                    before, after = value["before"], value["after"]
                    own = "+" if before is None else "-" if after is None else "~"
                    label = _changed(value) if own == "~" else after if before is None else before
                yield own, f"    {one_line(day)}{f': {one_line(label)}' if label else ''}"
            if len(fields) > MAX_DAYS_SHOWN:
                yield sign, f"    and {len(fields) - MAX_DAYS_SHOWN} more"


def _changed(value: Mapping[str, Any]) -> str:
    before, after = _shown(value["before"]), _shown(value["after"])
    return f"{before} (another value, hidden)" if before == after else f"{before} -> {after}"


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    return one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


# -- export


def export_file(visit: Visit) -> Response:
    """Write the stored entries in the background, and send them when they are there.

    Each export is written anew: ``once`` tells it from others, and from the next one of the same user.
    """
    match, owner = visit.pattern("match"), visit.query.get("owner", "").strip()[:500]
    is_json, with_history = visit.query.get("format") == "json", visit.query.get("history") == "yes"
    wanted = (match or None, owner or None, with_history, is_json)
    fields = {
        name: visit.query[name] for name in ("match", "owner", "format", "history") if name in visit.query
    }
    once = visit.query.get("once") or token_urlsafe(12)
    jobs, key = visit.dashboard.jobs, (once, *wanted)
    result: Result[str] = jobs.read(
        "export",
        key,
        partial(_write, visit, *wanted),
        fresh_seconds=KEPT_SECONDS,
        kept_seconds=KEPT_SECONDS,
    )
    if result.is_whole and not visit.is_fragment and result.found is not None:
        jobs.forget("export", key)
        name = "schedule.json" if is_json else "schedule.yaml"
        headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
        kind = "application/json" if is_json else "application/yaml"
        return Response(result.found.encode("utf-8", "surrogateescape"), media_type=kind, headers=headers)
    if "once" not in visit.query:
        return visit.see("files", "export", **fields, once=once)
    return visit.render(
        "files_export_part.html" if visit.is_fragment else "files_export.html",
        title="Export",
        result=result,
        entries=count_members(Store(visit.app)),
        url=visit.link("files", "export", **fields, once=once),
    )


def _write(
    visit: Visit, match: str | None, owner: str | None, with_history: bool, is_json: bool, tell: Tell[str]
) -> str:
    pace = Pace(float("inf"))

    def progress(number: int) -> None:
        tell(f"{number:,}")  # so far that is all there is of the file
        pace.rest()

    exported = verbs.export(visit.actor, match, owner, with_history=with_history, progress=progress)
    text = write_file(exported.declared, is_json=is_json)
    if is_json or text.startswith("{"):
        return text
    return "".join(f"# Left out: {one_line(reason)}\n" for reason in exported.skipped) + text


ROUTES: list[BaseRoute] = [
    page("/files", show_files, right=Right.READ),
    page("/files/export", export_file, right=Right.EDIT),
    action("/files/plan", plan_file, right=Right.EDIT),
    action("/files/apply", apply_file, right=Right.EDIT),
]
