"""When the message of a run expires, by its entry's policy and by options."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery

from redbeat.beat.planner import OrdinaryRun, plan_run
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.policy.headers import NAMES
from redbeat.store.records import Claimed

NOON = datetime(2026, 6, 1, 12, tzinfo=timezone.utc)
#: when it is sent, seven seconds late
SENT = NOON + timedelta(seconds=7)


def planned(app: Celery, policy: dict[str, Any], options: dict[str, Any]) -> OrdinaryRun:
    nominal = f"{NOON.timestamp():.6f}"
    definition = {"task": "t", "schedule": {"__type__": "interval", "every": 60}, "options": options}
    claimed = Claimed(
        "redbeat:x", nominal, json.dumps(definition), None, policy=json.dumps(policy), score=nominal
    )
    run = plan_run(RedBeatSchedulerEntry, app, claimed, SENT.timestamp())
    assert isinstance(run, OrdinaryRun)
    return run


def headers_of(run: OrdinaryRun) -> dict[str, Any]:
    """What the message tells its worker of the policy."""
    headers = run.entry.options["headers"]
    return {name: headers[name] for name in NAMES if name in headers}


MINUTE = {"queue_timeout": 60}
#: policy, the entry's options, and how long after it is sent its message expires
LIMITED: dict[str, tuple[dict[str, Any], dict[str, Any], float]] = {
    "queue_timeout": (MINUTE, {}, 60),
    "an overlap policy": ({"overlap": "skip"}, {}, 3600),
    "an overlap policy and queue_timeout": ({"overlap": "skip", **MINUTE}, {}, 60),
    "expires_after is earlier": ({**MINUTE, "expires_after": 50}, {}, 43),
    "expires_after is later": ({**MINUTE, "expires_after": 70}, {}, 60),
    "an option that is later": (MINUTE, {"expires": 61}, 60),
    "an option of none": (MINUTE, {"expires": None}, 60),
    "a time that is later": (MINUTE, {"expires": "2026-06-01T12:01:08Z"}, 60),
    "an option that expires_after replaces": ({**MINUTE, "expires_after": 90}, {"expires": 5}, 60),
    "countdown": (MINUTE, {"countdown": 100}, 160),
    "countdown and expires_after": ({**MINUTE, "expires_after": 90}, {"countdown": 100}, 83),
    "eta": (MINUTE, {"eta": "2026-06-01T12:00:17"}, 70),
    "eta with an offset": (MINUTE, {"eta": "2026-06-01T14:00:17+02:00"}, 70),
    "an eta that is past": (MINUTE, {"eta": "2026-06-01T11:00:00"}, 60),
    "an eta that is none": (MINUTE, {"eta": "soon"}, 60),
    "a countdown of ages": (MINUTE, {"countdown": 1e300}, 60 + 10.0**10),
}


@pytest.mark.parametrize(("policy", "options", "seconds"), LIMITED.values(), ids=LIMITED)
def test_a_message_expires_by_the_earliest_limit_of_its_policy(
    app: Celery, policy: dict[str, Any], options: dict[str, Any], seconds: float
) -> None:
    run = planned(app, policy, options)
    assert run.entry.options["expires"] == SENT + timedelta(seconds=seconds)
    assert run.expiration_seconds == seconds
    told = {"redbeat_queue_timeout": 3600, **{f"redbeat_{name}": value for name, value in policy.items()}}
    assert headers_of(run) == told


#: policy and options of messages that don't expire by the policy
OWN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {}),
    "tracked without a limit": ({"max_runtime": 5, "pause_after_failures": 3, "tracks": "workflow"}, {}),
    "an option": ({}, {"expires": 5}),
    "an option that is earlier": (MINUTE, {"expires": 60}),
    "a time that is earlier": (MINUTE, {"expires": "2026-06-01T12:01:06Z"}),
    "an option that is earlier after a countdown": (MINUTE, {"countdown": 100, "expires": 150}),
    "an option that is no time": (MINUTE, {"expires": "soon"}),
}


@pytest.mark.parametrize(("policy", "options"), OWN.values(), ids=OWN)
def test_an_option_that_is_earlier_stays_as_it_is(
    app: Celery, policy: dict[str, Any], options: dict[str, Any]
) -> None:
    run = planned(app, policy, options)
    assert {name: run.entry.options[name] for name in options} == options
    assert ("expires" in run.entry.options) == ("expires" in options)
    told = {"redbeat_tracks": "workflow"} if "tracks" in policy else {}
    assert (run.expiration_seconds, headers_of(run)) == (None, told)


@pytest.mark.parametrize(("of_task", "seconds"), [(60, None), (61, 60)])
def test_a_task_whose_messages_expire_earlier_keeps_that(
    app: Celery, of_task: int, seconds: int | None
) -> None:
    @app.task(name="t", shared=False, expires=of_task)
    def run() -> None:
        """Never runs here."""

    assert planned(app, MINUTE, {}).expiration_seconds == seconds
    assert planned(app, MINUTE, {"expires": None}).expiration_seconds == 60, "an option replaces the task's"
