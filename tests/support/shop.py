"""The schedule of a real shop: 200 entries of several teams, zones and kinds, with what goes wrong in one."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import redis
from celery import Celery
from celery.schedules import crontab

from redbeat import RedBeatSchedulerEntry
from redbeat.entries.failures import new_failure
from redbeat.schedules import clocked, rrule

from .schedule import server_now, write_raw

TEAMS = ("billing", "catalog", "orders", "warehouse", "marketing")
REGIONS = ("eu-west", "eu-central", "us-east", "ap-south")
ZONES = (None, "Europe/Berlin", "America/New_York", "Asia/Kolkata")
JOBS = (
    ("send-monthly-invoices", "invoices.send_monthly_invoices", crontab("30", "7", day_of_month="1")),
    ("sync-prices", "prices.sync_prices", crontab("*/5")),
    ("refresh-search-index", "search.refresh_search_index", timedelta(minutes=10)),
    ("export-orders", "exports.export_orders", crontab("15", "2,14", day_of_week="mon-fri")),
    ("poll-carrier-status", "carriers.poll", timedelta(seconds=30)),
    ("close-stale-carts", "carts.close_stale", crontab("0", "*/2")),
    ("weekly-report", "reports.weekly", "rrule"),
    ("reconcile-payments", "payments.reconcile", crontab("0", "4")),
    ("warm-cache", "cache.warm", timedelta(hours=1)),
)
#: the reason of the entry that fails
AWAY = (
    "the broker amqp://rabbit.internal:5672 can't be reached: [Errno 111] Connection refused; tried again, "
    "with more time in between from try to try, until its misfire window has passed"
)


def fill_shop(app: Celery, client: redis.Redis) -> list[str]:
    """Store it; return the names of all its entries."""
    now = datetime.fromtimestamp(server_now(client), timezone.utc)
    entries = []
    for team in TEAMS:
        for number, region in enumerate(REGIONS):
            for job, task, schedule in JOBS:
                made: Any = schedule
                if schedule == "rrule":
                    start = datetime(2026, 1, 5, 6, 30, tzinfo=timezone.utc)
                    made = rrule("WEEKLY", dtstart=start, byweekday=(0, 3))
                zone = ZONES[number] if isinstance(made, crontab) else None
                name, path = f"{team}.{job}-{region}", f"{team}.tasks.{task}"
                runs = (len(entries) * 7919) % 20_000 if len(entries) % 5 else 0
                ran = {"last_run_at": now - timedelta(seconds=len(entries) * 2 + 3), "total_run_count": runs}
                fields = {"timezone": zone, "kwargs": {"r": region}, **(ran if runs else {})}
                entries.append(RedBeatSchedulerEntry(name, path, made, app=app, **fields))
    for name, path in (
        ("größe.café ☃ täglich", "größe.aufgaben.täglich"),
        ("在庫.毎晩の棚卸しレポートを倉庫ごとに作成する", "warehouse.tasks.inventory.nightly"),
        ("nachtlauf", "t"),
        ("billing.send_monthly_invoices_and_reminders_to_all_customers_of_the_old_shop_system", "old.all"),
    ):
        entries.append(RedBeatSchedulerEntry(name, path, 3600, app=app))
    entries.append(RedBeatSchedulerEntry("orders.once", "orders.once", clocked(now), app=app, one_off=True))
    RedBeatSchedulerEntry.save_many(entries)
    names = [str(entry.name) for entry in entries]
    by_name = {str(entry.name): entry for entry in entries}
    by_name["billing.sync-prices-eu-west"].pause("prices are being moved", until=now + timedelta(days=2))
    by_name["billing.warm-cache-us-east"].update(enabled=False)
    failing = by_name["orders.export-orders-eu-west"]
    stored = RedBeatSchedulerEntry.get("orders.export-orders-eu-west", app).stored
    times = {"retry_at": str(now.timestamp() + 600), "due": str(now.timestamp())}
    record = new_failure(stored, AWAY, now.timestamp()).again(attempts=3, **times)
    client.hset(failing.key, "error", record.to_json())
    client.zadd("redbeat::schedule", {failing.key: now.timestamp() + 600})
    broken = {"task": "old.tasks.cleanup", "schedule": {"__type__": "crontab", "minute": "99"}}
    write_raw(client, "warehouse.cleanup-old-labels-eu-central", json.dumps(broken), score=server_now(client))
    write_raw(client, "orders.finished-in-2024", score=-1)
    client.zadd("redbeat::schedule", {"redbeat:catalog.gone": server_now(client) + 50})
    return [*names, "warehouse.cleanup-old-labels-eu-central", "orders.finished-in-2024", "catalog.gone"]
