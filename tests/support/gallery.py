"""A page with every component of the dashboard, for tests of its look, and the server that shows it.

The Content-Security-Policy is the dashboard's own: what it forbids, no component needs.
"""

from __future__ import annotations

import mimetypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from redbeat.entries.query import STATES
from redbeat.history import OUTCOMES
from redbeat.runs.run import STATES as RUN_STATES
from redbeat.web.pages import rendering

SOURCE = Path(__file__).with_name("gallery.html").read_text("utf-8")
#: made by the dashboard's own environment
GALLERY = rendering.environment().from_string(SOURCE)
STATIC = Path(rendering.__file__).parents[1] / "static"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " font-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
#: what somebody may have written into an entry
HOSTILE = "<img src=x onerror=alert(1)>\u202egnp.exe\x1b[31m" + "\u0430" * 40

_ENTRIES = (
    (
        "billing.report",
        "weekdays at 07:30 in Europe/Berlin",
        "scheduled",
        timedelta(hours=3),
        "ssssssssssfsssssssss",
    ),
    (
        "catalog.sync-prices",
        "every 10 minutes from 06:00 to 20:59",
        "due",
        timedelta(seconds=-1),
        "sssxsssssssxssssssss",
    ),
    ("orders.poll-carriers", "every 2 min", "failing", timedelta(seconds=41), "sssssssssssssssfffuu"),
    ("ops.backup", "daily at 02:15", "paused", None, "sssssssssssssssssskk"),
    ("news.invite", "once, 2026-12-24 18:00", "disabled", None, ""),
    ("warehouse.count-stock", "daily at 22:00", "quarantined", None, "ssslss"),
    ("legacy.cleanup", "every 2 hours", "missing", None, "kkwwm"),
)
_OUTCOMES = {
    "s": "succeeded", "f": "failed", "x": "expired", "u": "unsent", "k": "skipped", "l": "lost",
    "w": "waiting", "m": "merged",
}  # fmt: skip


def page(*, is_live: bool = False) -> str:
    """The gallery."""
    frame = rendering.Frame(
        root="",
        nav=rendering.navigation("", "/entries"),
        user="ada@example.com",
        csrf_token="a-token",
        is_live=is_live,
        now=datetime.now(timezone.utc),
    )
    rows = [
        {
            "name": name,
            "schedule": schedule,
            "state": state,
            "due": None if after is None else frame.now + after,
            "outcomes": [_OUTCOMES[letter] for letter in letters],
        }
        for name, schedule, state, after, letters in _ENTRIES
    ]
    months = [
        {"name": f"{first:%B}", "blank": first.weekday(), "days": _days(first)}
        for first in (datetime(2026, month, 1) for month in range(1, 13))
    ]
    return GALLERY.render(
        vars(frame),
        title="Entries",
        rows=rows,
        states=STATES,
        outcomes=OUTCOMES,
        run_states=RUN_STATES,
        months=months,
        hostile=HOSTILE,
        document={
            "name": "billing.report",
            "task": "billing.report",
            "args": [1, "<b>"],
            "schedule": "30 7 * * mon-fri",
        },
    )


def _days(first: datetime) -> list[dict[str, Any]]:
    day, days = first, []
    while day.month == first.month:
        excluded = day.weekday() > 4 or (day.month, day.day) in ((1, 1), (5, 1), (12, 25), (12, 26))
        days.append({"number": day.day, "excluded": excluded, "today": (day.month, day.day) == (3, 14)})
        day += timedelta(days=1)
    return days


class _Handler(BaseHTTPRequestHandler):
    """GET gives the gallery, static files and what htmx swaps in; POST says what it got."""

    posted: list[str]

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/static/"):
            file = STATIC / path.removeprefix("/static/")
            self._answer(file.read_bytes(), mimetypes.guess_type(file.name)[0] or "text/plain")
        elif path == "/part":
            part = '<div id="part"><p data-focus data-announce="It is here.">swapped in</p></div>'
            self._answer(part.encode())
        elif path == "/broken":
            self._answer(b"no", status=500)
        elif path == "/stream":
            self._stream()
        elif path == "/told":
            soon = datetime.now(timezone.utc) + timedelta(hours=1)
            part = f'<p>It is told: <time data-relative datetime="{soon.isoformat()}"></time></p>'
            self._answer(f'{part}<input id="live-field" aria-label="Live">'.encode())
        else:
            self._answer(page(is_live="live" in self.path).encode())

    def _stream(self) -> None:
        """Tell three times that something has changed, and then nothing more until the page is closed."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for _ in range(3):
            self.wfile.write(b"event: change\ndata: \n\n")
            self.wfile.flush()
        self.rfile.read(1)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.posted.append(body)  # type: ignore[attr-defined]
        self._answer(page().encode())

    def _answer(self, body: bytes, kind: str = "text/html", status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def gallery() -> Iterator[tuple[str, list[str]]]:
    """Serve it; yields its URL, and the bodies that were posted."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.posted = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", server.posted  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
