"""The dashboard's pages, and its list of entries, asked in this process; options `db`, `count`, `rounds`.

Each entry that is shown in the list has a history of twenty runs. Of each view: the server time as the answer
tells it, and the processor time of this process.
"""

from __future__ import annotations

import re
import sys
import time
from html import unescape
from pathlib import Path
from typing import Any

import redis
from starlette.testclient import TestClient
from subject import make_app, read_options, report

from redbeat.web import User, asgi_app
from redbeat.web.server import SWITCH_SECONDS

sys.setswitchinterval(SWITCH_SECONDS)  # as the command does
options = read_options()
app = make_app(options.server, options.db)
client = redis.Redis.from_url(f"{options.server}{options.db}")
user = User("bench", ["admin"])
browser = TestClient(asgi_app(app, auth=lambda _request: user), base_url="http://localhost")
_RECORD = '{"at":%d,"due":%d,"outcome":"succeeded","wait":0.1,"ran":1.5,"worker":"celery@host","ended":%d}'


def resident_bytes() -> int:
    """What of this process is in memory; 0 where the system can't tell."""
    path = Path("/proc/self/statm")
    return int(path.read_text().split()[1]) * 4096 if path.exists() else 0


def read(path: str) -> Any:
    answer = browser.get(path)
    assert answer.status_code == 200, answer.text
    return answer


def give_histories(html: str) -> None:
    names = {unescape(name) for name in re.findall(r'data-select-one aria-label="([^"]*)"', html)}
    with client.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.delete(f"redbeat::history:{name}")
            pipeline.rpush(f"redbeat::history:{name}", *[_RECORD % (n, n, n + 2) for n in range(20)])
        pipeline.execute()


def measure(path: str) -> dict[str, Any]:
    """Ask for it a few times, once it has been asked for, as it may begin something in the background."""
    found: dict[str, Any] = {"ms": [], "cpu_ms": []}
    for _ in range(options.rounds):
        before = time.process_time()
        answer = read(path)
        found["cpu_ms"].append((time.process_time() - before) * 1000)
        found["ms"].append(float(answer.headers["server-timing"].partition("dur=")[2]))
    found["kilobytes"] = len(answer.content) / 1000
    found["looked"] = int((re.findall(r"looked through (\d+) %", answer.text) or ["100"])[0])
    return found


def measure_list(path: str) -> dict[str, Any]:
    give_histories(read(path).text)
    return measure(path)


read("/entries")
before, started, cpu = resident_bytes(), time.perf_counter(), time.process_time()
while "names are being read" in read("/entries?sort=name").text:
    time.sleep(0.1)
names = {
    "seconds": time.perf_counter() - started,
    "cpu_seconds": time.process_time() - cpu,
    "gained_bytes": resident_bytes() - before,
    "resident_bytes": resident_bytes(),
}
middle = options.count // 2
views = {
    "next, first": "/entries",
    "next, middle": f"/entries?offset={middle}",
    "next, last": f"/entries?offset={options.count - 50}",
    "name, first": "/entries?sort=name",
    "name, middle": f"/entries?sort=name&after=entry-{middle}",
    "name, last": f"/entries?sort=name&offset={options.count - 50}",
    "part of a name": f"/entries?match={options.count - 1}",
    "part of a name, by name": f"/entries?sort=name&match={options.count - 1}",
    "state": "/entries?state=paused",
    "task": "/entries?task=other",
    "queue": "/entries?queue=other",
    "last outcome": "/entries?outcome=failed",
}
lists = {view: measure_list(path) for view, path in views.items()}
paths = [f"/entry{page}?name=entry-{middle}" for page in ("", "/edit", "/run")]
others = "/ /entry/new /timeline /runs /doctor /files /calendars /routes /audit"
pages = {path: measure(path) for path in (*paths, *others.split())}
report(names=names, lists=lists, pages=pages)
