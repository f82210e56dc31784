"""Each script's Python function sends what the script's header names, and nothing else calls scripts."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from redis.exceptions import NoScriptError

from redbeat.keys import Keys
from redbeat.store import records
from redbeat.store import scripts as lua
from redbeat.store.records import KeyType
from redbeat.store.scripts import (
    beats,
    calendars,
    downgrades,
    events,
    figures,
    later,
    layouts,
    moving,
    orphans,
    owners,
    repairs,
    runs,
    standbys,
    status,
)
from tests.support.lua_headers import FOLDER, SCRIPTS, header_of, script_of, sent_scripts

KEYS = Keys("the-", "the-schedule", "the-statics", "5 4")
FENCE = records.Fence("the-lock", "the-token", 12, "the-mark")
LOCK = {"lock": "the-lock", "mark": "the-mark", "token": "the-token"}
FENCED = {"schedule": "the-schedule", **LOCK, "lock_ms": 12}
#: what changes something in Redis
WRITES = re.compile(
    r"""call\('(SET|DEL|UNLINK|INCR|P?EXPIRE|HSET(NX)?|HDEL|HINCRBY|ZADD|ZREM\w*|SADD|SREM|[LR]PUSH|[LR]POP|LREM|LSET|"""
    r"""LTRIM|XADD)'"""
)
#: scripts that write and don't check the layout all the same, and why
UNCHECKED = {
    "release_lock": "whoever holds a lock may let go of it wherever entries are by now: others wait for it",
    "replace_calendar": "calendars stay where they are",
    "create_layout": "it is what says where entries are",
    "raise_generation": "it is what others compare",
    "change_layout": "it is what says where entries are",
    "open_part": "it is what others compare",
    "borrow_part": "it only says who moves entries",
    "note_beat": "beats share all parts",
}
#: what has the same names in Python and in the header
SIZES = records.Sizes(7, 8)
AFTER: dict[str, Any] = {"after": "10", "after_key": "k", "place": 11, "beyond": 12}
CLAIM = lua.ClaimLimits(
    3, 4, 9, 5, "the-prefix", sizes=SIZES, after=records.Place("10", "k", 11), beyond=12, are_messages=True
)
CLAIM_KEYS = lua.ClaimKeys("the-schedule", "the-deadlines", "the-other", KEYS)
#: where the schedule's key is "s"
SHORT = Keys("", "s")
TAKING: dict[str, Any] = {"taken_ms": 34, "silent": "the-silent", "rest_ms": 56, "slack_ms": 78}
STATUS = {name: f"the-{name}" for name in ("schedule", "lock", "tick", "standbys", "later")}
CLAIMED = records.Claimed("k", "nominal", "definition", "the-meta", score="claimed-score")
RUN = records.TrackedRun("the-due", ',"a":"limit"', 6.0, "skip", ("first", "last"), "held-score")
COMMIT = records.Commit(
    CLAIMED,
    "new-score",
    "new-meta",
    "new-error",
    is_for_this_definition=True,
    records=("the-record",),
    valid_until=7.5,
    run=RUN,
    task_id="the-id",
    counted="the-due sent",
    labels="the-labels",
)
TARGET = records.Target("the-server", 3, 4)
WRITE = (
    records.Stored("k", "read", type=KeyType.HASH),
    records.Write("definition", "the-meta", 1.5, policy="the-policy", revision="the-revision"),
)
CHANGE = owners.Change("the-name", WRITE[0], WRITE[1])

NEW_MESSAGE = later.NewMessage(
    "the-id", 7.5, "definition", "the-policy", "the-revision", later.MessageTexts("the-message", "the-body")
)

STATICS = {"statics": "the-statics", "owners": "the-:static-owners", "change": "add", "owner": "the-owner"}
OF_ALL = {"schedule": "the-schedule", "statics": "the-statics", "away": "the-:downgraded"}


def call(client: Any, made: tuple[lua.Script, lua.Request]) -> Any:
    """Call a script as it is called for several parts at once."""
    script, request = made
    return script(client, *request)


DELIVERY = runs.Delivery(
    "n", "the-id", "7.5", "the-delivery", "the-worker", 2, "the-root", True, "skip", "the-other"
)
SETTLEMENT = runs.Settlement("end", "n", "the-id", "the-member", "7.5", "the-record", "lost", 2.5)
OF_RUN = {
    "running": "the-:running:n",
    "deadlines": "the-:deadlines",
    "history": "the-:history:n",
    "events": "the-:events",
    "name": "n",
    "task_id": "the-id",
    "due": "7.5",
}
OF_COUNTING = {"streaks": "the-:streaks", "figures": "the-:figures", "expected": "the-:expected"}
OF_FIGURES = {word: f"the-:{word}" for word in ("figures", "totals", "minutes", "labels")}
OF_TELLING = {"told": "the-:events-read", "teller": "the-teller"}
OF_DELIVERY = {"delivery": "the-delivery", "worker": "the-worker", "attempt": 2}


def called(client: Any, call: tuple[lua.Script, lua.Request]) -> Any:
    """What a script returns whose call is made apart, to be sent along with others."""
    script, request = call
    return script(client, *request)


#: what moves entries: all its kinds of keys, and how these begin
MOVED = {"mover": "the-:mover", "token": "the-token"}
OF_MOVING = {
    "schedule": "the-schedule",
    "later": "the-:later",
    "statics": "the-statics",
    "owners": "the-:static-owners",
    "away": "the-:downgraded",
    "deadlines": "the-:deadlines",
    "expected": "the-:expected",
    "streaks": "the-:streaks",
}
ITEM = moving.Item("n", (("entry", "n"), ("history", "n")), ("the-owner",))
KEPT = moving.Kept(b"n", b"the-record", [b"entry", b"n", b"0", b"the-dump"])
KINDS: list[Any] = [len(KEYS.kinds)]
for word, beginning in KEYS.kinds.items():
    KINDS += word, beginning, KEYS.hidden(word), KEYS.unmoved(word)

OF_RUNS = ["the-deadlines", "the-events", "the-figures", "the-expected"]


def histories_of(kept: int) -> records.Histories:
    def beside(key: str) -> list[str]:
        return [f"history of {key}", f"misses of {key}"]

    runs_of = "the-deadlines", "the-events", "the-tells", "the-figures", "the-expected"
    return records.Histories(beside, kept, lambda key: f"runs of {key}", *runs_of)


#: script to (call of its function for two entries, reply, expected by name, expected of each entry)
UPCOMING: dict[str, Any] = {
    "seconds": 5, "after": "7", "offset": 2, "limit": 3, "entry_bytes": 9, "prefix": "the-prefix",
}  # fmt: skip
CALLS: dict[str, tuple[Callable[[Any], Any], Any, dict[str, Any], dict[str, Any]]] = {
    "claim_due": (
        lambda client: lua.claim_due(client, CLAIM_KEYS, FENCE, CLAIM),
        ["ok", "1.5", "", 0, 0, [], [], "", ""],
        {
            **FENCED,
            "deadlines": "the-deadlines",
            "other": "the-other",
            "limit": 3,
            "max_bytes": 4,
            "entry_bytes": 9,
            "lease_ms": 5,
            "prefix": "the-prefix",
            "is_reading": 1,
            "from_bytes": 7,
            "to_bytes": 8,
            **AFTER,
            "are_messages": 1,
        },
        {},
    ),
    "commit_runs": (
        lambda client: lua.commit_runs(client, KEYS, FENCE, [COMMIT, COMMIT], TARGET, histories_of(6)),
        ["ok", 0, "10", [], ""],
        {
            **FENCED,
            "count": 2,
            "server": "",
            "home_db": 3,
            "broker_db": 4,
            "histories": 2,
            "kept": 6,
            "decided": 1,
            "formed": 1,
            "deadlines": "the-deadlines",
            "events": "the-events",
            "tells": "the-tells",
            "tracked": 2,
            "figures": "the-figures",
            "expected": "the-expected",
        },
        {"decision": "1", "texts": "definition", "labels": "the-labels"},
    ),
    "take_figures": (
        lambda client: call(client, figures.take_call(KEYS, "the-lock", "the-token", 12, {})),
        ["ok", "1.5", [], []],
        {"lock": "the-lock", "token": "the-token", "teller_ms": 12, **OF_FIGURES},
        {},
    ),
    "count_states": (
        lambda client: figures.count_states(client, "the-schedule", "5", 7),
        ["0", "1.5", 1, 1, []],
        {"schedule": "the-schedule", "cursor": "5", "limit": 7, "small_bytes": figures.SMALL_BYTES},
        {},
    ),
    "reserve_runs": (
        lambda client: lua.reserve_runs(
            client, KEYS, FENCE, [("k", "the-id", RUN)] * 2, histories_of(6), 10.0
        ),
        ["ok", ["reserved", "known"]],
        {**FENCED, "deadlines": "the-deadlines"},
        {
            "task_id": "the-id",
            "due": "the-due",
            "run": '"due":"the-due","a":"limit"',
            "overlap": "skip",
            "seconds": "60.000000",
            "holds_seconds": "10.000000",
        },
    ),
    "read_entries": (
        lambda client: lua.read_entries(client, "the-schedule", ["k", "k"], entry_bytes=9),
        ["1.5", [None, None]],
        {"schedule": "the-schedule", "entry_bytes": 9},
        {},
    ),
    "read_upcoming": (
        lambda client: lua.read_upcoming(client, "the-schedule", ["k", "k"], lua.Window(**UPCOMING)),
        ["1.5", [], []],
        {"schedule": "the-schedule", **UPCOMING},
        {},
    ),
    "save_entries": (
        lambda client: lua.save_entries(KEYS, FENCE, [WRITE, WRITE]).ask(client),
        ["ok", 2],
        {**FENCED, "wake": KEYS.wake},
        {"state": "1", "definition": "definition"},
    ),
    "delete_entries": (
        lambda client: lua.delete_entries(KEYS, FENCE, ["k", "k"], lambda key: [f"beside {key}"]).ask(client),
        ["ok", 2],
        {**FENCED, "wake": KEYS.wake, "count": 2},
        {},
    ),
    "change_statics": (
        lambda client: lua.change_statics(client, KEYS, FENCE, "add", "the-owner", ["n", "n"]),
        "ok",
        {**STATICS, **LOCK, "lock_ms": 12},
        {"name": "n"},
    ),
    "take_lock": (
        lambda client: lua.take_lock("the-lock", "the-token", mark="the-mark", part=KEYS, **TAKING).ask(
            client
        ),
        1,
        {**LOCK, **TAKING},
        {},
    ),
    "renew_lock": (
        lambda client: lua.renew_lock(KEYS, FENCE, 90, "It is full.").ask(client),
        "ok",
        {"tick": "the-:tick", **LOCK, "lock_ms": 12, "idle_ms": 90, "obstacle": "It is full."},
        {},
    ),
    "release_lock": (
        lua.release_lock("the-lock", "the-token", wake="the-wake", mark="the-mark").ask,
        1,
        {**LOCK, "wake": "the-wake"},
        {},
    ),
    "create_layout": (
        lambda client: layouts.create_layout(client, KEYS, 16, 3),
        "created",
        {
            "layout": "the-:layout",
            "generation": "the-:generation",
            "schedule": "the-schedule",
            "later": "the-:later",
            "away": "the-:downgraded",
            "shards": 16,
            "after": 3,
        },
        {},
    ),
    "change_layout": (
        lambda client: moving.change_layout(
            *(client, "the-:layout"),
            read="4",
            before="moving",
            generation=5,
            shards=16,
            former=None,
            state="settling",
            swept_seconds=60,
        ),
        1,
        {
            "layout": "the-:layout",
            "read": "4",
            "before": "moving",
            "generation": 5,
            "shards": 16,
            "former": 0,
            "state": "settling",
            "swept_seconds": 60,
        },
        {},
    ),
    "open_part": (
        lambda client: moving.OPEN_PART(client, *moving.open_request(KEYS, "5 4", "the-token")),
        b"5 4",
        {**MOVED, "generation": "the-:generation", "text": "5 4"},
        {},
    ),
    "borrow_part": (
        lambda client: moving.BORROW_PART(client, *moving.borrow_request(KEYS, "the-token", 34, "another")),
        1,
        {**MOVED, "lease_ms": 34, "instead": "another"},
        {},
    ),
    "hide_entries": (
        lambda client: moving.HIDE_ENTRIES(
            client,
            *moving.hide_request(
                *(KEYS, "the-token", "the-move", Keys("other-"), [ITEM], 1.5, 34), is_foreign=True
            ),
        ),
        [b"1.5", [[b"due"]]],
        {
            **OF_MOVING,
            **MOVED,
            "moving": "the-:moving",
            "left": "the-:left",
            "arriving": "the-:arriving",
            "move": "the-move",
            "target": "other-",
            "margin": "1.500000",
            "is_foreign": 1,
            "max_bytes": 34,
        },
        {},
    ),
    "receive_entries": (
        lambda client: moving.RECEIVE_ENTRIES(
            client, *moving.receive_request(KEYS, "the-token", "the-move", [KEPT])
        ),
        [[1], []],
        {
            **OF_MOVING,
            **MOVED,
            "arrived": "the-:arrived",
            "arriving": "the-:arriving",
            "move": "the-move",
            "wake": "the-:wake",
        },
        {},
    ),
    "put_back": (
        lambda client: moving.PUT_BACK(
            client, *moving.put_back_request(KEYS, "the-token", "the-move", [b"n"])
        ),
        [1, []],
        {
            **OF_MOVING,
            **MOVED,
            "moving": "the-:moving",
            "left": "the-:left",
            "move": "the-move",
            "wake": "the-:wake",
        },
        {},
    ),
    "cancel_move": (
        lambda client: moving.CANCEL_MOVE(
            client, *moving.cancel_request(KEYS, "the-token", "the-move", [b"n"])
        ),
        [b"n"],
        {**MOVED, "arrived": "the-:arrived", "move": "the-move"},
        {},
    ),
    "change_owned": (
        lambda client: moving.CHANGE_OWNED(
            client, *moving.owned_request(KEYS, "the-token", "add", "o", ["n"])
        ),
        1,
        {**MOVED, "owned": "the-:owner:o", "change": "add"},
        {},
    ),
    "close_part": (
        lambda client: moving.CLOSE_PART(
            client, *moving.close_request(KEYS, "the-token", [KEYS.left, KEYS.arrived])
        ),
        1,
        {"mover": "the-:mover", "token": "the-token"},
        {},
    ),
    "drop_hidden": (
        lambda client: moving.DROP_HIDDEN(
            client, *moving.drop_request(KEYS, "the-token", "the-move", [b"n"])
        ),
        1,
        {**MOVED, "moving": "the-:moving", "move": "the-move"},
        {},
    ),
    "read_hidden": (
        lambda client: moving.READ_HIDDEN(client, *moving.read_hidden_request(KEYS, "the-token", 3)),
        [],
        {**MOVED, "moving": "the-:moving", "limit": 3},
        {},
    ),
    "raise_generation": (
        lambda client: layouts.raise_generation(client, KEYS),
        "5 4",
        {"generation": "the-:generation", "guard": "5 4"},
        {},
    ),
    "check_rights": (
        lambda client: status.check_rights(client, [("GET", "the-key")]),
        [],
        {"calls": '[["GET", "the-key"]]'},
        {},
    ),
    "read_head": (
        lambda client: status.read_head(client, "the-schedule", "the-deadlines", "the-later"),
        ["1.5", "", "", ""],
        {"schedule": "the-schedule", "deadlines": "the-deadlines", "later": "the-later"},
        {},
    ),
    "read_histories": (
        lambda client: lua.read_histories(["the-history"] * 2, limit=5, record_bytes=7).ask(client),
        [[], []],
        {"limit": 5, "record_bytes": 7},
        {},
    ),
    "read_history": (
        lambda client: lua.read_history(client, "the-history", limit=3, record_bytes=4),
        ["record"],
        {"history": "the-history", "limit": 3, "record_bytes": 4},
        {},
    ),
    "read_status": (
        lambda client: call(client, status.status_call(*STATUS.values())),
        ["1.5", "", -2, "", 0, "", [], -1, 0, ""],
        {**STATUS, "life_ms": 15_000, "late_ms": 60_000},
        {},
    ),
    "note_standby": (
        lambda client: standbys.note_standby(client, KEYS, "the-beat"),
        1,
        {"standbys": "the-:standbys", "who": "the-beat", "life_ms": 15_000},
        {},
    ),
    "note_beat": (
        lambda client: called(client, beats.beat_call("the-beats", "the-layout", "the-id", 90)),
        ["7", "the-id", 0],
        {"beats": "the-beats", "layout": "the-layout", "beat": "the-id", "life_ms": 90},
        {},
    ),
    "read_calendars": (
        lambda client: calendars.read_calendars(client, ["k", "k"], ["the-digest", "the-digest"]),
        [["digest", "day", "label"], "none"],
        {},
        {"known": "the-digest"},
    ),
    "read_owners": (lambda client: owners.read_owners(["k", "k"]).ask(client), ["the-owner", ""], {}, {}),
    "apply_entries": (
        lambda client: owners.apply_entries(
            KEYS,
            [CHANGE, CHANGE],
            [owners.CalendarChange("c", "the-owner", fields={"d": "l"})],
            KEYS.beside,
        ).ask(client),
        0,
        {"schedule": "the-schedule", "wake": "the-:wake", "count": 2, "gone": 1},
        {
            "change": "save",
            "read": hashlib.sha1(b"read\0").hexdigest(),
            "read_meta": hashlib.sha1(b"").hexdigest(),
            "name": "the-name",
            "owned": 0,
            "owner": "=",
            "definition": "definition",
            "meta": "=the-meta",
            "policy": "=the-policy",
            "error": "=",
            "score": "1.500000",
        },
    ),
    "replace_calendar": (
        lambda client: calendars.replace_calendar(
            client, "the-key", [("d", "l"), ("d", "l")], wake="the-wake", read={"d": "l"}
        ),
        1,
        {"calendar": "the-key", "wake": "the-wake", "read": '{"d": "l"}'},
        {"day": "d", "label": "l"},
    ),
    "remove_orphans": (
        lambda client: orphans.remove_orphans(
            client, KEYS, [orphans.Remains("k", "m", "n", ["o"]), orphans.Remains("k", "m", "n")]
        ),
        5,
        {**OF_ALL, "owners": "the-:static-owners", "count": 2},
        {"member": "m", "name": "n"},
    ),
    "forget_runs": (
        lambda client: orphans.forget_runs(client, KEYS, [orphans.LostRun("the-n", "m")] * 2, 7.5),
        b"11",
        {"deadlines": "the-:deadlines", "count": 2, "latest": "7.500000"},
        {"member": "m"},
    ),
    "put_away": (
        lambda client: downgrades.put_away(
            client,
            KEYS,
            "the-lock",
            "the-mark",
            [("the-member", records.Stored("k", type=KeyType("string")))] * 2,
        ),
        ["", [1, 0]],
        {**OF_ALL, "lock": "the-lock", "mark": "the-mark"},
        {"member": "the-member", "name": "k", "read": "string"},
    ),
    "bring_back": (
        lambda client: downgrades.bring_back(client, KEYS, FENCE),
        ["ok", 1, 2, []],
        {**FENCED, **OF_ALL, "prefix": "the-"},
        {},
    ),
    "store_messages": (
        lambda client: later.store_messages(KEYS, [NEW_MESSAGE, NEW_MESSAGE]).ask(client),
        2,
        {"later": "the-:later", "wake": "the-:wake", "count": 2, "must_exist": 0},
        {
            "score": "7.500000",
            "definition": "definition",
            "policy": "the-policy",
            "revision": "the-revision",
            "message": "the-message",
            "body": "the-body",
        },
    ),
    "cancel_messages": (
        lambda client: later.cancel_messages(KEYS, ["the-id"] * 2, "the-seen").ask(client),
        ["the-message", None],
        {"later": "the-:later", "seen": "the-seen"},
        {},
    ),
    "take_bodies": (
        lambda client: later.take_bodies(KEYS, ["the-id"] * 2).ask(client),
        ["the-body", None],
        {"later": "the-:later", "count": 2},
        {},
    ),
    "drop_members": (
        lambda client: repairs.drop_members(client, KEYS, [repairs.Member("k", "the-member")] * 2),
        [1, 0],
        {"schedule": "the-schedule"},
        {"member": "the-member"},
    ),
    "begin_run": (
        lambda client: runs.begin_run(client, KEYS, DELIVERY, 30, is_expired=True),
        ["go", 0],
        {
            **OF_RUN,
            **OF_DELIVERY,
            "root": "the-root",
            "is_soft": 1,
            "overlap": "skip",
            "lease_ms": 30,
            "is_expired": 1,
            "follows": "the-other",
        },
        {},
    ),
    "renew_runs": (
        lambda client: call(
            client, runs.renew_call(KEYS, [(DELIVERY, 2.5)] * 2, 30, "the-worker", "the-row")
        ),
        ["ok", "gone"],
        {
            "deadlines": "the-:deadlines",
            "workers": "the-:workers",
            "lease_ms": 30,
            "worker": "the-worker",
            "row": "the-row",
            "forget_seconds": 3600,
        },
        {"task_id": "the-id", "due": "7.5", "delivery": "the-delivery", "attempt": 2, "age_seconds": "2.500"},
    ),
    "end_run": (
        lambda client: call(client, runs.end_call(KEYS, runs.End(DELIVERY, "retrying", "the-error", 1.5, 3))),
        "retrying",
        {
            **OF_RUN,
            **OF_DELIVERY,
            "failures": "the-:failures",
            "failing": "the-:failing:n",
            **OF_COUNTING,
            "wake": "the-:wake",
            "outcome": "retrying",
            "problem": "the-error",
            "ran": "1.500",
            "retry_seconds": "3.000",
            "root": "the-root",
        },
        {},
    ),
    "read_events": (
        lambda client: call(
            client, events.events_call(KEYS, FENCE, "the-teller", claim_ms=2, life_ms=3, count=4)
        ),
        ["0-0", []],
        {
            "events": "the-:events",
            **OF_TELLING,
            "lock": "the-lock",
            "token": "the-token",
            "claim_ms": 2,
            "life_ms": 3,
            "count": 4,
        },
        {},
    ),
    "note_told": (
        lambda client: events.note_told(
            client, KEYS, "the-teller", "the-before", "the-last", claim_ms=2, life_ms=3
        ),
        1,
        {**OF_TELLING, "before": "the-before", "last": "the-last", "claim_ms": 2, "life_ms": 3},
        {},
    ),
    "note_child": (
        lambda client: runs.note_child(client, KEYS, DELIVERY, "the-child", "the-task"),
        1,
        {
            "running": "the-:running:n",
            "deadlines": "the-:deadlines",
            "root": "the-root",
            "task_id": "the-child",
            "due": "7.5",
            "task": "the-task",
        },
        {},
    ),
    "give_up_runs": (
        lambda client: runs.give_up_runs(client, KEYS, "n", [("the-id", "7.5", "sent", 2)] * 2, "the-error"),
        ["", ["1", ""]],
        {
            "running": "the-:running:n",
            "deadlines": "the-:deadlines",
            "history": "the-:history:n",
            "events": "the-:events",
            "failures": "the-:failures",
            "failing": "the-:failing:n",
            **OF_COUNTING,
            "wake": "the-:wake",
            "name": "n",
            "problem": "the-error",
        },
        {"task_id": "the-id", "due": "7.5", "state": "sent", "attempt": 2},
    ),
    "settle_runs": (
        lambda client: runs.settle_runs(client, KEYS, FENCE, [SETTLEMENT, SETTLEMENT]),
        ["ok", "", ["", ""]],
        {
            **FENCED,
            "deadlines": "the-:deadlines",
            "events": "the-:events",
            "wake": "the-:wake",
            "failures": "the-:failures",
            "count": 2,
            **OF_COUNTING,
        },
        {
            "action": "end",
            "member": "the-member",
            "name": "n",
            "task_id": "the-id",
            "score": "7.5",
            "text": "the-record",
            "word": "lost",
            "seconds": "2.500",
        },
    ),
}


#: what scripts that check the layout are sent as
CHECKING = {script.sha1 for script in sent_scripts() if script.is_checking}

#: script to the keys of its entries, where they aren't the entries' own
LISTED = {
    "cancel_messages": ["the-:later:the-id"] * 2,
    "close_part": ["the-:left", "the-:arrived"],
    "forget_runs": ["the-n"] * 2,
    "store_messages": ["the-:later:the-id"] * 2,
    "take_bodies": ["the-:later:the-id"] * 2,
    "read_histories": ["the-history"] * 2,
    "renew_runs": ["the-:running:n"] * 2,
    "reserve_runs": ["runs of k"] * 2,
    "settle_runs": ["the-:running:n"] * 2,
}

#: script to the keys that come after those of the entries
BESIDE = {
    "forget_runs": ["the-:running:n"] * 2,
    "settle_runs": ["the-:history:n"] * 2 + ["the-:failing:n"] * 2 + ["the-n"] * 2,
    "commit_runs": [*["runs of k"] * 2, *["history of k"] * 2],
    "delete_entries": ["beside k"] * 2,
    "apply_entries": ["the-:calendar:c"],
    "remove_orphans": ["k"] * 6,
    "store_messages": ["the-:body:the-id"] * 2,
    "take_bodies": ["the-:body:the-id"] * 2,
}

#: script to what it is sent after all entries, once, as these two share it
SHARED = {
    "commit_runs": {
        "form": "1",
        "claimed_score": "claimed-score",
        "new_score": "new-score",
        "claimed_meta": "the-meta",
        "new_meta": "new-meta",
        "record": "the-record",
        "valid_until": "7.500000",
        "due": "the-due",
        "held_record": "first\nlast",
        "held_score": "held-score",
        "counted": "the-due sent",
        "type": "hash",
        "is_strict": "1",
        "new_error": "new-error",
        "new_definition": "",
        "new_policy": "",
        "writes": "",
        "overlap": "skip",
        "limits": ',"a":"limit"',
        "queue_seconds": "6.000000",
    },
    "save_entries": {
        "read": "read\0",
        "meta": "the-meta",
        "score": "1.500000",
        "policy": "=the-policy",
        "revision": "the-revision",
    },
    "remove_orphans": {"entry": 5, "owned": "o"},
    "apply_entries": {"kind": "calendar", "place": 4, "content": '{"d": "l"}'},
}
#: script to what it is sent last
VALUES = {
    "commit_runs": ["the-id"] * 2,
    "hide_entries": [*KINDS, 1, "n", 1, "the-owner", 2, "entry", "n", "history", "n"],
    "receive_entries": [*KINDS, 1, "n", "the-record", 1, "entry", "n", "0", "the-dump"],
    "drop_hidden": [*KINDS, 1, "n"],
    "put_back": [*KINDS, 1, "n"],
    "cancel_move": [1, "n"],
    "change_owned": [1, "n"],
    "read_hidden": KINDS,
}


def text_or_number(value: Any) -> Any:
    """What a script is given: bytes, as they stand in Redis, or a number; hiredis may refuse text."""
    assert isinstance(value, (bytes, int))
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else value


class Replying:
    """Answers every script with one reply, and keeps the keys and arguments that it was sent last.

    Attributes:
        checked: the generation's key, and what it must hold, which come last where the layout is checked.
    """

    def __init__(self, reply: Any) -> None:
        self.reply = reply

    def execute_command(self, command: str, *words: Any, **options: Any) -> Any:
        assert (command, options) == ("EVALSHA", {"NEVER_DECODE": []})
        return self.evalsha(*words)

    def evalsha(self, sha1: str, number_of_keys: int, *values: Any) -> Any:
        sent = [text_or_number(value) for value in values]
        self.keys, self.args = sent[:number_of_keys], sent[number_of_keys:]
        self.checked = (self.keys.pop(), self.args.pop()) if sha1 in CHECKING else None
        return self.reply


def committing(*commits: records.Commit, **options: Any) -> Replying:
    """What was sent to commit so."""
    client = Replying(["ok", 0, "1" * len(commits), [], ""])
    committed = lua.commit_runs(client, SHORT, records.Fence(), list(commits), **options)
    assert committed == records.Committed(records.LockStatus.HELD, is_moved=False, results=[True])
    return client


def test_bytes_that_are_no_utf8_are_sent_as_they_were_read() -> None:
    sent = committing(records.Commit(replace(CLAIMED, key="k\udcff"), "new-score"))
    assert "k\udcff" in sent.keys


def test_every_script_has_its_call_here() -> None:
    assert CALLS.keys() == set(SCRIPTS)


def decided(client: Replying) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    """What a commit was sent as: the entries' values, the decisions', the forms', and those of the writes."""
    header, args = header_of("commit_runs"), client.args
    counts = {word: args[place - 1] for place, word in header.args.items()}
    place, groups = len(header.args), []
    for size, count in [
        (len(header.group), counts["count"]),
        (len(header.shared[0]), counts["decided"]),
        (len(header.shared[1]), counts["formed"]),
    ]:
        groups.append(args[place : place + size * count])
        place += size * count
    entries, decisions, forms = groups
    return entries, decisions, forms, args[place:]


def test_the_scripts_that_check_the_layout_are_those_that_write() -> None:
    """Reading where entries aren't any more does no harm: whoever acts upon it is refused then."""
    assert {script.names[-1] for script in sent_scripts() if script.is_checking} == {
        script.names[-1] for script in sent_scripts() if WRITES.search(script.source)
    } - UNCHECKED.keys()


@pytest.mark.parametrize("name", [name for name in SCRIPTS if script_of(name).is_checking])
def test_a_script_that_checks_the_layout_is_told_which(name: str) -> None:
    assert script_of(name).source.startswith("-- check_layout: ")
    call, reply, *_ = CALLS[name]
    call(client := Replying(reply))
    assert client.checked == ("the-:generation", "5 4")


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_python_caller_sends_what_the_header_names(name: str) -> None:
    call, reply, by_name, of_each = CALLS[name]
    call(client := Replying(reply))
    keys, args, header = client.keys, client.args, header_of(name)
    assert {word: keys[place - 1] for place, word in header.keys.items()} | {
        word: args[place - 1] for place, word in header.args.items()
    } == by_name
    assert list(keys[len(header.keys) :]) == (
        [*LISTED.get(name, ["k", "k"]), *BESIDE.get(name, [])] if header.keys_from else []
    )
    shared = [SHARED[name][word] for group in header.shared for word in group]
    of_all = [of_each[word] for word in header.group] * 2 + shared
    assert list(args[len(header.args) :]) == of_all + VALUES.get(name, [])


def test_a_script_is_made_of_files_only() -> None:
    trees = [ast.parse(path.read_text("utf-8")) for path in FOLDER.glob("*.py")]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    made = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Script"]
    assert len(made) == len(SCRIPTS)
    assert sorted(script.names[-1] for script in sent_scripts()) == SCRIPTS
    assert all(isinstance(argument, ast.Constant) for call in made for argument in call.args)
    others = [path for path in FOLDER.parent.glob("*.py") if re.search(r"\.eval(sha)?\(", path.read_text())]
    assert others == []


def test_a_server_that_forgot_a_script_is_sent_its_source_once() -> None:
    commands: list[tuple[Any, ...]] = []

    class Client:
        def evalsha(self, sha1: str, *values: Any) -> Any:
            commands.append(("evalsha", sha1, *map(text_or_number, values)))
            raise NoScriptError

        def eval(self, source: str, *values: Any) -> Any:
            commands.append(("eval", source, *map(text_or_number, values)))
            return 1

    assert lua.release_lock("the-lock", "the-token", wake="the-wake").ask(Client()) is True
    values = (2, "the-lock", "the-lock", "the-token", "the-wake")
    source = (FOLDER / "release_lock.lua").read_text("utf-8")
    sha1 = hashlib.sha1(source.encode()).hexdigest()
    assert commands == [("evalsha", sha1, *values), ("eval", source, *values)]


def test_entries_that_are_saved_together_share_their_states() -> None:
    client = Replying(["ok", 0])
    writes = [records.Write("d1", "m1", 5), records.Write("d2", "m2"), records.Write("d3", "m1", 5.0)]
    pairs = [(records.Stored(f"k{n}"), writes[n]) for n in range(3)]
    lua.save_entries(KEYS, records.Fence(), pairs).ask(client)
    assert client.keys == [*["the-schedule"] * 3, "k0", "k1", "k2"]
    first, second = ["", "m1", "5.000000", "", ""], ["", "m2", "", "", ""]
    assert client.args[3:] == ["1", "d1", "2", "d2", "1", "d3", *first, *second]


def test_a_lost_lock_is_told_apart() -> None:
    lost = records.LockStatus.LOST
    assert (
        lua.claim_due(
            Replying([b"lost", b"1.5", b"", 0, 0, [], [], b"", b""]), CLAIM_KEYS, FENCE, CLAIM
        ).status
        is lost
    )
    assert lua.commit_runs(Replying([b"lost", 0, b"", [], b""]), SHORT, FENCE, [COMMIT]).status is lost
    assert lua.save_entries(KEYS, FENCE, [WRITE]).ask(Replying([b"lost", 0])) == (lost, 0)
    assert lua.release_lock("l", "t", wake="w").ask(Replying(0)) is False


def test_a_client_that_does_not_decode_gives_text_all_the_same() -> None:
    row = [b"k\xff", b"1", b"{}", None, None, None, b"2"]
    deadlines = [[b"id\0runs\xff", b"1.25", None]], b"3.5"
    reply = [b"ok", b"1.5", b"2.5", 1, 1, [row], *deadlines, b"4.5"]
    claim = lua.claim_due(Replying(reply), CLAIM_KEYS, FENCE, CLAIM)
    rows = [records.Claimed("k\udcff", "1", "{}", score="2")]
    passed = [records.Deadline("id\0runs\udcff", "1.25", None)]
    assert claim == records.Claim(
        records.LockStatus.HELD,
        now=1.5,
        next_score=2.5,
        has_more=True,
        is_held=True,
        rows=rows,
        deadlines=passed,
        next_deadline=3.5,
        other_score=4.5,
    )


def test_what_holds_a_run_back_is_read_with_the_members_of_its_record() -> None:
    members = '"outcome":"waiting","held_by":"other","worker":"celery@here","since":1.5'
    held = records.Held("other", "celery@here", 1.5, True, members)
    client = Replying([b"ok", 0, b"13", [members.encode()], b""])
    assert lua.commit_runs(client, SHORT, FENCE, [COMMIT, COMMIT]).results == [True, held]
    answers = [b"reserved", b"known", f"held {members}".encode(), b"refused no hash"]
    found = lua.reserve_runs(Replying([b"ok", answers]), SHORT, FENCE, [], histories_of(0))
    assert found[1] == [records.Reserved.NOW, records.Reserved.BEFORE, held, "no hash"]


def test_the_status_is_read_as_text_and_numbers() -> None:
    reply = [b"1.5", b"token", 34, b"1.25", 2, b"0.5", [b"a", b"0.25", b"b", b"1.5"], 5, 3, b"0.75", 9]
    found = records.Vitals(1.5, "token", 34, "1.25", 2, 0.5, {"a": 0.25, "b": 1.5}, 5, 3, 0.75, 9)
    assert status.vitals_of(reply, has_standbys=True) == found
    assert status.vitals_of(reply, has_standbys=False).standbys is None
    reply = [b"1.5", b"", -2, b"", 0, b"", [], -1, 0, b"", 0]
    assert status.vitals_of(reply, has_standbys=False)[-4:] == (None, 0, None, 0)


def test_who_is_there_is_told_with_ages_in_seconds_and_how_often_the_layout_was_changed() -> None:
    found = beats.company_of([b"12", b"host:1:ab", 250, b"other:2:cd", 1500])
    assert found == beats.Company({"host:1:ab": 0.25, "other:2:cd": 1.5}, 12)
    assert beats.company_of(["spoilt", "host:1:ab", 0]) == beats.Company({"host:1:ab": 0.0}, 0)


def test_a_commit_for_any_definition_sends_none() -> None:
    sent = committing(records.Commit(CLAIMED, "new-score"))
    decision = ["1", "claimed-score", "new-score", "the-meta", *[""] * 7]
    form = ["hash", "0", *[""] * 7]
    assert decided(sent) == (["1", "", ""], decision, form, [])


@pytest.mark.parametrize(
    ("ending", "word", "is_strict", "texts"),
    [(records.Ending.UNSCHEDULE, "remove", "0", ""), (records.Ending.DELETE, "delete", "1", "definition")],
)
@pytest.mark.parametrize("kept", [0, 6])
def test_an_entry_that_leaves_the_schedule_takes_along_what_is_kept_beside_it(
    ending: records.Ending, word: str, is_strict: str, texts: str, kept: int
) -> None:
    sent = committing(records.Commit(CLAIMED, ending), histories=histories_of(kept))
    assert sent.keys == ["s", "s", "s", *OF_RUNS, "k", "history of k", "misses of k"]
    entries, decisions, forms, _ = decided(sent)
    assert (entries, forms) == (["1", texts, ""], ["hash", is_strict, *[""] * 7])
    *decision, record = decisions[:6]
    assert (decision, decisions[6:]) == (["1", "claimed-score", word, "the-meta", ""], [""] * 5)
    assert record, "without a record nothing beside the entry goes"


def test_fields_that_are_cleared_and_several_records_are_told_in_the_scripts_words() -> None:
    clear = records.Clear.FIELD
    commit = records.Commit(
        CLAIMED, "5", new_error=clear, new_definition="new", new_policy=clear, records=("first", "last")
    )
    sent = committing(commit, histories=histories_of(6))
    assert sent.keys == ["s", "s", "s", *OF_RUNS, "k", "history of k"]
    decision = ["1", "claimed-score", "5", "the-meta", "", "first\nlast", *[""] * 5]
    assert decided(sent) == (
        ["1", "definition", ""],
        decision,
        ["hash", "0", "clear", "new", "clear", *[""] * 4],
        [],
    )


def test_a_commit_with_pushes_is_for_one_definition_and_one_server() -> None:
    client = Replying(["ok", 1, b"021", [b"WRONGTYPE"], b"NOPERM"])
    first = records.Commit(
        CLAIMED, "new-score", pushes=(records.Push("lpush", "q", "m1"), records.Push("lpush", "p", "m2"))
    )
    second = records.Commit(CLAIMED, "new-score", pushes=(records.Push("pexpire", "q", 5),))
    committed = lua.commit_runs(client, SHORT, FENCE, [first, second, COMMIT], TARGET)
    assert committed == records.Committed(
        records.LockStatus.HELD, is_moved=True, results=[False, "WRONGTYPE", True], unrecorded="NOPERM"
    )
    args = client.args
    assert client.keys == ["s", "the-lock", "the-mark", *["s"] * 4, "k", "k", "k", "k", "q", "p"]
    assert args[2:6] == [3, "the-server", 3, 4]
    assert args[6:11] == [0, 0, 3, 3, 1]
    entries, decisions, forms, values = decided(client)
    assert entries == ["1", "definition", "", "2", "definition", "", "3", "definition", "the-labels"]
    assert decisions[:11] == ["1", "claimed-score", "new-score", "the-meta", *[""] * 7]
    assert forms[5::9] == ["lpush 1 lpush 2", "pexpire 1", ""]
    assert values == ["m1", "m2", 5, "the-id"]


def test_entries_that_are_due_together_share_what_was_decided_about_them() -> None:
    def commit(number: int, score: str = "5", **others: Any) -> records.Commit:
        claimed = replace(CLAIMED, key=f"k{number}", definition=f"d{number}")
        push = records.Push("lpush", "q", f"m{number}")
        return records.Commit(claimed, score, pushes=(push,), **others)

    client = Replying(["ok", 0, "1111", [], ""])
    commits = [commit(0), commit(1, "6"), commit(2), commit(3, new_error="wrong")]
    lua.commit_runs(client, SHORT, records.Fence(), commits, TARGET)
    entries, decisions, forms, values = decided(client)
    assert entries == ["1", "d0", "", "2", "d1", "", "1", "d2", "", "3", "d3", ""]
    of_run = [""] * 3
    assert decisions[::11] == ["1", "1", "2"], "the first two differ in what most differ in"
    assert decisions[2::11] == ["5", "6", "5"]
    assert forms == [
        "hash",
        "1",
        "",
        "",
        "",
        "lpush 1",
        *of_run,
        "hash",
        "1",
        "wrong",
        "",
        "",
        "lpush 1",
        *of_run,
    ]
    assert values == ["m0", "m1", "m2", "m3"]


def test_a_short_text_that_looks_like_a_digest_is_sent_as_its_own() -> None:
    assert records.digest_of("#text") == f"#{hashlib.sha1(b'#text').hexdigest()}"


def test_without_a_lock_the_fence_names_the_schedule_again() -> None:
    assert records.Fence().keys("the-schedule") == ["the-schedule"] * 3
    assert records.Fence("the-lock").keys("the-schedule") == ["the-schedule", "the-lock", "the-lock"]
    assert records.Fence().args() == ["", 0]


@pytest.mark.parametrize("word", ["stream", "ReJSON-RL"])
def test_a_key_of_any_type_is_told_to_the_script_in_the_servers_own_word(word: str) -> None:
    [claimed] = records.claimed_of([[b"k", b"1", None, None, None, None, None, word.encode()]])
    assert claimed.type is KeyType(word) is not KeyType("list")
    sent: list[Any] = []
    client = Replying(None)
    client.evalsha = lambda *values: sent.extend(map(text_or_number, values[1:])) or ["ok", 0, "1", [], ""]
    lua.commit_runs(client, SHORT, records.Fence(), [records.Commit(claimed, "5")])
    assert sent[-10] == word
