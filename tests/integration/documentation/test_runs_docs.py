"""The recipes of docs/runs.rst tell whom they are to tell, from a real beat; its tables are complete."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import redis

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat import signals
from redbeat.runs.run import Run
from redbeat.runs.tracking import is_tracked
from tests.conftest import MakeApp
from tests.support.apps import celery_beat, write_app
from tests.support.documents import ROOT, write_files
from tests.support.polling import eventually
from tests.support.schedule import write_raw
from tests.support.servers import Server

RECIPES = ("chat_message", "mail", "page")
PAGE = (ROOT / "docs" / "runs.rst").read_text("utf-8")


@contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[int]:
    """Serve in a thread; yields the port."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def web_server(posted: list[tuple[str, Any]]) -> HTTPServer:
    """One that notes what is posted to it."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posted.append((self.path, json.loads(body)))
            self.send_response(202)
            self.end_headers()

        def log_message(self, *_args: Any) -> None:
            pass

    return HTTPServer(("127.0.0.1", 0), Handler)


def mail_server(mails: list[str]) -> socketserver.TCPServer:
    """One that takes every mail; Python has none any more."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            while line := self.rfile.readline().strip().upper():
                if line == b"DATA":
                    self.wfile.write(b"354 go on\r\n")
                    lines = iter(self.rfile.readline, b".\r\n")
                    mails.append(b"".join(lines).decode())
                self.wfile.write(b"221 bye\r\n" if line == b"QUIT" else b"250 fine\r\n")

    return socketserver.TCPServer(("127.0.0.1", 0), Handler)


def test_the_recipes_send_a_chat_message_a_mail_and_a_page(
    server: Server, client: redis.Redis, tmp_path: Path, make_app: MakeApp
) -> None:
    posted: list[tuple[str, Any]] = []
    mails: list[str] = []
    for recipe in RECIPES:
        shutil.copy(ROOT / "docs" / "recipes" / f"{recipe}.py", tmp_path)

    def add(event: str, name: str, **run: Any) -> None:
        run = {"task_id": f"id-of-{name}", "due": "1769844600.000000", **run}
        client.xadd("redbeat::events", {"event": event, "entry": name, "run": json.dumps(run)})

    write_app(
        tmp_path,
        "module",
        server.url(0),
        redbeat_redis_url=server.url(1),
        extra="".join(f"import {recipe}\n" for recipe in RECIPES),
    )
    with serving(web_server(posted)) as web_port, serving(mail_server(mails)) as mail_port:
        env = {
            "CHAT_URL": f"http://127.0.0.1:{web_port}/chat",
            "PAGER_URL": f"http://127.0.0.1:{web_port}/page",
            "PAGER_KEY": "the-key",
            "MAIL_HOST": "127.0.0.1",
            "MAIL_PORT": str(mail_port),
            "MAIL_TO": "ann@example.org",
        }
        with celery_beat(tmp_path, "module", env=env) as beat:
            eventually(lambda: client.exists("redbeat::events-read"))
            add("run_ended", "good", outcome="succeeded")
            add("run_ended", "bad", outcome="failed", error="ValueError: no such customer", worker="celery@a")
            add("run_ended", "gone", outcome="lost", worker="celery@b")
            add("run_overdue", "slow", worker="celery@a")
            add("run_ended", "slow", outcome="succeeded")
            add("run_ended", "waiting", outcome="never_started")
            add("run_ended", "waiting", outcome="failed")
            add("run_ended", "waiting", outcome="succeeded")
            entry = Entry("often", "echo", 3600, app=make_app()).save()
            entry.pause("paused after 3 failures in a row; the last: ValueError: no", by="redbeat")
            entry.resume()
            entry.pause("ann is here", by="ann")
            write_raw(client, "broken", "{oops")
            eventually(lambda: len(posted) >= 9 and len(mails) >= 2)
            assert "raised" not in beat.output(), beat.output()
    assert [body["text"] for path, body in posted if path == "/chat"] == [
        "bad failed, due at 2026-01-31 07:30 UTC, on celery@a: ValueError: no such customer",
        "gone lost, due at 2026-01-31 07:30 UTC, on celery@b",
        "waiting never started, due at 2026-01-31 07:30 UTC",
        "waiting failed, due at 2026-01-31 07:30 UTC",
    ]
    pages = [body for path, body in posted if path == "/page"]
    assert [(one["event_action"], one["dedup_key"]) for one in pages] == [
        ("trigger", "gone"), ("trigger", "id-of-slow"), ("resolve", "id-of-slow"), ("trigger", "waiting"),
        ("resolve", "waiting"),
    ]  # fmt: skip
    assert pages[0]["payload"]["summary"].endswith("lost with its worker, celery@b")
    assert pages[1]["payload"]["summary"].startswith("slow is still at work")
    assert {one["routing_key"] for one in pages} == {"the-key"}
    [paused] = [mail for mail in mails if "Subject: often is paused" in mail]
    assert "often is paused after 3 failures in a row; the last: ValueError: no" in paused
    assert "To: ann@example.org" in paused
    [quarantined] = [mail for mail in mails if "Subject: broken can't be used" in mail]
    assert "redbeat:broken" in quarantined
    assert len(mails) == 2


def test_the_one_line_lets_the_app_of_the_page_track_runs(tmp_path: Path) -> None:
    [path] = write_files("docs/runs.rst", tmp_path)
    page = runpy.run_path(str(path))
    assert is_tracked(page["app"])


def rows_of(title: str) -> dict[str, str]:
    """The table under a title of the page: the first column's names to the rest."""
    section = PAGE.partition(f"\n{title}\n")[2]
    table = re.search(r"\.\. list-table::.*?\n((?:\n|   .*\n)+)", section)
    assert table
    cells = re.split(r"\n   \* - ", table[1])[1:]
    return {name: rest for cell in cells for name, _, rest in [cell.partition("\n     - ")] if "``" in name}


def test_the_table_of_signals_is_that_of_the_program() -> None:
    rows = rows_of("Signals")
    documented = {
        re.sub(r"\W", "", name): re.findall(r"``(\w+)``", rest.partition("\n     - ")[0])
        for name, rest in rows.items()
    }
    given = {name: sorted(signal.providing_args) for name, signal in signals.ALL.items()}
    assert {name: sorted(arguments) for name, arguments in documented.items()} == given


def test_what_a_signal_tells_of_a_run_is_what_a_run_has() -> None:
    rows = rows_of("What a signal tells of a run")
    assert {re.sub(r"\W", "", name) for name in rows} == signals.OF_RUNS.keys()
    named = {name for rest in rows.values() for name in re.findall(r"``(\w+)``", rest)}
    assert named <= {field.name for field in fields(Run)}


@pytest.mark.parametrize("recipe", RECIPES)
def test_each_recipe_is_shown(recipe: str) -> None:
    assert f".. literalinclude:: recipes/{recipe}.py" in PAGE
