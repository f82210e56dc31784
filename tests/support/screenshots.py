"""`make screenshots`: pictures of the command line for the documentation, taken from a terminal."""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

from celery import Celery
from rich.console import Console
from rich.text import Text

from redbeat import RedBeatScheduler, RedBeatSchedulerEntry, track_runs
from redbeat.store.runs import Delivery, End, Runs
from redbeat.store.store import Store

from .command_line import ROOT, Terminal, installed
from .servers import Server

PICTURES = {
    "list": ["list"], "runs": ["runs"], "show": ["show", "report"], "next": ["next", "-n", "8"],
    "timeline": ["timeline", "--hours", "24"], "route": ["route", "report"],
}  # fmt: skip
COLUMNS = 100


def fill(app: Celery) -> None:
    """A small schedule in which something has happened."""

    def add(name: str, task: str, schedule: object, **fields: object) -> RedBeatSchedulerEntry:
        return RedBeatSchedulerEntry(name, task, schedule, app=app, **fields).save()

    add("report", "billing.report", "30 7 * * mon-fri", timezone="Europe/Berlin", jitter=60)
    add("heartbeat", "ops.ping", 900)
    add("newsletter", "news.send", "0 9 * * fri#2", timezone="America/New_York")
    add("cleanup", "ops.cleanup", "0 */2 * * *")
    add("orders.poll-carriers", "orders.poll", 120)
    add("catalog.sync-prices", "catalog.sync", "*/10 6-20 * * *", timezone="Europe/Berlin")
    add("warehouse.count-stock", "warehouse.count", "0 22 * * *", timezone="Europe/Berlin")
    add("backup", "ops.backup", "15 2 * * *").pause("the disk is full")
    add("party", "news.invite", "0 18 24 12 *", one_off=True)
    scheduler = RedBeatScheduler(app=app, lazy=True)
    names = ("report", "heartbeat", "cleanup", "catalog.sync-prices")
    app.redbeat_redis.zadd("redbeat::schedule", {f"redbeat:{name}": 0 for name in names})
    while not scheduler.tick():
        pass
    scheduler.close()
    outcomes = {"report": "succeeded", "heartbeat": "succeeded", "cleanup": "failed"}
    for name, seconds in zip(names, (1.25, 0.04, 0.5, 0), strict=True):
        [run] = RedBeatSchedulerEntry.get(name, app).running()
        due = f"{run.due.timestamp():.6f}"
        delivery = Delivery(name, run.task_id, due, token=f"delivery of {name}", worker="celery@web-1")
        runs = Runs(Store(app))
        runs.begin(delivery, 30_000)
        if name in outcomes:
            error = "OSError: No space left on device" if outcomes[name] == "failed" else ""
            runs.end([End(delivery, outcomes[name], error, seconds)])


def picture(text: str, name: str, title: str) -> str:
    """SVG of what a terminal showed."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    shown = Text.from_ansi(text.replace("\r\n", "\n").rstrip("\n"))
    console.print(shown.append("\n"))  # the foot of the last line would be cut off
    return console.export_svg(title=title, unique_id=f"cli-{name}")


def main() -> int:
    with Server("valkey") as server, tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        (directory / "proj.py").write_text(
            "import redbeat\nfrom celery import Celery\n"
            f"app = Celery('proj', broker='{server.url(0)}')\n"
            f"app.conf.redbeat_redis_url = '{server.url(1)}'\n"
            "app.conf.task_routes = {'billing.*': {'queue': 'billing', 'priority': 3}}\n"
            "redbeat.track_runs(app)\n"
        )
        app = Celery("proj", broker=server.url(0), set_as_current=False)
        app.conf.update(redbeat_redis_url=server.url(1), redbeat_lock_key=None)
        track_runs(app)
        with server.client(db=1) as client:
            app.redbeat_redis = client
            fill(app)
        for name, arguments in PICTURES.items():
            command = [sys.executable, "-m", "celery", "-A", "proj", "redbeat", *arguments]
            terminal = Terminal(command, directory, installed(directory), size=(40, COLUMNS))
            terminal.wait()
            path = ROOT / "docs" / "_static" / f"cli-{name}.svg"
            path.write_text(picture(terminal.shown, name, f"celery -A proj redbeat {' '.join(arguments)}"))
            print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
