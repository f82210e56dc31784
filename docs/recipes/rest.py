"""The entry "report" over REST, from Python. Needs: pip install httpx

URL=http://127.0.0.1:8555/api/v1 TOKEN=rb_... python rest.py
"""

import base64
import os
import re
import uuid
from urllib.parse import quote

import httpx

client = httpx.Client(headers={"Authorization": f"Bearer {os.environ['TOKEN']}"}, timeout=30)
ROOT = os.environ["URL"]


def ask(method, path, body=None, **headers):
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    response = client.request(method, ROOT + path, json=body, headers=given)
    document = response.json()
    if response.is_error:
        raise httpx.HTTPStatusError(document["detail"], request=response.request, response=response)
    return document


def address(name):
    """A name as a part of the path: what a path can't carry is written in base64url."""
    if re.search(r"[/\\%]|\A=|\A\.{0,2}\Z", name) or not name.isprintable():
        return "=" + base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")
    return quote(name, safe="")


def change(name, decide):
    """Change an entry by what it is now, again if somebody else has changed it meanwhile."""
    while True:
        entry = ask("GET", f"/entries/{address(name)}")
        try:
            return ask("PATCH", f"/entries/{address(name)}", decide(entry), if_match=entry["etag"])
        except httpx.HTTPStatusError as exc:
            if exc.response.status_code != 412:
                raise


def entries(match):
    """All entries that match, however many there are."""
    path = f"/entries?match={quote(match)}"
    while path:
        found = ask("GET", path)
        yield from found["entries"]
        path = found["next"]


report = f"/entries/{address('report')}"
schedule = {"__type__": "crontab", "minute": "30", "hour": "6"}
ask("PUT", report, {"task": "proj.tasks.report", "schedule": schedule}, if_none_match="*")
change("report", lambda entry: {"args": [*entry["args"], "weekly"], "timezone": "Europe/Berlin"})
ask("PUT", f"{report}/pause", {"note": "release", "until": "2h"})
ask("DELETE", f"{report}/pause")
key = str(uuid.uuid4())
print("sent", ask("PUT", f"{report}/trigger", {}, idempotency_key=key)["task_id"])
for entry in entries("rep*"):
    print(entry["name"], entry["next_due_at"])
ask("DELETE", report)
