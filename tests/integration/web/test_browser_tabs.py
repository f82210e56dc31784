"""Many tabs of one browser: it has six connections for a host, and pages that nobody sees hold none."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from redbeat import RedBeatSchedulerEntry as Entry
from tests.conftest import MakeApp
from tests.support.apps import write_app
from tests.support.browser import visit
from tests.support.deadlines import patience
from tests.support.processes import Process
from tests.support.servers import Server

TABS = 8
#: a browser without windows shows all of its tabs
HIDING = """
    let isHidden = false;
    Object.defineProperty(Document.prototype, "hidden", { get: () => isHidden });
    window.setHidden = (value) => {
      isHidden = value;
      document.dispatchEvent(new Event("visibilitychange"));
    };
"""


def test_tabs_that_nobody_sees_keep_no_other_waiting_and_are_up_to_date_when_seen(
    valkey: Server, make_app: MakeApp, tmp_path: Path, browser: Any
) -> None:
    settings = {"redbeat_redis_url": valkey.url(1)}
    write_app(tmp_path, "project", valkey.url(0), **settings)
    app = make_app(**settings)
    for number in range(TABS):
        Entry(f"entry-{number}", "echo", 3600, app=app).save()
    command = [sys.executable, "-m", "celery", "-A", "project", "redbeat", "web", "--port=0"]
    with Process(command, tmp_path) as web, visit(browser) as (context, _):
        link = web.wait_for(re.compile(r"(http://127\.0\.0\.1:\d+)/login\?token=\S+"))
        context.add_init_script(HIDING)
        tabs: list[Page] = []
        for number in range(TABS):
            tab = context.new_page()
            tab.goto(link[0] if number == 0 else f"{link[1]}/entry?name=entry-{number}")
            tabs.append(tab)
            if number == 0:
                tab.goto(f"{link[1]}/entries")
            expect(tab.get_by_role("heading", level=1)).to_be_visible()
            tab.evaluate("setHidden(true)")
        Entry.get("entry-1", app).pause("the move")
        tabs[0].evaluate("window.isStillOpen = true; setHidden(false)")
        row = tabs[0].get_by_role("row").filter(has=tabs[0].get_by_role("link", name="entry-1", exact=True))
        expect(row).to_contain_text("paused", timeout=patience(20) * 1000)
        Entry.get("entry-2", app).pause("later")  # its stream is open again
        row = tabs[0].get_by_role("row").filter(has=tabs[0].get_by_role("link", name="entry-2", exact=True))
        expect(row).to_contain_text("paused", timeout=patience(20) * 1000)
        assert tabs[0].evaluate("isStillOpen")
