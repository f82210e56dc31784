"""A message to a chat when a run has failed. Import this module where your app is made.

CHAT_URL is an incoming webhook that takes {"text": ...}, as those of Slack and Mattermost do.
"""

import json
import os
import urllib.request

from redbeat.signals import run_ended


@run_ended.connect
def tell_chat(sender, entry, run, **kwargs):
    if run.outcome not in ("failed", "lost", "never_started"):
        return
    text = f"{entry} {run.outcome.replace('_', ' ')}, due at {run.due:%Y-%m-%d %H:%M} UTC"
    if run.worker:
        text += f", on {run.worker}"
    if run.error:
        text += f": {run.error}"
    request = urllib.request.Request(
        os.environ["CHAT_URL"],
        data=json.dumps({"text": text}).encode(),
        headers={"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=10).close()
