"""Every script that writes checks the layout first: a process that knows a former layout writes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import redis
from redis.exceptions import ResponseError

from redbeat.keys import Keys
from redbeat.store import records
from redbeat.store import scripts as lua
from redbeat.store.scripts import (
    downgrades,
    events,
    figures,
    later,
    moving,
    orphans,
    owners,
    repairs,
    runs,
    standbys,
)
from redbeat.store.scripts.script import Question, Request, Script
from tests.support.scripts import SCRIPTS

WRITING_COMMAND = re.compile(
    r"call\('(SET|DEL|UNLINK|INCR|P?EXPIRE|H(SET(NX)?|DEL|INCRBY)|Z(ADD|REM\w*)|S(ADD|REM)"
    r"|[LR](PUSH|POP|REM|SET|TRIM)|XADD)'"
)
#: scripts that write without the check: they concern the layout itself, or data that no shard holds
UNCHECKED = {
    *("create_layout", "raise_generation", "change_layout", "open_part", "borrow_part"),
    *("release_lock", "replace_calendar", "note_beat"),
}

FENCE = records.Fence("the-lock", "token", 12, "mark")
RUN = records.TrackedRun("due", "", 6.0, "skip", ("first",), "1")
COMMIT = records.Commit(records.Claimed("k", "1", "{}", score="1"), "2")
WRITE = records.Stored("k", type=records.KeyType.HASH), records.Write("{}", "{}", 1.5)
MESSAGE = later.NewMessage("id", 7.5, "{}", "{}", "1", later.MessageTexts("message", ""))
DELIVERY = runs.Delivery("n", "id", "7.5", "delivery", "worker", 2, "root", True, "skip", "")
HISTORIES = records.Histories(lambda _: [], 0, lambda key: f"runs of {key}", *["k"] * 5)
ITEM = moving.Item("n", (("entry", "n"),), ())
KEPT = moving.Kept(b"n", b"record", [b"entry", b"n", b"0", b"dump"])
MOVER = "token", "move"

#: script to the call of its Python function for a part of the schedule
CALLS: dict[str, Callable[[Any, Keys], Any]] = {
    "apply_entries": lambda _, part: owners.apply_entries(
        part, [owners.Change("n", *WRITE)], [], part.beside
    ),
    "begin_run": lambda client, part: runs.begin_run(client, part, DELIVERY, 30, is_expired=False),
    "bring_back": lambda client, part: downgrades.bring_back(client, part, FENCE),
    "cancel_messages": lambda _, part: later.cancel_messages(part, ["id"], "seen"),
    "cancel_move": lambda _, part: (moving.CANCEL_MOVE, moving.cancel_request(part, *MOVER, [b"n"])),
    "change_owned": lambda _, part: (
        moving.CHANGE_OWNED,
        moving.owned_request(part, "token", "add", "owner", ["n"]),
    ),
    "change_statics": lambda client, part: lua.change_statics(client, part, FENCE, "add", "owner", ["n"]),
    "claim_due": lambda client, part: lua.claim_due(
        client,
        lua.ClaimKeys(part.schedule, "deadlines", "other", part),
        FENCE,
        lua.ClaimLimits(3, 4, 9, 5, "prefix", sizes=records.Sizes(7, 8)),
    ),
    "close_part": lambda _, part: (moving.CLOSE_PART, moving.close_request(part, "token", [part.left])),
    "commit_runs": lambda client, part: lua.commit_runs(
        client, part, FENCE, [COMMIT], records.Target("server", 3, 4)
    ),
    "delete_entries": lambda _, part: lua.delete_entries(part, FENCE, ["k"], lambda _: []),
    "drop_hidden": lambda _, part: (moving.DROP_HIDDEN, moving.drop_request(part, *MOVER, [b"n"])),
    "drop_members": lambda client, part: repairs.drop_members(client, part, [repairs.Member("k", "member")]),
    "end_run": lambda _, part: runs.end_call(part, runs.End(DELIVERY, "retrying", "error", 1.5, 3)),
    "forget_runs": lambda client, part: orphans.forget_runs(
        client, part, [orphans.LostRun("n", "member")], 7.5
    ),
    "give_up_runs": lambda client, part: runs.give_up_runs(client, part, "n", [("id", "7", "sent", 2)], ""),
    "hide_entries": lambda _, part: (
        moving.HIDE_ENTRIES,
        moving.hide_request(part, *MOVER, Keys("other-"), [ITEM], 1.5, 34, is_foreign=False),
    ),
    "note_child": lambda client, part: runs.note_child(client, part, DELIVERY, "child", "task"),
    "note_standby": lambda client, part: standbys.note_standby(client, part, "beat"),
    "note_told": lambda client, part: events.note_told(client, part, "me", "1", "2", claim_ms=2, life_ms=3),
    "put_away": lambda client, part: downgrades.put_away(
        client, part, "the-lock", "mark", [("member", WRITE[0])]
    ),
    "put_back": lambda _, part: (moving.PUT_BACK, moving.put_back_request(part, *MOVER, [b"n"])),
    "read_events": lambda _, part: events.events_call(part, FENCE, "me", claim_ms=2, life_ms=3, count=4),
    "receive_entries": lambda _, part: (
        moving.RECEIVE_ENTRIES,
        moving.receive_request(part, *MOVER, [KEPT]),
    ),
    "remove_orphans": lambda client, part: orphans.remove_orphans(
        client, part, [orphans.Remains("k", "member", "n")]
    ),
    "renew_lock": lambda _, part: lua.renew_lock(part, FENCE, 90, ""),
    "renew_runs": lambda _, part: runs.renew_call(part, [(DELIVERY, 2.5)], 30, "worker", "row"),
    "reserve_runs": lambda client, part: lua.reserve_runs(
        client, part, FENCE, [("k", "id", RUN)], HISTORIES, 10.0
    ),
    "save_entries": lambda _, part: lua.save_entries(part, FENCE, [WRITE]),
    "settle_runs": lambda client, part: runs.settle_runs(
        client, part, FENCE, [runs.Settlement("end", "n", "id", "member", "7.5", "", "lost", 2.5)]
    ),
    "store_messages": lambda _, part: later.store_messages(part, [MESSAGE]),
    "take_bodies": lambda _, part: later.take_bodies(part, ["id"]),
    "take_figures": lambda _, part: figures.take_call(part, "the-lock", "token", 12, {}),
    "take_lock": lambda _, part: lua.take_lock(
        "the-lock", "token", mark="mark", part=part, taken_ms=34, silent="silent", rest_ms=56, slack_ms=78
    ),
}


def call(client: redis.Redis, name: str, part: Keys) -> None:
    """Call the script. Some functions return the call, to be sent along with others."""
    made = CALLS[name](client, part)
    if isinstance(made, Question):
        made.ask(client)
    elif isinstance(made, tuple) and isinstance(made[0], Script):
        script, request = made
        assert isinstance(request, Request)
        script(client, *request)


def test_scripts_that_write_check_the_layout() -> None:
    writing = {name for name, script in SCRIPTS.items() if WRITING_COMMAND.search(script.source)}
    assert {name for name, script in SCRIPTS.items() if script.is_checking} == writing - UNCHECKED
    assert writing - UNCHECKED == CALLS.keys()


@pytest.mark.parametrize("known", ["5 4", ""], ids=["former layout", "no layout"])
@pytest.mark.parametrize("name", CALLS)
def test_script_called_with_a_former_layout_is_refused_and_writes_nothing(
    client: redis.Redis, name: str, known: str
) -> None:
    part = Keys("the-", "the-schedule", "the-statics", known)
    client.set(part.generation, "6 4")
    with pytest.raises(ResponseError, match=rf'^RESHARDED the-:generation holds "6 4", not "{known}"'):
        call(client, name, part)
    assert client.keys() == [part.generation]
