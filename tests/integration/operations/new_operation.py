"""A program that adds an operation, and prints as JSON what each surface answers when it is called."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.access import Right
from redbeat.entries.audit import find_records
from redbeat.errors import ArgumentInvalid
from redbeat.operations.actor import Actor
from redbeat.operations.editing import EntryChange
from redbeat.operations.operation import Moment, Option, given_values, operation
from redbeat.operations.selection import NameOfEntry


@dataclass(frozen=True)
class Renewed:
    name: str
    count: int


@operation("entry.recount", Right.EDIT, "recount", "PUT /entries/{name}/count", is_destructive=True)
def recount(
    actor: Actor,
    name: NameOfEntry,
    *,
    count: Annotated[int, Option("The number of runs from now on.", least=0, most=1000)],
    reasons: Annotated[list[str] | None, Option("Why.")] = None,
    seconds: Annotated[int | None, Option("How long it took.")] = None,
    until: Annotated[Moment | None, Option("Until when.", ahead=True)] = None,
    mode: Annotated[Literal["all", "some"], Option("Which.")] = "all",
) -> Renewed:
    """Change the number of runs of an entry.

    The history stays.
    """
    if count == 999:
        raise ArgumentInvalid("count", "must not be 999, got 999.")
    details = given_values(count=count, reasons=reasons, until=until and actor.time(until))
    with actor.doing("recount", [name], details):
        entry = Entry.get(name, actor.app)
        entry.total_run_count = count
        entry.save()
    return Renewed(name, count)


@operation("entry.touch", Right.EDIT, "touch", "PUT /entries/{name}/touch", is_destructive=True)
def touch(actor: Actor, name: NameOfEntry) -> EntryChange:
    """Touch an entry."""
    return EntryChange(Entry.get(name, actor.app), "touched")


def question_of(app: Celery) -> str:
    """Return what the command asks a user at a terminal, who says no."""
    from redbeat.cli import session
    from tests.support.command_line import call

    session.is_interactive = lambda: True
    return call(app, "touch", "report").output


def browse(app: Celery) -> dict[str, Any]:
    """Call the operation in the dashboard: the button, the form, the question and the result."""
    from tests.support.dashboards import Browser, dashboard_of

    editor, reader = Browser(dashboard_of(app, ["edit"])), Browser(dashboard_of(app, ["read"]))
    path, fields = "/entry/more/entry.recount", {"name": "report", "count": "9", "until": "tomorrow 9:00"}
    return {
        "offered": ["/entry/more/" in one.read("/entry", name="report") for one in (editor, reader)],
        "form": editor.read(path, name="report"),
        "invalid": [
            [answer.status_code, answer.text]
            for answer in (
                editor.post(path, **{**fields, **wrong})
                for wrong in ({"count": "1001"}, {"count": "999", "confirmed": "yes"}, {"until": "soonish"})
            )
        ],
        "question": editor.post(path, **fields).text,
        "done": editor.send(path, **fields, confirmed="yes"),
        "denied": [reader.get(path, name="report").status_code, reader.post(path, **fields).status_code],
        "missing": editor.get(path, name="nothing").status_code,
    }


def main(url: str) -> None:
    # the surfaces are imported after the operation is there
    from redbeat.web.api.openapi import document_of
    from redbeat.web.api.resources import OPERATIONS
    from tests.support.command_line import call
    from tests.support.programs import Program

    app = Celery("test", broker="memory://", set_as_current=True)
    app.conf.redbeat_redis_url = url
    Entry("report", "echo", 60, app=app).save()
    editor, reader = Program(app, ["edit"]), Program(app, ["read"])
    answers = [
        one.ask("PUT", "/entries/report/count", body)
        for one, body in ((editor, {"count": 7}), (editor, {"count": 1001}), (reader, {"count": 7}))
    ]
    commands = [
        call(app, "recount", "report", "--count", "8", "--yes", "--json", "--reasons", "a", "--reasons", "b"),
        call(app, "recount", "report", "--count", "1001", "--yes"),
        call(app, "recount", "--help"),
        call(app, "--help"),
        call(app, "touch", "report", "--yes", "--json"),
    ]
    described = document_of(OPERATIONS, "/api/v1")
    found = {
        "answers": [[one.status_code, one.json()] for one in answers],
        "commands": [[one.exit_code, one.output] for one in commands],
        "described": described["paths"]["/entries/{name}/count"]["put"],
        "schema": described["components"]["schemas"]["Renewed"],
        "pages": browse(app),
        "question": question_of(app),
        "audit": [[one.source, one.verb, one.details] for one in find_records(app)],
    }
    sys.stdout.write(json.dumps(found))


main(sys.argv[1])
