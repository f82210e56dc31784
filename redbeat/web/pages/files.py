"""Files: planned and applied, imported, and exported.

Invariant: what is applied is the plan that was shown; if the schedule has changed since then, the new plan is
shown instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import tzinfo
from typing import Any

from starlette.datastructures import UploadFile
from starlette.responses import Response
from starlette.routing import BaseRoute

from redbeat.access import Right
from redbeat.entries.wording import one_line
from redbeat.errors import RedBeatError
from redbeat.log.text import counted
from redbeat.manifest.plan import Plan
from redbeat.operations import files
from redbeat.operations.actor import Actor
from redbeat.operations.files import FileChange, FileToApply, FileToImport
from redbeat.web.api.problems import OPTION
from redbeat.web.jobs import Ending, Pace, Tell
from redbeat.web.pages.changing import make_form_change
from redbeat.web.routes import action, page
from redbeat.web.visit import Visit

#: how many names and warnings of a plan are shown
MAX_LEFT, MAX_WARNINGS = 20, 50


@dataclass(frozen=True)
class Given:
    """A form with a file.

    Attributes:
        verb: 'apply' or 'import'.
        data: the contents of the file.
    """

    verb: str
    origin: str
    data: bytes
    owner: str
    prune: bool
    take_over: bool
    replace: bool

    @classmethod
    def of(cls, visit: Visit) -> Given:
        """Return the contents of a form: of a file, else of the text that was typed."""
        upload, origin = visit.form.get("file"), visit.typed("origin") or "the text"
        data = visit.typed("text").encode("utf-8", "surrogateescape")
        if isinstance(upload, UploadFile) and upload.filename:
            origin, data = upload.filename, upload.file.read()
        verb = "import" if visit.typed("verb") == "import" else "apply"
        prune, take_over, replace = (visit.typed(name) == "yes" for name in ("prune", "take_over", "replace"))
        return cls(verb, one_line(origin, 200), data, visit.typed("owner").strip(), prune, take_over, replace)

    @property
    def text(self) -> str:
        """The contents as forms show them."""
        return self.data.decode("utf-8", "replace")

    def change(self) -> FileChange:
        """Return what the user wants to do.

        Raises:
            FileError: the file can't be used.
        """
        declared = files.declared_in(self.data, self.origin)
        owner = self.owner or None
        if self.verb == "import":
            return FileToImport(declared, owner, self.replace)
        return FileToApply(declared, owner, self.prune, self.take_over)


def show_files(visit: Visit) -> Response:
    """Return the page."""
    return _form(visit, None, "")


def plan_file(visit: Visit) -> Response:
    """Show what a file would change."""
    return _handle(visit, is_applying=False)


def apply_file(visit: Visit) -> Response:
    """Carry out the plan that was shown."""
    return _handle(visit, is_applying=True)


def _handle(visit: Visit, *, is_applying: bool) -> Response:
    """Plan or apply a file; show the plan or the outcome, or the form with its error."""
    given, actor, zone, seen = Given.of(visit), visit.actor, visit.zone, visit.typed("seen")

    def work(tell: Tell[str]) -> Ending:
        change = given.change()
        count = counted(len(change.declared.entries), "entry", "entries")
        tell(f"Storing {count}" if is_applying else f"Comparing {count} with the schedule")
        if isinstance(change, FileToImport):
            done = files.import_file(actor, change, seen=seen, dry_run=not is_applying)
        else:
            done = files.apply_file(actor, change, seen=seen, dry_run=not is_applying)
        if done.is_done:
            summary = files.summary_of(done.plan.to_dict(), is_done=True)
            return Ending(summary, ("files",), forgets=("calendars",))
        made = _shown(actor, change, done.plan, zone)
        words = f"{'The schedule has changed, so nothing was done. ' if is_applying else ''}{made['summary']}"
        status = 412 if is_applying else 200

        def show(visit: Visit) -> Response:
            return visit.render("files_plan.html", status, given=given, is_new=is_applying, **made)

        return Ending(words, ("files",), status=status, page=show)

    def again(visit: Visit, error: RedBeatError, status: int) -> Response:
        # what is an option of the command line is a field here
        words = OPTION.sub(lambda found: found[1].replace("-", " ").capitalize(), str(error))
        return _form(visit, given, words, status)

    title = given.verb.capitalize() if is_applying else "Plan"
    return make_form_change(visit, title, work, again, ("files",))


def _form(visit: Visit, given: Given | None, problem: str, status: int = 200) -> Response:
    return visit.render("files.html", status, title="Files", given=given, problem=problem)


def _shown(actor: Actor, change: FileChange, plan: Plan, zone: tzinfo) -> dict[str, Any]:
    """Return what is shown of a plan; the plan itself may be large."""
    document = files.document_of(actor, plan)
    left = files.left_of(document)
    return {
        "title": "Import" if change.verb == "import" else "Plan",
        "lines": [*files.lines_of(document, zone)],
        "summary": files.summary_of(document),
        "number": len(plan.names),
        "removed": len(document["removed"]) + len(document["calendars"]["removed"]),
        "left": [] if plan.is_pruned else left[:MAX_LEFT],
        "more_left": max(len(left) - MAX_LEFT, 0),
        "warnings": document["warnings"][:MAX_WARNINGS],
        "seen": files.fingerprint(actor, plan),
    }


def export_file(visit: Visit) -> Response:
    """Download the stored entries."""
    kind, pace = "json" if visit.query.get("format") == "json" else "yaml", Pace()
    with visit.dashboard.alone():
        found = files.export_file(
            visit.actor,
            match=visit.pattern("match") or None,
            owner=visit.query.get("owner", "").strip()[:500] or None,
            with_history=visit.query.get("history") == "yes",
            kind=kind,
            progress=lambda _count: pace.rest(),
        )
        text = found.text()
    if not text.startswith("{"):
        text = "".join(f"# Left out: {one_line(reason)}\n" for reason in found.skipped) + text
    headers = {"Content-Disposition": f'attachment; filename="schedule.{kind}"', "Cache-Control": "no-store"}
    data = text.encode("utf-8", "surrogateescape")
    return Response(data, media_type=f"application/{kind}", headers=headers)


ROUTES: list[BaseRoute] = [
    page("/files", show_files, right=Right.READ),
    page("/files/export", export_file, right=Right.EDIT),
    action("/files/plan", plan_file, right=Right.EDIT),
    action("/files/apply", apply_file, right=Right.EDIT),
]
