"""The quick reader returns what the tolerant one does, or nothing."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab, schedule

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.entries.loading import decode_entry
from redbeat.entries.plain_reader import PlainDefinition, PlainReader
from redbeat.errors import EntryError
from redbeat.schedules import register_schedule
from redbeat.store.records import Claimed, KeyType
from redbeat.store.store import read_claimed
from tests.support.bad_entries import BAD_DEFINITIONS

INTERVAL = {"__type__": "interval", "every": 60.0, "relative": False}
CRONTAB = {
    "__type__": "crontab",
    "minute": "*/5",
    "hour": 7,
    "day_of_week": "mon-fri",
    "day_of_month": "*",
    "month_of_year": "*",
}
DATETIME = {"__type__": "datetime", "year": 2030, "month": 1, "day": 1}
PLAIN: dict[str, Any] = {
    "name": "entry",
    "task": "shop.work",
    "args": [1, "two"],
    "kwargs": {"deep": {"er": [None, 1.5]}},
    "options": {"queue": "fast"},
    "schedule": INTERVAL,
    "enabled": True,
}


def claim(
    definition: Any, policy: Any = None, key: str = "redbeat:entry", kind: KeyType = KeyType.HASH
) -> Claimed:
    text = definition if isinstance(definition, str | None) else json.dumps(definition)
    policy = policy if isinstance(policy, str | None) else json.dumps(policy)
    return Claimed(key, "1.000000", text, None, policy, score="1.000000", type=kind)


def fields_of(found: Any) -> tuple[Any, ...]:
    """What a run depends on, in a form in which 1, 1.0, True and NaN are told apart."""
    values = [getattr(found, name) for name in PlainDefinition._fields if name not in ("schedule", "args")]
    values.append(list(found.args or []))
    of_schedule = {name: value for name, value in vars(found.schedule).items() if name != "tz"}
    return repr(values), type(found.schedule), repr(of_schedule)


def check(app: Celery, reader: PlainReader, claimed: Claimed) -> bool:
    """Compare the readers; return whether the quick one has read the entry."""
    found = reader.read(claimed)
    if found is None:
        return False
    entry = decode_entry(Entry, read_claimed(claimed), app)
    assert fields_of(found) == fields_of(entry)
    assert (entry.enabled, entry.typos, getattr(entry.schedule, "typos", "")) == (True, "", "")
    assert found.schedule.app is app
    return True


def test_what_redbeat_writes_of_intervals_and_crontabs_is_read_quickly(app: Celery) -> None:
    reader = PlainReader(app)
    some = [schedule(60), schedule(0.5, relative=True), crontab(), crontab("*/5", 7, day_of_week="mon")]
    for number, one in enumerate([*some, *some]):
        entry = Entry("e", "t", one, [number], {"a": "é"}, options={"headers": {"b": 1}, "x": None}, app=app)
        text = entry.encode(read_claimed(claim(None, kind=KeyType.NONE)))
        assert check(app, reader, claim(text, {"expires_after": 60, "timezone": "Europe/Berlin"}))
        assert check(app, reader, claim(text))
    assert check(
        app, reader, claim({**PLAIN, "schedule": CRONTAB})
    )  # as celery-redbeat 2.x orders the fields
    assert check(app, reader, claim(PLAIN, []))  # as PHP writes an empty object
    assert check(app, reader, claim(PLAIN, key="redbeat:naïve"))


@pytest.mark.parametrize("name", ["name", "args", "kwargs", "options", "enabled"])
def test_what_an_entry_leaves_out_is_read_quickly(app: Celery, name: str) -> None:
    reader = PlainReader(app)
    assert check(app, reader, claim({key: value for key, value in PLAIN.items() if key != name}))
    if name != "enabled":
        assert check(app, reader, claim({**PLAIN, name: None}))


UNUSUAL: dict[str, Claimed] = {
    "gone": claim(None, kind=KeyType.NONE),
    "a-string": claim(None, kind=KeyType("string")),
    "no-definition": claim(None),
    "unknown-key": claim({**PLAIN, "more": 1}),
    "missing-key": claim({name: value for name, value in PLAIN.items() if name != "task"}),
    "disabled": claim({**PLAIN, "enabled": False}),
    "enabled-1": claim({**PLAIN, "enabled": 1}),
    "enabled-null": claim({**PLAIN, "enabled": None}),
    "args-object": claim({**PLAIN, "args": {}}),
    "headers-list": claim({**PLAIN, "options": {"headers": []}}),
    "headers-null-and-datetime": claim({**PLAIN, "options": {"headers": None, "eta": DATETIME}}),
    "type-in-args": claim({**PLAIN, "args": [INTERVAL]}),
    "type-in-kwargs-only": claim({**PLAIN, "schedule": 60, "kwargs": {"a": INTERVAL}}),
    "escaped-type": claim(
        json.dumps({**PLAIN, "args": [DATETIME]}).replace("__type__", "\\u005f_type__", 1)
    ),
    "escaped-letter": claim(json.dumps({**PLAIN, "args": [DATETIME]}).replace("type", "t\\u0079pe", 1)),
    "cron": claim({**PLAIN, "schedule": {"__type__": "cron", "expression": "0 0 L * *"}}),
    "crontab-of-ours": claim({**PLAIN, "schedule": {**CRONTAB, "day_of_month": "L"}}),
    "typo": claim({**PLAIN, "schedule": {**CRONTAB, "minutes": 5}}),
    "policy-unknown": claim(PLAIN, {"jiter": 5}),
    "policy-task": claim(PLAIN, {"task": "other"}),
    "policy-bad": claim(PLAIN, {"jitter": -1}),
    "policy-list": claim(PLAIN, [5]),
    "policy-half": claim(PLAIN, "{"),
    "key-no-utf8": claim(PLAIN, key="redbeat:\udcff"),
    "task-no-utf8": claim({**PLAIN, "task": "\udcff"}),
    "space-before": claim(" " + json.dumps(PLAIN)),
    "space-after": claim(json.dumps(PLAIN) + "\n"),
    "long-number": claim(json.dumps(PLAIN).replace("60.0", "6" * 5000)),
    "deep": claim(json.dumps(PLAIN).replace("[1,", "[" * 100_000 + "1" + "]" * 100_000 + ",")),
    **{f"bad-{name}": claim(text) for name, text in BAD_DEFINITIONS.items()},
}  # fmt: skip


@pytest.mark.parametrize("claimed", UNUSUAL.values(), ids=UNUSUAL)
def test_anything_unusual_is_left_to_the_tolerant_reader(app: Celery, claimed: Claimed) -> None:
    assert PlainReader(app).read(claimed) is None


def test_a_registered_schedule_that_takes_the_place_of_celerys_is_left_to_it(app: Celery) -> None:
    class Own(schedule):
        pass

    reader = PlainReader(app)
    assert reader.read(claim(PLAIN)) is not None
    register_schedule("interval", Own, lambda _own: {}, lambda _given: Own(5))
    assert reader.read(claim(PLAIN)) is None


def test_equal_schedules_are_one_object_and_kinds_of_numbers_are_told_apart(app: Celery) -> None:
    reader = PlainReader(app)

    def read(every: Any) -> Any:
        return reader.read(claim({**PLAIN, "schedule": {**INTERVAL, "every": every}}))

    assert read(1).schedule is read(1).schedule
    assert read(True) is None
    assert read(1.5).schedule == schedule(1.5)


# -- anything


def some_value(chance: random.Random, depth: int = 0) -> Any:
    simple = [
        None,
        True,
        False,
        0,
        1,
        -1,
        1.0,
        1e300,
        float("nan"),
        "",
        "é",
        "\udcff",
        '"',
        "\\",
        "__type__",
        "\\u005f",
        10**30,
    ]
    if depth > 2 or chance.random() < 0.6:
        return chance.choice(simple)
    if chance.random() < 0.5:
        return [some_value(chance, depth + 1) for _ in range(chance.randrange(3))]
    names = ["a", "__type__", "schedule", "enabled", "", "é", "headers", '"__type__"']
    made = {chance.choice(names): some_value(chance, depth + 1) for _ in range(chance.randrange(3))}
    return (
        {**made, "__type__": chance.choice(["datetime", "interval", "no"])} if chance.random() < 0.1 else made
    )


def some_schedule(chance: random.Random) -> Any:
    if chance.random() < 0.05:
        return some_value(chance)
    if chance.random() < 0.5:
        every = chance.choice([1, 60, 0.5, 3600.0, 0, -1, True, "60", None, 1e300, float("inf")])
        made: dict[str, Any] = {
            **INTERVAL,
            "every": every if chance.random() < 0.3 else chance.choice([1, 1.0, 60]),
        }
        made["relative"] = chance.choice([False, True, None, 1])
    else:
        fields = ["*", "*/5", "0", 0, 7, "1,2", "mon", "L", 99, "x", 1.0, True, [1, 2], None]
        made = {**CRONTAB, chance.choice(list(CRONTAB)[1:]): chance.choice(fields)}
    if chance.random() < 0.1:
        made[chance.choice(["more", "evry", "__type__", "n"])] = some_value(chance, 2)
    if chance.random() < 0.1:
        made.pop(chance.choice(list(made)))
    return made


def some_text(chance: random.Random) -> str:
    definition = {**PLAIN, "schedule": some_schedule(chance)}
    for name in PLAIN:
        if name != "schedule" and chance.random() < 0.08:
            definition[name] = some_value(chance)
    for name in ("args", "kwargs", "options"):
        if chance.random() < 0.5:
            value = some_value(chance)
            definition[name] = [value] if name == "args" else {chance.choice(["a", "headers"]): value}
    if chance.random() < 0.1:
        definition.pop(chance.choice(list(definition)))
    if chance.random() < 0.1:
        definition[chance.choice(["more", "jitter", "Task", "__type__"])] = some_value(chance)
    text = json.dumps(definition, ensure_ascii=chance.random() < 0.8)
    if chance.random() < 0.3:  # somebody's slip, or ill will
        at = chance.randrange(len(text))
        cut = chance.choice([0, 0, 1, 3])
        inserted = chance.choice(
            ["", " ", ",", '"', "\\", "{", "}", "\\u005f", "\\u0074", "\x00", "é", text[at : at + 20]]
        )
        text = text[:at] + inserted + text[at + cut :]
    if chance.random() < 0.05:
        letter = chance.choice("_type")
        text = text.replace(letter, f"\\u{ord(letter):04x}", chance.randrange(1, 9))
    return text


def test_whatever_the_quick_reader_reads_the_tolerant_one_reads_alike(app: Celery) -> None:
    seed = random.randrange(10**6)
    print(f"seed: {seed}")
    chance = random.Random(seed)
    reader, quick, usable = PlainReader(app), 0, 0
    policies = [
        None,
        None,
        None,
        {},
        {"jitter": 5},
        {"expires_after": 9, "timezone": "Asia/Tokyo"},
        {"misfire": "x"},
        {"more": 1},
        "{",
    ]
    for _ in range(10_000):
        claimed = claim(some_text(chance), chance.choice(policies))
        quick += check(app, reader, claimed)
        try:
            decode_entry(Entry, read_claimed(claimed), app)
        except EntryError:
            continue
        usable += 1
    assert quick > usable / 5
