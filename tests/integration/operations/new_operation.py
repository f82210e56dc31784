"""A program that adds an operation, and prints as JSON what each surface answers when it is called."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Annotated

from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.access import Right
from redbeat.entries.audit import find_records
from redbeat.operations.actor import Actor
from redbeat.operations.operation import Option, operation
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
) -> Renewed:
    """Change the number of runs of an entry."""
    with actor.doing("recount", [name], {"count": count}):
        entry = Entry.get(name, actor.app)
        entry.total_run_count = count
        entry.save()
    return Renewed(name, count)


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
        call(app, "recount", "report", "--count", "8", "--yes", "--json"),
        call(app, "recount", "report", "--count", "1001", "--yes"),
        call(app, "recount", "--help"),
        call(app, "--help"),
    ]
    described = document_of(OPERATIONS, "/api/v1")
    found = {
        "answers": [[one.status_code, one.json()] for one in answers],
        "commands": [[one.exit_code, one.output] for one in commands],
        "described": described["paths"]["/entries/{name}/count"]["put"],
        "schema": described["components"]["schemas"]["Renewed"],
        "audit": [[one.source, one.verb, one.details] for one in find_records(app)],
    }
    sys.stdout.write(json.dumps(found))


main(sys.argv[1])
