"""`make screenshots`: pictures of the command line and the dashboard for the documentation.

Those of the command line are taken from a terminal.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from celery import Celery
from rich.console import Console
from rich.text import Text

from redbeat import RedBeatSchedulerEntry, track_runs
from tests.support.command_line import ROOT, Terminal, installed
from tests.support.servers import Server

from .dashboard import Became, enliven, run_now, take_pictures

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
    run_now(
        app,
        {
            "report": Became("succeeded", 1.25),
            "heartbeat": Became("succeeded", 0.04),
            "cleanup": Became("failed", 0.5, "OSError: No space left on device"),
            "catalog.sync-prices": None,
        },
    )


def picture(text: str, name: str, title: str) -> str:
    """SVG of what a terminal showed."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    shown = Text.from_ansi(text.replace("\r\n", "\n").rstrip("\n"))
    console.print(shown.append("\n"))  # the foot of the last line would be cut off
    return console.export_svg(title=title, unique_id=f"cli-{name}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make screenshots", description=__doc__)
    parser.add_argument("--only", choices=("cli", "dashboard"), help="Default: both.")
    only = parser.parse_args(arguments).only
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
        for name, words in PICTURES.items() if only in (None, "cli") else ():
            command = [sys.executable, "-m", "celery", "-A", "proj", "redbeat", *words]
            terminal = Terminal(command, directory, installed(directory), size=(40, COLUMNS))
            terminal.wait()
            path = ROOT / "docs" / "_static" / f"cli-{name}.svg"
            path.write_text(picture(terminal.shown, name, f"celery -A proj redbeat {' '.join(words)}"))
            print(path.relative_to(ROOT))
        if only == "cli":
            return 0
        with server.client(db=1) as client:
            app.redbeat_redis = client
            enliven(app, client)
        command = [sys.executable, "-m", "celery", "-A", "proj", "redbeat"]
        take_pictures(command, directory, installed(directory), ROOT / "docs" / "_static")
    return 0


if __name__ == "__main__":
    sys.exit(main())
