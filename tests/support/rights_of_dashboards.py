"""What the documentation promises to ACL users of a dashboard: all pages, forms and operations work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redbeat import later
from redbeat.keys import Keys
from redbeat.store.events import Events
from redbeat.store.members import Members
from redbeat.store.store import Store
from redbeat.store.tokens import Tokens
from redbeat.web import asgi_app
from tests.support.dashboard_walk import call_operations, fill, open_pages, send_forms
from tests.support.dashboards import Browser, dashboard_of
from tests.support.polling import eventually
from tests.support.programs import Program
from tests.support.ticks import leader

if TYPE_CHECKING:
    from tests.support.rights import Ground


def is_read_only(ground: Ground) -> bool:
    return ground.user.endswith("read_only")


def browser_of(ground: Ground) -> Browser:
    """Return a browser at a dashboard that has the user's rights in Redis."""
    return Browser(dashboard_of(ground.app(), read_only=is_read_only(ground)))


def program_of(ground: Ground) -> Program:
    return Program(ground.app(), token=Tokens(Store(ground.app("default"))).add("ci", ["admin"], None)[1])


def look(ground: Ground, browser: Browser, path: str, words: str) -> str:
    """Open a page until it has these words, or the server has refused something."""

    def read() -> str | None:
        page = browser.read(path)
        assert not ground.refusals()
        return page if words in page else None

    return str(eventually(read, message=f"{path} doesn't show {words}", retry_on=()))


def it_shows_all_pages(ground: Ground) -> None:
    fill(ground.app("default"), ground.admin)
    browser = browser_of(ground)
    with leader(ground.app("default")) as scheduler:
        scheduler.tick()
        for path, answer in open_pages(browser):
            may_be = (403, 200, 303) if is_read_only(ground) else (200, 303)
            assert answer.status_code in (*may_be, 404 if path == "/changing" else 200), (path, answer.text)
        told = look(ground, browser, "/doctor", "looked at")
        can_be_told = not ground.server.version.startswith("6.")  # which has no ACL DRYRUN
        assert ("may do less than beat" in told, "lacks rights" in told) == (can_be_told, False)
        for path, words in (
            ("/timeline", "hourly"),
            ("/calendars", 'data-label="Entries">1<'),
            ("/routes", "report"),
            ("/entries?state=paused", "other"),
            ("/entries?match=rep&outcome=failed", "report"),
            ("/entries?owner=billing", "Entries"),
            ("/runs?state=failed", "report"),
            ("/timeline?start=6h", "hourly"),
            ("/later/message?task_id=third", "x-python-serialize"),
        ):
            look(ground, browser, path, words)


def it_looks_for_news(ground: Ground) -> None:
    fill(ground.app("default"), ground.admin)
    store = Store(ground.app())
    assert any(Events(store).last_ids())
    assert Members(store).first(1)
    assert store.vitals().due == 1


def it_shows_a_damaged_schedule(ground: Ground) -> None:
    ground.admin.hset("redbeat:broken", "definition", "{oops")
    ground.admin.zadd(Keys().schedule, {"redbeat:broken": 1, "redbeat:gone": 1})
    browser = browser_of(ground)
    for path in ("/entries", "/entry?name=broken", "/entry?name=gone", "/timeline", "/"):
        browser.read(path)
    look(ground, browser, "/doctor", "gone")


def it_lets_in_who_has_a_token(ground: Ground) -> None:
    token, text = Tokens(Store(ground.app("default"))).add("deploy", ["read"], None, "anna")
    browser = Browser(asgi_app(ground.app()))
    assert browser.post("/login", token="rb_abcdefgh_" + "x" * 43).status_code == 401
    assert browser.post("/login", token=text).status_code == 303
    assert "deploy" in browser.read("/")
    assert Program(ground.app(), token=text).get("/entries")["entries"] == []
    Tokens(Store(ground.app("default"))).revoke(token.id)
    assert browser.get("/").status_code == 401


def it_answers_what_programs_ask(ground: Ground) -> None:
    fill(ground.app("default"), ground.admin)
    program = program_of(ground)
    for operation, answer in call_operations(program, ("GET",)):
        assert answer.status_code == 200, (operation.path, answer.text)
    for path in ("/entries", "/later"):  # and on from there
        program.get(program.get(path, limit=1)["next"])


def it_sends_all_forms(ground: Ground) -> None:
    fill(ground.app("default"), ground.admin)
    for path, answer in send_forms(browser_of(ground)):
        assert answer.status_code in (200, 303), (path, answer.text)
    left = {key for key in ground.admin.keys("redbeat*") if "later:first" in key or key.endswith(":extra")}
    assert left == set(), "what was deleted or revoked"


def it_does_what_programs_ask(ground: Ground) -> None:
    fill(ground.app("default"), ground.admin)
    names = Keys()  # what may be left of an entry that is gone
    ground.admin.sadd(names.statics, "past")
    ground.admin.sadd(names.static_owners, "proj\tpast")
    ground.admin.hset(names.downgraded, "redbeat:past", "1.0")
    program = program_of(ground)
    for operation, answer in call_operations(program, ("PUT", "PATCH", "DELETE")):
        assert answer.status_code < 300, (operation.path, answer.text)
    for _ in range(2):  # the second time it is found that it was sent
        asked: Any = program.ask("PUT", "/entries/report/trigger", {"args": [1]}, {"idempotency-key": "one"})
        assert asked.status_code == 200, asked.text
    assert later.cancel("third", ground.app()) == ["third"]  # its body is a key of its own
    assert not ground.admin.exists(names.message_body("third"))
    left = (names.about("past").history, names.statics, names.static_owners, names.downgraded)
    assert not ground.admin.exists(*left)


LOOKING = (
    it_shows_all_pages, it_looks_for_news, it_shows_a_damaged_schedule, it_lets_in_who_has_a_token,
    it_answers_what_programs_ask,
)  # fmt: skip
CHANGING = (it_sends_all_forms, it_does_what_programs_ask)
