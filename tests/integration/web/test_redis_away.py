"""What is shown while Redis stands still or is gone, and that nobody waits for long."""

from __future__ import annotations

import signal
import time

from celery import Celery

from redbeat.store.store import Store
from redbeat.store.tokens import Tokens
from redbeat.web import asgi_app
from redbeat.web.threads import PATIENCE_SECONDS
from tests.support.dashboards import Browser, dashboard_of
from tests.support.deadlines import patience
from tests.support.servers import Server


def test_while_redis_stands_still_pages_say_so_and_who_isnt_known_needs_no_redis(second: Server) -> None:
    app = Celery("test", broker=second.url(0), set_as_current=False)
    # the app itself waits for ever
    app.conf.update(redbeat_redis_url=second.url(1), redbeat_redis_options={"retry_period": -1})
    _, text = Tokens(Store(app)).add("deploy", ["read"], None)
    browser, stranger = Browser(dashboard_of(app)), Browser(asgi_app(app))
    browser.read("/")
    second.process.signal(signal.SIGSTOP)
    try:
        for path in ("/", "/api/v1/status"):
            began = time.monotonic()
            answer = browser.get(path, headers={"authorization": f"Bearer {text}"})
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            assert "Redis" in answer.text
            assert time.monotonic() - began < patience(3 * PATIENCE_SECONDS)
        assert stranger.get("/login").status_code == 200
        assert stranger.get("/").status_code == 401
        assert stranger.get("/static/redbeat.css").status_code == 200
    finally:
        second.process.signal(signal.SIGCONT)
    browser.read("/")
    second.kill()
    answer = browser.get("/")
    assert (answer.status_code, "Redis" in answer.text) == (503, True)
    second.restart()
    browser.read("/")
