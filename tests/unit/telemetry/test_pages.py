"""Pages that take some effort: made once for all who ask, and Redis isn't waited for long."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from redbeat.errors import StoreUnavailable
from redbeat.leadership.status import Status
from redbeat.telemetry.endpoint import pages as module
from redbeat.telemetry.endpoint.exchange import Page, Request, Response
from redbeat.telemetry.endpoint.pages import Shared, pages_of
from tests.support.documents import ROOT
from tests.support.polling import eventually

ANY: Any = SimpleNamespace()


def ask(page: Page, **headers: str) -> Response:
    return page(Request("/", headers))


def test_an_answer_is_made_once_for_all_who_ask_within_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    begun, may_end = threading.Event(), threading.Event()

    def make(form: str) -> Response:
        made.append(form)
        begun.set()
        may_end.wait()
        return Response(HTTPStatus.OK, "text/plain", form.encode())

    shared = Shared(make)
    given: list[Response] = []
    threads = [threading.Thread(target=lambda: given.append(shared.give("a"))) for _ in range(10)]
    monkeypatch.setattr(module, "KEPT_SECONDS", 3600)
    for thread in threads:
        thread.start()
    begun.wait()
    may_end.set()
    for thread in threads:
        thread.join()
    assert [response.body for response in given] == [b"a"] * 10
    assert shared.give("b").body == b"b"
    assert made == ["a", "b"]
    monkeypatch.setattr(module, "KEPT_SECONDS", 0)
    shared.give("a")
    assert made == ["a", "b", "a"]


def test_an_error_is_not_kept() -> None:
    left = [ValueError("a bug")]

    def make(_form: str) -> Response:
        if left:
            raise left.pop()
        return Response(HTTPStatus.OK, "text/plain", b"well")

    shared = Shared(make)
    with pytest.raises(ValueError, match="a bug"):
        shared.give("")
    assert shared.give("").body == b"well"


def test_metrics_come_in_the_form_that_is_asked_for(fake_app: Celery) -> None:
    page = pages_of(fake_app, ANY, lambda accept: (f"for {accept}", accept.encode()))["/metrics"]
    accept = "application/openmetrics-text; version=1.0.0, text/plain; q=0.5"
    form = "application/openmetrics-text"
    assert ask(page, accept=accept) == Response(HTTPStatus.OK, f"for {form}", form.encode())
    assert ask(page) == Response(HTTPStatus.OK, "for ", b"")


def test_without_metrics_a_sentence_says_what_to_install(fake_app: Celery) -> None:
    found = ask(pages_of(fake_app, ANY)["/metrics"])
    assert found.status == HTTPStatus.NOT_IMPLEMENTED
    assert b"install celery-redbeat[metrics]" in found.body


def test_the_table_in_the_documentation_has_each_page(fake_app: Celery) -> None:
    page = (ROOT / "docs" / "monitoring.rst").read_text("utf-8")
    assert re.findall(r"^   \* - ``(/\w+)``$", page, re.MULTILINE) == [*pages_of(fake_app, ANY)]


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, list[str]]]:
    """A Redis that answers when the event is set, and the threads that have asked it."""
    may_answer, asked = threading.Event(), []

    def ask_status(_app: Any) -> Status:
        asked.append(threading.current_thread().name)
        may_answer.wait()
        return Status(datetime.now(timezone.utc), None, None, None, 0, None)

    monkeypatch.setattr(module, "ask_status", ask_status)
    monkeypatch.setattr(module, "STATUS_SECONDS", 0.01)
    monkeypatch.setattr(module, "KEPT_SECONDS", 0)
    yield may_answer, asked
    may_answer.set()


def test_a_redis_that_says_nothing_is_asked_by_one_thread_only(
    fake_app: Celery, reading: tuple[threading.Event, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    may_answer, asked = reading
    page = pages_of(fake_app, ANY)["/status"]
    for _ in range(5):
        found = ask(page)
        assert found.status == HTTPStatus.SERVICE_UNAVAILABLE
        assert b'"state": "unreachable", "exit_code": 3' in found.body
    assert asked == ["redbeat-status"]
    may_answer.set()
    monkeypatch.setattr(module, "STATUS_SECONDS", 3600)
    eventually(lambda: "redbeat-status" not in [one.name for one in threading.enumerate()])
    assert ask(page).status == HTTPStatus.OK
    assert len(asked) == 2, "an answer of long ago was given"


def test_the_status_has_no_halves_of_characters(
    fake_app: Celery, reading: tuple[threading.Event, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading[0].set()
    monkeypatch.setattr(module, "STATUS_SECONDS", 3600)
    view: Any = SimpleNamespace(overdue=SimpleNamespace(names=("no UTF-8: \udcff", "\N{SNOWMAN}")))
    found = json.loads(ask(pages_of(fake_app, ANY, views=lambda: [view])["/status"]).body)
    assert found["overdue"] == ["no UTF-8: \\udcff", "\N{SNOWMAN}"]


def test_the_status_gives_a_probe_no_advice_that_is_for_the_log(
    fake_app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask_status(_app: Any) -> Status:
        raise StoreUnavailable("Redis is gone.", advice="A setting makes beat wait for it.")

    monkeypatch.setattr(module, "ask_status", ask_status)
    found = ask(pages_of(fake_app, ANY)["/status"])
    assert found.status == HTTPStatus.SERVICE_UNAVAILABLE
    assert json.loads(found.body)["problem"] == "Redis is gone."
