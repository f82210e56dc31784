"""A page when a run is late, which is resolved when it ends. Import this module where your app is made.

PAGER_URL and PAGER_KEY are those of PagerDuty's Events API, https://events.pagerduty.com/v2/enqueue, or of
one like it.
"""

import json
import os
import urllib.request

from redbeat.signals import run_ended, run_overdue

late = set()


@run_overdue.connect
def page_overdue(sender, entry, run, **kwargs):
    late.add(run.task_id)
    page("trigger", run, f"{entry} is still at work, longer than its max_runtime, on {run.worker}")


@run_ended.connect
def page_ended(sender, entry, run, **kwargs):
    if run.outcome == "never_started":
        page("trigger", run, f"{entry}, due at {run.due:%Y-%m-%d %H:%M} UTC: no worker has begun it")
    elif run.task_id in late:  # of this beat; one that has taken over meanwhile doesn't know
        late.discard(run.task_id)
        page("resolve", run, f"{entry} {run.outcome}")


def page(action, run, summary):
    event = {
        "routing_key": os.environ["PAGER_KEY"],
        "event_action": action,
        "dedup_key": run.task_id,  # told twice, it is still one page
        "payload": {"summary": summary, "source": "beat", "severity": "error"},
    }
    request = urllib.request.Request(
        os.environ["PAGER_URL"],
        data=json.dumps(event).encode(),
        headers={"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=10).close()
