"""A page when a run is late, was lost or never started. Import this module where your app is made.

The page about a late run is resolved when that run ends; one about a lost run, or one that never started,
when a run of the same entry succeeds. PAGER_URL and PAGER_KEY are those of PagerDuty's Events API,
https://events.pagerduty.com/v2/enqueue, or of one like it.
"""

import json
import os
import urllib.request

from redbeat.signals import run_ended, run_overdue

opened = set()  # by this beat; after a takeover somebody must resolve by hand what was open


@run_overdue.connect
def page_overdue(sender, entry, run, **kwargs):
    trigger(run.task_id, f"{entry} is still at work, longer than its max_runtime, on {run.worker}")


@run_ended.connect
def page_ended(sender, entry, run, **kwargs):
    resolve(run.task_id, f"{entry} {run.outcome}")
    due = f"{run.due:%Y-%m-%d %H:%M} UTC"
    if run.outcome == "never_started":
        trigger(entry, f"{entry}, due at {due}: no worker has begun it")
    elif run.outcome == "lost":
        trigger(entry, f"{entry}, due at {due}: lost with its worker, {run.worker}")
    elif run.outcome == "succeeded":
        resolve(entry, f"{entry} has succeeded")


def trigger(key, summary):
    opened.add(key)
    page("trigger", key, summary)


def resolve(key, summary):
    if key in opened:
        page("resolve", key, summary)
        opened.discard(key)


def page(action, key, summary):
    event = {
        "routing_key": os.environ["PAGER_KEY"],
        "event_action": action,
        "dedup_key": key,  # told twice, it is still one page
        "payload": {"summary": summary, "source": "beat", "severity": "error"},
    }
    request = urllib.request.Request(
        os.environ["PAGER_URL"],
        data=json.dumps(event).encode(),
        headers={"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=10).close()
