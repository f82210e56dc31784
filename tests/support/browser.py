"""A browser for tests: Debian's chromium, driven by playwright, and axe-core, which judges what it shows.

Invariant: a page that has logged an error, or was kept from something by its Content-Security-Policy, fails
its test. axe is put in by the browser's debugger, so that no page has to allow it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from .deadlines import patience
from .machine import require_node_package, require_program

#: what WCAG 2.2 AA asks for, and what axe's authors recommend besides
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]

# Its sandbox needs rights that a container may lack, and root has none of it. Chromium asks for no updates.
_ARGUMENTS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--disable-background-networking"]
#: a name for this machine that isn't its own: a browser doesn't trust plain HTTP from there
NAME = "ops.example.test"
_ARGUMENTS.append(f"--host-resolver-rules=MAP {NAME} 127.0.0.1")


#: one without windows costs half as much
_PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def axe_source() -> str:
    return (require_node_package("axe-core") / "axe.min.js").read_text("utf-8")


@contextmanager
def chromium() -> Iterator[Browser]:
    """One that runs until the end of the block; playwright ends it by its own pid."""
    path = require_program(*_PROGRAMS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=_ARGUMENTS, timeout=patience(30) * 1000
        )
        try:
            yield browser
        finally:
            browser.close()


class Complaints:
    """What pages of a context have logged as errors or warnings, raised, or been kept from by policy."""

    def __init__(self, context: BrowserContext) -> None:
        self.found: list[str] = []
        #: texts that a test provokes itself
        self.expected: list[str] = []
        context.on("console", self._note_said)
        context.on("weberror", lambda raised: self.found.append(str(raised.error)))

    def _note_said(self, said: Any) -> None:
        # "Failed to load resource" doesn't say which; some browsers ask for an icon by themselves
        url = said.location.get("url", "")
        if said.type in ("error", "warning") and not url.endswith("/favicon.ico"):
            self.found.append(f"{said.text} ({url})")

    def unexpected(self) -> list[str]:
        return [text for text in self.found if not any(part in text for part in self.expected)]


@contextmanager
def visit(browser: Browser, **options: Any) -> Iterator[tuple[BrowserContext, Complaints]]:
    """A visitor with cookies and storage of their own; they have nothing to complain about at the end.

    `options` are playwright's: viewport, color_scheme, java_script_enabled, timezone_id, extra_http_headers.
    """
    usual = {
        "viewport": {"width": 1280, "height": 800},
        "timezone_id": "Europe/Berlin",
        "reduced_motion": "reduce",
    }
    context = browser.new_context(**{**usual, **options})
    # as on any page but a visitor's first, which is loaded twice
    zone = quote(str(options.get("timezone_id", usual["timezone_id"])), safe="")
    places = ("http://localhost", "http://127.0.0.1")
    context.add_cookies([{"name": "redbeat-zone", "value": zone, "url": place} for place in places])
    context.set_default_timeout(patience(20) * 1000)
    expect.set_options(timeout=patience(20) * 1000)
    complaints = Complaints(context)
    try:
        yield context, complaints
        assert complaints.unexpected() == [], complaints.unexpected()
    finally:
        context.close()


def axe(page: Page, only: Sequence[str] = ()) -> list[str]:
    """What axe finds wrong with the page as it is now: rule, element, and why; of all rules, or some only."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(axe_source())
    run = "rules => axe.run(document, {runOnly: rules, resultTypes: ['violations']})"
    return [
        f"{violation['id']}: {node['html'][:200]}: {node['failureSummary']}"
        for violation in page.evaluate(run, list(only) or RULES)["violations"]
        for node in violation["nodes"]
    ]


def overflow(page: Page) -> int:
    """By how many pixels the page is wider than its window."""
    width: int = page.evaluate("() => document.documentElement.scrollWidth - window.innerWidth")
    return width
