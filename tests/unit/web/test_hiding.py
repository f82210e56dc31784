"""What pages hide of an entry, at every depth and in every form, and how it comes back when it is edited."""

from __future__ import annotations

import re
from sys import getrecursionlimit
from typing import Any

import pytest
from celery import Celery

from redbeat.operations.hiding import (
    HIDDEN,
    MAX_DEPTH,
    Hiding,
    hide,
    hide_details,
    hiding_of,
    kept_hidden,
    left_hidden,
    may_hide,
    restore,
    without_hidden,
)

PATTERNS = Hiding(["*password*", "*token*"])


STORED: dict[str, Any] = {
    "name": "report",
    "args": [{"api_TOKEN": "abc", "rows": 5}, ["x"]],
    "kwargs": {"Password": {"deep": 1}, "user": "anna", "nested": {"tokens": [1, 2]}},
    "options": {"headers": {"x-token": "t"}, "queue": "q"},
    "ping_url": "https://hc-ping.com/c0ffee",
}


def test_edited_values_count_and_hidden_ones_are_kept() -> None:
    edited = hide(STORED, PATTERNS)
    assert restore(edited, STORED, PATTERNS) == STORED
    edited["kwargs"] |= {"user": "ben", "Password": "new"}
    edited["ping_url"] = "https://hc-ping.com/other"
    saved = restore(edited, STORED, PATTERNS)
    assert saved["kwargs"] == {"Password": "new", "user": "ben", "nested": {"tokens": [1, 2]}}
    assert (saved["options"], saved["ping_url"]) == (STORED["options"], "https://hc-ping.com/other")


def test_marks_left_in_a_document_are_found_at_every_depth() -> None:
    kwargs = {"note": HIDDEN, "deep": [{"password": HIDDEN, "other": 1}]}
    document = {"args": [{"api_token": HIDDEN}], "kwargs": kwargs, "options": {}}
    assert list(left_hidden(document, PATTERNS)) == [("args", "api_token"), ("kwargs", "password")]


@pytest.mark.parametrize("depth", [1, MAX_DEPTH - 2, MAX_DEPTH, 900])
def test_secret_at_any_depth_is_hidden_told_and_restored(depth: int) -> None:
    value: Any = {"password": "geheim"}
    for _ in range(depth):
        value = [value]
    for field, put in (("args", value), ("kwargs", {"a": value}), ("options", {"a": value})):
        stored = {"task": "t", field: put}
        shown = hide(stored, PATTERNS)
        assert "geheim" not in repr(shown)
        assert list(left_hidden(shown, PATTERNS, stored)) != []
        restored = restore(shown, stored, PATTERNS)
        assert restored[field] is stored[field] or restored == stored
        assert kept_hidden(restored, stored, PATTERNS) in ("password", field)
        assert "geheim" not in without_hidden("'geheim' isn't allowed.", stored, PATTERNS)


def test_too_deep_value_is_hidden_as_a_whole_and_restored() -> None:
    deep: Any = []
    for _ in range(getrecursionlimit()):
        deep = [deep]
    stored = {"args": deep, "kwargs": {"a": deep}, "options": {"a": deep}, "task": "t"}
    shown = hide(stored, PATTERNS)
    fields, whole = ("args", "kwargs", "options"), {HIDDEN: HIDDEN}
    assert shown == {"args": [HIDDEN], "kwargs": whole, "options": whole, "task": "t"}
    restored = restore({**shown, "task": "other"}, stored, PATTERNS)
    assert all(restored[field] is stored[field] for field in fields)
    assert list(left_hidden(restored, PATTERNS)) == []
    left = restore(shown, {"args": [1]}, PATTERNS)
    assert list(left_hidden(left, PATTERNS)) == [(field, field) for field in fields]


@pytest.fixture
def hiding(app: Celery) -> Hiding:
    """Of an app with tasks of each kind."""

    @app.task(name="login")
    def login(user: str, password: str, *tokens: str) -> None:
        """Plain."""

    @app.task(name="bound", bind=True, autoretry_for=(OSError,))
    def bound(self: Any, password: str, user: str = "") -> None:
        """Gets itself first, and is wrapped by Celery."""

    class Sending(app.Task):  # type: ignore[name-defined,misc]
        name = "sending"

        def run(self, to: str, api_token: str = "") -> None:
            """A class."""

    app.register_task(Sending())
    return hiding_of(app)


def test_positional_argument_is_hidden_by_the_name_of_its_parameter(hiding: Hiding) -> None:
    for task, args, shown in (
        ("login", ["anna", "s3cret", "a", "b"], ["anna", HIDDEN, HIDDEN, HIDDEN]),
        ("login", ["anna"], ["anna"]),
        ("bound", ["s3cret", "anna"], [HIDDEN, "anna"]),
        ("sending", ["anna", "s3cret", "more"], ["anna", HIDDEN, "more"]),
        ("elsewhere", ["anna", "s3cret"], ["anna", "s3cret"]),  # no parameter is known of it
    ):
        stored = {"task": task, "args": args}
        assert hide(stored, hiding)["args"] == shown
        assert restore(hide(stored, hiding), stored, hiding) == stored
        assert list(left_hidden(restore(hide(stored, hiding), stored, hiding), hiding, stored)) == []
    assert hide_details({"args": ["anna", "s3cret"]}, hiding, "login") == {"args": ["anna", HIDDEN]}
    sentence = "args: ['anna', 's3cret'] is wrong."
    assert "s3cret" not in without_hidden(sentence, {"task": "login", "args": ["anna", "s3cret"]}, hiding)
    assert may_hide('{"task": "login", "args": ["anna", ', hiding)
    assert not may_hide('{"task": "elsewhere", "args": ["anna", ', hiding)


def test_hidden_positional_argument_comes_back_at_its_place_only(hiding: Hiding) -> None:
    stored = {"task": "login", "args": ["anna", "s3cret"]}
    edited = {"task": "login", "args": ["ben", HIDDEN]}
    assert restore(edited, stored, hiding)["args"] == ["ben", "s3cret"]
    assert restore({"args": ["ben", HIDDEN]}, stored, hiding)["args"] == ["ben", "s3cret"]
    for wrong in (
        {"task": "login", "args": ["x", "anna", HIDDEN]},  # moved
        {"task": "elsewhere", "args": ["anna", HIDDEN]},  # to a task that would show it
        {"task": "sending", "args": [HIDDEN, "anna"]},
    ):
        restored = restore(wrong, stored, hiding)
        assert "s3cret" not in restored["args"]
        assert len(list(left_hidden(restored, hiding, stored))) == 1
    # where nothing was hidden it is only a word
    assert list(left_hidden({"task": "elsewhere", "args": [HIDDEN, "a"]}, hiding, {})) == []


def test_signature_within_an_entry_is_hidden_as_its_task_has_it(hiding: Hiding) -> None:
    def call(secret: str) -> dict[str, Any]:
        return {"task": "login", "args": ["anna", secret], "kwargs": {"password": secret}, "options": {}}

    stored = {
        "task": "celery.group",
        "args": [[call("first"), call("second")]],
        "kwargs": {"body": call("third")},
        "options": {"link": [call("fourth")]},
    }
    shown = hide(stored, hiding)
    assert not {"first", "second", "third", "fourth"} & set(re.findall(r"\w+", str(shown)))
    assert shown["args"][0][0]["args"] == [HIDDEN, HIDDEN], "the result of another may come before them"
    assert hide_details({"options": stored["options"]}, hiding)["options"] == shown["options"]
    assert restore(shown, stored, hiding) == stored
    assert kept_hidden(stored, stored, hiding) == "password"
    assert kept_hidden({**shown, "task": "echo"}, stored, hiding) == ""
    assert [*left_hidden(shown, hiding)][:1] == [("args", "password")]

    shown["options"]["link"][0]["task"] = "echo"
    restored = restore(shown, stored, hiding)
    assert "fourth" not in str(restored), "another task would be given it"
    assert ("options", "password") in [*left_hidden(restored, hiding)]
    assert "third" not in without_hidden(f"can't send {stored['kwargs']}", stored, hiding)


def test_short_hidden_value_is_hidden_alone_and_leaves_times_as_they_are() -> None:
    sentence = "It was sent at 2030-12-02 02:12:20.2 with pin=2, pin: 2. Not 12."
    shown = without_hidden(sentence, {"kwargs": {"password": 2}}, PATTERNS)
    assert shown == "It was sent at 2030-12-02 02:12:20.2 with pin=(hidden), pin: (hidden). Not 12."


def test_arguments_as_text_are_hidden_if_their_task_has_a_hidden_parameter(hiding: Hiding) -> None:
    text = '["anna", "s3cret"]'
    shown = hide({"task": "login", "args": text}, hiding)
    assert shown["args"] == HIDDEN
    assert restore(shown, {"task": "login", "args": text}, hiding)["args"] == text
    assert hide({"task": "unknown", "args": text}, hiding)["args"] == text
    for broken in (
        "{'task': 'login', 'args': ['anna', 's3cret']}",
        '"{\\"task\\": \\"login\\", \\"args\\": [\\"anna\\"]}"',
        "task: login\nargs: [anna, s3cret]",
    ):
        assert may_hide(broken, hiding), broken
        assert not may_hide(broken.replace("login", "unknown"), hiding), broken


def test_result_put_before_the_arguments_of_a_link_is_counted(hiding: Hiding) -> None:
    def shown(task: str, *args: str, **fields: Any) -> Any:
        signature = {"task": task, "args": [*args], "kwargs": {}, "options": {}, **fields}
        stored = {"task": "echo", "options": {"link": [signature]}}
        hidden = hide(stored, hiding)
        assert restore(hidden, stored, hiding) == stored
        return hidden["options"]["link"][0]["args"]

    assert shown("login", "s3cret") == [HIDDEN], "after the result of the task before it"
    assert shown("sending", "s3cret") == [HIDDEN]
    assert shown("elsewhere", "public") == ["public"]
    assert shown("login", "anna", "s3cret", immutable=True) == ["anna", HIDDEN]

    was = {"task": "login", "args": ["s3cret"], "immutable": False}
    edited = {"options": {"link": [{**was, "args": [HIDDEN], "immutable": True}]}}
    restored = restore(edited, {"options": {"link": [was]}}, hiding)
    assert "s3cret" not in str(restored), "it would be shown then"
    assert [*left_hidden(restored, hiding)] == [("options", "password")]


def test_matching_names_are_hidden_at_every_depth_in_any_case_and_in_every_field() -> None:
    shown = hide(STORED, PATTERNS)
    assert shown["args"] == [{"api_TOKEN": HIDDEN, "rows": 5}, ["x"]]
    assert shown["kwargs"] == {"Password": HIDDEN, "user": "anna", "nested": {"tokens": HIDDEN}}
    assert shown["options"] == {"headers": {"x-token": HIDDEN}, "queue": "q"}
    assert "c0ffee" not in shown["ping_url"]
    assert hide(STORED, Hiding([]))["kwargs"] == STORED["kwargs"]
    odd = {"task": {"password": "s3cret"}, "schedule": {"token": "abc"}, "enabled": [{"password": 5}]}
    shown = hide(odd, PATTERNS)
    assert (shown["task"], shown["enabled"]) == ({"password": HIDDEN}, [{"password": HIDDEN}])
    assert restore(shown, odd, PATTERNS) == odd
    assert ("schedule", "token") in [*left_hidden(shown, PATTERNS)]
