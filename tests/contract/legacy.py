"""What the tests ask celery-redbeat 2.4.2 to do, run by its own Python:

python legacy.py URL save | load | next | reschedule [ENTRY...]

Works on the entries of `kinds.py`, or those named, and prints a JSON object: name to what the entry is (see
`kinds.describe`) or, for one that failed, {"error": text}.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import kinds
from celery import Celery

from redbeat import RedBeatSchedulerEntry


def save(app: Celery, name: str) -> Any:
    return RedBeatSchedulerEntry(name=name, app=app, **kinds.entries()[name]).save()


def load(app: Celery, name: str) -> Any:
    return RedBeatSchedulerEntry.from_key(f"redbeat:{name}", app=app)


def advance(app: Celery, name: str) -> Any:
    return next(load(app, name))


def reschedule(app: Celery, name: str) -> Any:
    load(app, name).reschedule()
    return load(app, name)


COMMANDS = {"save": save, "load": load, "next": advance, "reschedule": reschedule}


def main(url: str, command: str, *names: str) -> None:
    app = Celery("legacy", broker=url, set_as_current=True)
    app.conf.redbeat_redis_url = url
    described: dict[str, Any] = {}
    for name in names or kinds.entries():
        try:
            described[name] = kinds.describe(COMMANDS[command](app, name))
        except Exception as exc:  # noqa: BLE001 - which entry failed, and how, is the answer
            described[name] = {"error": f"{type(exc).__name__}: {exc}"}
    print(json.dumps(described))


if __name__ == "__main__":
    main(*sys.argv[1:])
