"""`make screenshots`: pictures of the dashboard for the documentation, taken from a real one in a browser."""

from __future__ import annotations

import base64
import json
import re
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from celery import Celery
from playwright.sync_api import Page

from redbeat import RedBeatScheduler, RedBeatSchedulerEntry
from redbeat.calendars import Calendar
from redbeat.entries.audit import audited
from redbeat.entries.failures import Failure
from redbeat.entries.runs import id_of
from redbeat.keys import Keys
from redbeat.schedules.occurrences import last_runs
from redbeat.store.lock_tokens import TOKEN_MARK
from redbeat.store.runs import Delivery, End, Runs
from redbeat.store.store import Store
from tests.support.browser import chromium, visit
from tests.support.command_line import Terminal
from tests.support.polling import eventually
from tests.support.stored import store

#: name to path; each has its section in docs/web.rst
PAGES = {
    "overview": "", "entries": "entries", "entry": "entry?name=shop.send-mails",
    "edit": "entry/edit?name=report",
    "timeline": "timeline", "runs": "runs", "later": "later", "doctor": "doctor", "files": "files",
    "calendar": "calendar?name=holidays", "routes": "routes?name=report", "audit": "audit",
}  # fmt: skip
SCHEMES = ("light", "dark")
#: of pictures that are higher or lower than others, so that nothing is cut off or empty
HEIGHTS = {"overview": 916, "files": 440}
PLAN = """\
owner: new-shop
entries:
  billing.invoices: {task: billing.invoices, schedule: 0 6 1 * *, timezone: Europe/Berlin}
  shop.close-carts: {task: shop.close_carts, schedule: "*/10 * * * *"}
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
_TIMEOUT = ("TimeoutError: no answer within 30 s", 30.0)
_REFUSED = ("ConnectionRefusedError: [Errno 111] Connection refused", 0.2)
#: tasks that are stored until later, with their arguments, and in how many hours they are sent
_MESSAGES: Sequence[tuple[str, list[Any], float]] = (
    ("shop.remind", [4711, "cart"], 1), ("billing.dun", [90211, 2], 5.5), ("shop.remind", [4712, "cart"], 6),
    ("billing.charge", [90188], 23), ("shop.ask_for_review", [4655], 49), ("shop.ask_for_review", [460], 51),
    ("billing.dun", [90215, 1], 72), ("accounts.delete", [318], 24 * 14), ("billing.charge", [9018], 24 * 30),
    ("accounts.expire_token", ["api-7"], 24 * 60), ("billing.renew", [1207], 24 * 181.3),
)  # fmt: skip
#: how runs of these fail now and then, and how long they take then
_ERRORS = {
    "shop.send-mails": _TIMEOUT, "billing.dun": _REFUSED, "billing.match-transfers": _TIMEOUT,
    "ops.vacuum": ("LockTimeout: canceling statement due to lock timeout", 10.0),
}  # fmt: skip
#: entries of the small schedule that have a history, too
_BUSY = ("catalog.sync-prices", "cleanup", "heartbeat", "orders.poll-carriers")
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
    entries = list(_add_entries(app, datetime.fromtimestamp(now, timezone.utc)))
    names = [str(entry.name) for entry in entries]
    entries += [RedBeatSchedulerEntry.get(name, app) for name in _BUSY]
    failed = [run for number, entry in enumerate(entries) for run in _add_history(client, entry, number)]
    failed += [(now, fields) for _, fields in client.xrange(Keys().failures)]
    _rewrite(client, Keys().failures, sorted(failed, key=itemgetter(0)))
    _add_trouble(app, client, now)
    for number in range(int(now) // 60 - 59, int(now) // 60 + 1):
        many = 60 if number % 15 == 0 else 0
        late = {"late/2": 2 + many // 2, "late/3": 1 + number % 3 + many // 10}
        sent = 24 + number * 7 % 13 + many
        counted = {
            "sent": sent,
            "failed": sum(int(ended) // 60 == number for ended, _ in failed),
            "late/1": sent - sum(late.values()),
            **late,
        }
        client.hset("redbeat::minutes", str(number % 60), json.dumps({"minute": number, "counted": counted}))
    _add_messages(app, client, now)
    _add_changes(app, client, now, names)
    since = now - 5.3 * 3600
    client.set("redbeat::lock", f"{TOKEN_MARK}:beat-1:17:{since:.0f}:1", px=3_600_000)
    client.zadd("redbeat::beats", {f"{TOKEN_MARK}:beat-2:12:{since:.0f}:2": now + 3600})
    client.hset("redbeat::totals", "leader", "beat-1")


def _add_entries(app: Celery, now: datetime) -> Iterator[RedBeatSchedulerEntry]:
    number = 0
    for prefix, tasks in _TASKS.items():
        for task in tasks:
            schedule = "0 6 * * *" if prefix in _AT_SIX else _SCHEDULES[number % len(_SCHEDULES)]
            name = f"{prefix}.{task.replace('_', '-')}"
            options: dict[str, Any] = {"exclude": "holidays"} if number % 6 == 0 else {}
            entry = RedBeatSchedulerEntry(
                name, f"{prefix}.{task}", schedule, app=app, total_run_count=480 + number, **options
            )
            first = now - timedelta(days=30, minutes=number + 1)
            entry.save().reschedule(last_runs(entry.schedule, entry.policy, first, now, 1)[0][0])
            if number in (9, 23):
                entry.pause("until the move is over")
            number += 1
            yield entry


def _add_history(
    client: Any, entry: RedBeatSchedulerEntry, number: int
) -> Iterator[tuple[float, dict[str, str]]]:
    """Add its last twenty runs; yield those that have failed, each with when."""
    until = entry.last_run_at
    if entry.name in _BUSY:  # its last run has a record
        until -= timedelta(seconds=1)
    runs, _ = last_runs(entry.schedule, entry.policy, until - timedelta(days=30), until, 20)
    for place, run in reversed([*enumerate(runs)]):
        due, took = run.timestamp(), 0.8 + number * 7 % 13 / 4 + place % 5 / 2
        outcome, error = "succeeded", ""
        if entry.name in _ERRORS and (place + number) % 7 == 4:
            outcome, (error, took) = "failed", _ERRORS[entry.name]
        at = due + 0.012 + place * 7 % 5 / 100
        ended = at + 0.08 + took
        record: dict[str, Any] = {
            "due": due, "at": at, "wait": 0.08, "ran": took, "ended": ended, "outcome": outcome, "attempt": 1,
            "worker": "celery@web-1",
        }  # fmt: skip
        if error:
            record["error"] = error
            task_id = id_of(entry.key, run)
            fields = {"entry": entry.name, "id": task_id, "due": due, "outcome": outcome, "error": error}
            yield ended, {**fields, "worker": "celery@web-1"}
        client.rpush(Keys().about(entry.name).history, json.dumps(record))


def _add_trouble(app: Celery, client: Any, now: float) -> None:
    """Let one entry be quarantined, another one not be sent, and the run of a third one be in progress."""
    quarantined, failing = "redbeat:reports.carriers", "redbeat:partners.settle"
    client.hset(quarantined, "policy", json.dumps({"timezone": "Europe/Berln"}))
    client.zadd("redbeat::schedule", {quarantined: 0})
    run_now(app, {"shop.rank-products": None})
    reason, due, retry_at = "SerializerNotInstalled: No encoder installed for msgpack", now - 240, now + 60
    failure = Failure(reason, "", "", attempts=9, due=f"{due:.6f}", retry_at=f"{retry_at:.6f}")
    client.hset(failing, "error", failure.to_json())
    client.zadd("redbeat::schedule", {failing: failure.retry_at, quarantined: now + 240})


def _add_messages(app: Celery, client: Any, now: float) -> None:
    """Store messages of tasks that are far ahead; the first of them couldn't be sent."""
    for number, (task, args, hours) in enumerate(_MESSAGES):
        task_id = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{task} {number}"))
        store(app, task_id, task=task, args=args, seconds=3600 * hours)
        if not number:
            reason, due, retry_at = "OperationalError: the broker can't be reached", now - 90, now + 30
            failure = Failure(reason, "", "", attempts=5, due=f"{due:.6f}", retry_at=f"{retry_at:.6f}")
            key = Keys().stored_message(task_id)
            client.hset(key, "error", failure.to_json())
            client.zadd(Keys().later, {key: retry_at})


def _add_changes(app: Celery, client: Any, now: float, names: Sequence[str]) -> None:
    """Fill the audit list; each change was made so many hours ago."""
    was, schedule = {"schedule": "0 7 * * mon-fri"}, {"schedule": "30 7 * * mon-fri"}
    changes: dict[float, tuple[str, str, str, Sequence[str], dict[str, Any], dict[str, Any]]] = {
        26: ("anna", "cli", "add", ["newsletter"], {"schedule": "0 9 * * fri#2"}, {}),
        22: ("anna", "web", "calendar set", ["stocktaking"], {"about": "the warehouse is closed"}, {}),
        7: ("deploy", "api", "apply", names[:12], {"owner": "shop"}, {}),
        5: ("bob", "web", "set", ["report"], schedule, was),
        4: ("carol", "web", "pause", ["backup"], {"note": "the disk is full"}, {}),
        0.7: ("carol", "web", "rerun", ["shop.send-mails"], {}, {}),
        0.2: ("bob", "cli", "trigger", ["catalog.sync-prices"], {}, {}),
    }
    for user, source, verb, about, details, before in changes.values():
        with audited(app, user, source, verb, about, details, host="web-1", before=before):
            pass
    written = client.xrange(Keys().audit)
    records = [(now - 3600 * hours, fields) for hours, (_, fields) in zip(changes, written, strict=True)]
    _rewrite(client, Keys().audit, records)


def _rewrite(client: Any, stream: str, records: Sequence[tuple[float, Any]]) -> None:
    """Let a stream hold these records, each of its time."""
    client.delete(stream)
    for number, (at, fields) in enumerate(records, 1):
        client.xadd(stream, fields, id=f"{int(at * 1000)}-{number}")


def take_pictures(command: Sequence[str], directory: Path, environ: dict[str, str], target: Path) -> None:
    """Look at each page of ``celery redbeat web`` in both themes, and keep what was seen in `target`."""
    environ = {**environ, "LOGNAME": "anna"}
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
                    page.set_viewport_size({"width": 1280, "height": HEIGHTS.get(name, 800)})
                    show(page, f"{home}/{path}", name)
                    data = base64.b64encode(page.screenshot(animations="disabled")).decode()
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
    if name == "edit":
        page.get_by_label("Schedule", exact=True).fill("0 8 * * mon-fri")
        page.locator("#preview").get_by_text("08:00").first.wait_for()
    # what is counted beside the page is asked for again until it is there
    eventually(lambda: page.locator("[hx-trigger^=load], .htmx-request").count() == 0, interval=0.1)
