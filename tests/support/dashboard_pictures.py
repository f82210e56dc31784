"""`make screenshots`: pictures of the dashboard for the documentation, taken from a real one in a browser."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from celery import Celery
from playwright.sync_api import Page

from redbeat import RedBeatScheduler, RedBeatSchedulerEntry
from redbeat.calendars import Calendar
from redbeat.entries.audit import audited
from redbeat.keys import Keys
from redbeat.leadership.lock import new_token
from redbeat.store.runs import Delivery, End, Runs
from redbeat.store.store import Store

from .browser import chromium, take, visit
from .command_line import Terminal
from .polling import eventually

#: name to path; each has its section in docs/web.rst
PAGES = {
    "overview": "", "entries": "entries", "entry": "entry?name=shop.send-mails",
    "edit": "entry/edit?name=report",
    "timeline": "timeline", "runs": "runs", "doctor": "doctor", "files": "files",
    "calendar": "calendar?name=holidays", "routes": "routes?name=report", "audit": "audit",
}  # fmt: skip
SCHEMES = ("light", "dark")
PLAN = """\
owner: new-shop
entries:
  billing.invoices: {task: billing.invoices, schedule: 0 6 1 * *, timezone: Europe/Berlin}
  shop.invite-reviews: {task: shop.invite_reviews, schedule: "*/10 * * * *"}
"""
# A page as WebP: a third of what it is as PNG. The browser can do it, so that nothing has to be installed.
_WEBP = """async url => {
    const picture = new Image();
    picture.src = url;
    await picture.decode();
    const canvas = document.createElement('canvas');
    canvas.width = picture.width;
    canvas.height = picture.height;
    canvas.getContext('2d').drawImage(picture, 0, 0);
    return canvas.toDataURL('image/webp', 0.8).split(',')[1];
}"""
_TASKS = {
    "shop": ("send_mails", "close_carts", "sync_stock", "rank_products", "refresh_prices", "count_visits"),
    "billing": ("dun", "collect_payments", "match_transfers", "close_day", "export_ledger"),
    "ops": ("rotate_logs", "check_disks", "renew_certificates", "vacuum", "warm_caches"),
    "search": ("index_products", "index_articles", "drop_stale", "suggest"),
    "reports": ("sales", "returns", "traffic", "margins", "carriers", "support"),
    "partners": ("fetch_offers", "push_feeds", "rate_carriers", "settle"),
}
_SCHEDULES: Sequence[Any] = (
    1800, "*/15 * * * *", "30 2 * * *", 3600, "0 6-20 * * mon-fri", "45 3 * * sun", 1200, "10 */4 * * *",
)  # fmt: skip
#: what runs together in the morning, so that the timeline has a pile-up
_AT_SIX = ("search", "reports", "partners")


class Became(NamedTuple):
    """What became of a run."""

    outcome: str
    seconds: float
    error: str = ""


def run_now(app: Celery, names: Mapping[str, Became | None]) -> None:
    """Let beat send these entries now, and a worker do what they become; None: that goes on."""
    scheduler = RedBeatScheduler(app=app, lazy=True)
    app.redbeat_redis.zadd("redbeat::schedule", {f"redbeat:{name}": 0 for name in names})
    while not scheduler.tick():
        pass
    scheduler.close()
    runs = Runs(Store(app))
    for name, became in names.items():
        [run] = RedBeatSchedulerEntry.get(name, app).running()
        due = f"{run.due.timestamp():.6f}"
        delivery = Delivery(name, run.task_id, due, token=f"delivery of {name}", worker="celery@web-1")
        runs.begin(delivery, 30_000)
        if became is not None:
            runs.end([End(delivery, became.outcome, became.error, became.seconds)])


def enliven(app: Celery, client: Any) -> None:
    """Make of a small schedule one that has been at work for hours: entries, histories, figures, changes."""
    now = time.time()
    year = datetime.now(timezone.utc).year
    days = {"01-01": "New Year", "05-01": "Labour Day", "12-25": "Christmas", "12-26": "Boxing Day"}
    for name, about in (("holidays", "public holidays"), ("stocktaking", "the warehouse is closed")):
        Calendar(name, {f"{year}-{day}": label for day, label in days.items()}, about, app=app).save()
    Calendar.change("stocktaking", [f"{year}-06-29/{year}-07-03"], app=app)
    names = list(_add_entries(app))
    for number, name in enumerate(names):
        _add_history(client, name, now - 60 * (number + 1), number)
    failed = Became("failed", 30.0, "TimeoutError: no answer within 30 s")
    refused = Became("failed", 0.2, "ConnectionRefusedError: [Errno 111] Connection refused")
    run_now(
        app,
        {
            "shop.sync-stock": failed, "billing.dun": refused, "partners.push-feeds": failed,
            "reports.sales": Became("succeeded", 12.0), "search.index-products": None,
        },
    )  # fmt: skip
    client.set("redbeat::lock", new_token(), px=3_600_000)
    client.hset("redbeat::totals", "leader", "web-1")
    for number in range(int(now) // 60 - 59, int(now) // 60 + 1):
        sent = 24 + number * 7 % 13 + (60 if number % 15 == 0 else 0)
        late = {"late/1": sent - 3, "late/2": 2, "late/3": 1 + number % 3}
        counted = {"sent": sent, "failed": 2 if number % 11 == 0 else 0, **late}
        client.hset("redbeat::minutes", str(number % 60), json.dumps({"minute": number, "counted": counted}))
    for user, source, verb, names_, details in (
        ("anna", "cli", "add", ["newsletter"], {"schedule": "0 9 * * fri#2"}),
        ("bob", "web", "set", ["report"], {"timezone": "Europe/Berlin"}),
        ("deploy", "api", "apply", names[:12], {"owner": "shop"}),
        ("anna", "web", "calendar set", ["holidays"], {"add": f"{year}-12-26"}),
        ("carol", "web", "pause", ["backup"], {"note": "the disk is full"}),
        ("carol", "web", "rerun", ["cleanup"], {}),
        ("bob", "cli", "trigger", ["catalog.sync-prices"], {}),
    ):
        with audited(app, user, source, verb, names_, details, host="web-1"):
            pass


def _add_entries(app: Celery) -> Iterator[str]:
    number = 0
    for prefix, tasks in _TASKS.items():
        for task in tasks:
            schedule = "0 6 * * *" if prefix in _AT_SIX else _SCHEDULES[number % len(_SCHEDULES)]
            name = f"{prefix}.{task.replace('_', '-')}"
            options: dict[str, Any] = {"exclude": "holidays"} if number % 6 == 0 else {}
            entry = RedBeatSchedulerEntry(name, f"{prefix}.{task}", schedule, app=app, **options).save()
            if number in (11, 23):
                entry.pause("until the move is over")
            number += 1
            yield name


def _add_history(client: Any, name: str, newest: float, number: int) -> None:
    """Twenty runs; every seventh entry has failed now and then."""
    for past in reversed(range(20)):
        due = newest - 600 * past
        outcome = "failed" if number % 7 == 0 and past % 6 == 1 else "succeeded"
        record: dict[str, Any] = {"due": due, "at": due + 0.02, "ended": due + 2, "outcome": outcome}
        if outcome == "failed":
            record["error"] = "TimeoutError: no answer within 30 s"
        client.lpush(Keys().about(name).history, json.dumps(record))


def take_pictures(command: Sequence[str], directory: Path, environ: dict[str, str], target: Path) -> None:
    """Look at each page of ``celery redbeat web`` in both themes, and keep what was seen in `target`."""
    with (
        Terminal([*command, "web", "--port=0"], directory, environ, (40, 300)) as terminal,
        chromium() as browser,
    ):
        terminal.wait_for("Ctrl-C")
        found = re.search(r"https?://\S+", terminal.shown)
        assert found, terminal.shown
        home = "/".join(found[0].split("/")[:3])
        for scheme in SCHEMES:
            with visit(browser, color_scheme=scheme) as (context, complaints):
                page = context.new_page()
                page.goto(found[0])
                if page.get_by_role("button", name="Log in").count():
                    page.get_by_role("button", name="Log in").click()
                for name, path in PAGES.items():
                    show(page, f"{home}/{path}", name)
                    picture = take(page, f"web-{name}-{scheme}", whole=False)
                    data = base64.b64encode(picture.read_bytes()).decode()
                    with visit(browser) as (other, _):
                        converted = other.new_page().evaluate(_WEBP, f"data:image/png;base64,{data}")
                    (target / f"web-{name}-{scheme}.webp").write_bytes(base64.b64decode(converted))
                    print(f"docs/_static/web-{name}-{scheme}.webp")
                with page.expect_navigation():
                    page.goto("about:blank")
                for complaint in complaints.found:  # a picture is no test
                    print(f"the browser complained: {complaint}")
                complaints.found.clear()


def show(page: Page, address: str, name: str) -> None:
    """Open a page, and wait until it is whole."""
    page.goto(address)
    if name == "files":
        page.locator("textarea").first.fill(PLAN)
        with page.expect_navigation():
            page.get_by_role("button", name="Show the plan").click()
    # what is counted beside the page is asked for again until it is there
    eventually(lambda: page.locator("[hx-trigger^=load], .htmx-request").count() == 0, interval=0.1)
