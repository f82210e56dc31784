"""What beat does about a run whose deadline has come: decided by its record and two numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from redbeat.keys import Keys
from redbeat.runs.deadlines import Action, Deadline, judge
from redbeat.store.run_record import decode_record

LEASE = 30.0
NOW = 10_000.0


def deadline_of(record: Any, task_id: str = "id") -> Deadline:
    text = record if isinstance(record, str) or record is None else json.dumps(record)
    return Deadline(f"{task_id}\0{Keys().about('job').running}", "9999", text)


@pytest.mark.parametrize(
    ("record", "action", "outcome"),
    [
        ({"state": "sent", "sent": "1"}, Action.END, "never_started"),
        ({"state": "sent"}, Action.FORGET, ""),
        ({"state": "retrying", "started": "1"}, Action.END, "never_started"),
        ({"state": "started", "started": "1"}, Action.END, "lost"),
        ({"state": "started", "started": "9000", "max": 60, "overdue": 1}, Action.END, "lost"),
        ({"state": "started", "started": "9990", "max": 60}, Action.END, "lost"),
        ({"state": "started", "started": "9000", "max": 60}, Action.OVERDUE, ""),
        ({"state": "started", "started": "9940.000001", "max": 60}, Action.OVERDUE, ""),
        ({"state": "sent", "sent": "1", "terminate": "replaced"}, Action.END, "never_started"),
        ({"state": "started", "started": "1", "terminate": "replaced"}, Action.END, "lost"),
        ({"state": "spawned", "outcome": "succeeded"}, Action.END, "succeeded"),
        ({"state": "ended", "outcome": "failed"}, Action.END, "failed"),
        ({"state": "ended"}, Action.END, "lost"),
        ({"state": "unheard of"}, Action.FORGET, ""),
        ("{", Action.FORGET, ""),
        (None, Action.FORGET, ""),
    ],
)
def test_a_run_whose_deadline_has_come(record: Any, action: Action, outcome: str) -> None:
    decision = judge(deadline_of(record), NOW, LEASE, watched_seconds=LEASE)
    assert (decision.action, decision.outcome) == (action, outcome)


@pytest.mark.parametrize("state", ["sent", "started", "retrying", "spawned"])
def test_a_run_is_not_given_up_before_redis_has_answered_for_a_lease(state: str) -> None:
    decision = judge(
        deadline_of({"state": state, "sent": "1", "started": "1"}), NOW, LEASE, watched_seconds=12.0
    )
    assert (decision.action, decision.seconds, decision.outcome) == (Action.POSTPONE, 18.0, "")


@pytest.mark.parametrize("record", [{"state": "started", "started": "1", "max": 5}, {"state": "ended"}])
def test_what_is_known_by_the_clock_alone_is_not_waited_for(record: Any) -> None:
    assert judge(deadline_of(record), NOW, LEASE, watched_seconds=0).action is not Action.POSTPONE


@pytest.mark.parametrize("revoke", [0, 1])
def test_a_run_that_takes_too_long_is_revoked_if_its_policy_says_so(revoke: int) -> None:
    record = {"state": "started", "started": "9000", "max": 60, "revoke": revoke}
    settlement = judge(deadline_of(record), NOW, LEASE, 0).settlement(Keys())
    assert (settlement.word, settlement.seconds) == ("revoke" if revoke else "", LEASE)


def test_a_deadline_without_a_task_id_is_about_its_entry() -> None:
    settlement = judge(deadline_of(None, ""), NOW, LEASE, 0).settlement(Keys())
    assert (settlement.action, settlement.name, settlement.task_id) == ("look", "job", "")


@pytest.mark.parametrize("member", ["", "\0", "nonsense", "\0\0", "a\0b\0c"])
def test_a_member_that_is_none_of_redbeat_s_is_forgotten_as_it_stands(member: str) -> None:
    settlement = judge(Deadline(member, "1", None), NOW, LEASE, 0).settlement(Keys())
    assert settlement.member == member
    assert settlement.action == ("look" if member == "\0\0" else "forget")


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "nul",
            "[]",
            "5",
            '"text"',
            '{"state": []}',
            '{"state": "sent", "sent": "soon"}',
            "[" * 100_000,
        ),
        *('{"started": NaN}', '{"started": "inf"}', '{"sent": "-1"}', '{"sent": 1e14}', '{"max": "nan"}'),
    ],
)
def test_a_record_that_can_not_be_read_is_none(text: str) -> None:
    assert decode_record("id", text) is None


def test_a_record_says_what_beat_and_the_worker_have_written() -> None:
    record = decode_record(
        "id",
        '{"due":"7","state":"started","sent":"8.5","overlap":"skip","queue":60,"max":5,"revoke":1,"pause":3,'
        '"workflow":1,"started":"9","worker":"w","delivery":"d","attempt":2,"soft":1,"wait":"0.5"}',
    )
    assert record is not None
    assert (record.due, record.sent, record.started, record.wait_seconds) == ("7", 8.5, 9.0, 0.5)
    assert (record.queue, record.max, record.pause, record.attempt) == (60, 5, 3, 2)
    assert record.is_revoked_overdue
    assert record.is_workflow
    assert record.is_soft
    assert record.is_holding
