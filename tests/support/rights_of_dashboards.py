"""What the ACL users of a dashboard are promised to be able to do: pages, forms, and the interface."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.entries.audit import find_records
from redbeat.keys import Keys
from redbeat.schedules import clocked
from redbeat.store.events import Events
from redbeat.store.members import Members
from redbeat.store.store import Store
from redbeat.store.tokens import Tokens
from redbeat.web import asgi_app
from tests.support.dashboards import Browser, dashboard_of
from tests.support.forms import form_fields
from tests.support.polling import eventually
from tests.support.programs import Program
from tests.support.progress import Progress
from tests.support.schedule import server_now
from tests.support.stored import store
from tests.support.ticks import leader

if TYPE_CHECKING:
    from tests.support.rights import Ground

FAR = clocked(datetime(2099, 3, 1, 9, 30, tzinfo=timezone.utc))
#: the pages of the menu, and how it is known that what is looked at beside a page is there
PAGES = {
    "/": "Overview",
    "/entries?sort=name": "report",
    "/timeline": "soon",
    "/runs?state=all&since=1d": "report",
    "/doctor": "looked at",
    "/files": "Files",
    "/calendars": 'data-label="Entries">1<',
    "/routes": "soon",
    "/later": "pickled",
    "/audit": "set",
}


def fill(ground: Ground) -> None:
    """A schedule in which something has happened."""
    trusted = ground.app("default")
    Calendar("holidays", ["2098-12-25"], app=trusted).save()
    Entry("report", "tasks.report", FAR, exclude="holidays", app=trusted).save()
    Entry("other", "tasks.report", 60, app=trusted).save().pause("broken")
    Entry("soon", "tasks.report", 900, app=trusted).save()
    progress = Progress(trusted, ground.admin)
    progress.end(progress.started("report", "one"), "failed")
    progress.started("report", "two", due=2000.0)
    store(trusted, "json", "one")
    store(trusted, "pickled", "two", args=[object], serializer="pickle", seconds=90_000)


def of(ground: Ground, **options: Any) -> Browser:
    """A browser at a dashboard with the rights of the user in Redis, and all of the dashboard's."""
    return Browser(dashboard_of(ground.app(), **options))


def look(ground: Ground, browser: Browser, path: str, words: str) -> None:
    """Look at a page until it has these words, or the server has refused something."""

    def is_there() -> bool:
        page = browser.read(path)
        assert not ground.refusals()
        return words in page

    eventually(is_there, message=f"{path} doesn't show {words}", retry_on=())


def it_shows_all_pages(ground: Ground) -> None:
    fill(ground)
    is_read_only = ground.user.endswith("read_only")
    browser = of(ground, read_only=is_read_only)
    with leader(ground.app("default")) as scheduler:
        scheduler.tick()
        for path, words in PAGES.items():
            if path != "/audit":
                look(ground, browser, path, words)
        told = browser.read("/doctor")
        can_be_told = not ground.server.version.startswith("6.")  # which has no ACL DRYRUN
        assert ("may do less than beat" in told, "lacks rights" in told) == (can_be_told, False)
        assert "Nobody has changed anything yet" in browser.read("/audit")
        assert "two" in browser.read("/entry", name="report", at="2098-01-01T0800")
        assert "2098-12-25" in browser.read("/calendar", name="holidays", year=2098)
        browser.read("/entries", state="paused")
        browser.read("/entries", owner="billing")
        browser.read("/entries", match="rep", outcome="failed")
        browser.read("/runs", state="failed")
        browser.read("/runs", name="report", since="1d")
        browser.read("/routes", name="report")
        browser.read("/timeline", start="6h")
        assert "x-python-serialize" in browser.read("/later/message", task_id="pickled")
        assert browser.post("/entries/rows", {"hx-request": "true"}, shown="report").status_code == 200
    assert browser.get("/entry", name="nothing").status_code == 404


def it_looks_for_news(ground: Ground) -> None:
    fill(ground)
    store = Store(ground.app())
    assert any(Events(store).last_ids())
    assert Members(store).first(1)
    assert store.vitals().due == 0


def it_shows_a_damaged_schedule(ground: Ground) -> None:
    ground.admin.hset("redbeat:broken", "definition", "{oops")
    ground.admin.zadd(Keys().schedule, {"redbeat:broken": 1, "redbeat:gone": 1})
    browser = of(ground, read_only=ground.user.endswith("read_only"))
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
    fill(ground)
    app = ground.app()
    program = Program(app, token=Tokens(Store(ground.app("default"))).add("ci", ["admin"], None)[1])
    for path in (
        "/entries", "/count", "/entries/report", "/entries/report/next", "/next", "/entries/report/why",
        "/entries/report/route", "/runs", "/entries/report/runs", "/entries/report/history", "/status",
        "/timeline", "/doctor", "/audit", "/calendars", "/calendars/holidays", "/openapi.json",
        "/later", "/later/json", "/later/pickled",
    ):  # fmt: skip
        query = {"at": "2098-01-01T08:00:00Z"} if path.endswith("why") else {}
        program.get(path, **query)
    for path in ("/entries", "/later"):  # and on from there
        program.get(program.get(path, limit=1)["next"])
    assert program.ask("GET", "/export").status_code == 200


def it_changes_entries_by_forms(ground: Ground) -> None:
    browser = of(ground)
    new = form_fields(browser.read("/entry/new"), "entry-form") | {"task": "tasks.report", "name": "report"}
    browser.send("/entry/save", **new)
    opened = form_fields(browser.read("/entry/edit", name="report"), "entry-form")
    assert browser.post("/entry/preview", {"hx-request": "true"}, **opened).status_code == 200
    browser.send("/entry/save", **opened | {"jitter": "5m"})
    browser.send("/entry/pause", name="report", note="why", until="2h")
    browser.send("/entry/resume", name="report")
    for verb in ("pause", "resume", "trigger", "delete"):
        browser.send(f"/entries/{verb}", name=["report"], confirmed="yes")
    Entry("report", "tasks.report", FAR, app=ground.app("default")).save()
    browser.send("/entry/delete", **form_fields(browser.read("/entry/delete", name="report")))
    assert not ground.admin.exists("redbeat:report")
    assert {"add", "set", "pause", "resume", "trigger", "delete"} <= {
        one.verb for one in find_records(ground.app("default"))
    }


def it_runs_entries_by_forms(ground: Ground) -> None:
    fill(ground)
    entry = Entry("hourly", "tasks.report", 3600, app=ground.app("default")).save()
    entry.reschedule(datetime.now(timezone.utc) - timedelta(hours=5, minutes=30))
    browser = of(ground)
    assert "its task id is" in browser.send(
        "/entry/run", **form_fields(browser.read("/entry/run", name="report"))
    )
    asked = browser.post("/entry/backfill", name="hourly", begin="3h")
    assert "Sent 3 runs." in browser.send("/entry/backfill", **form_fields(asked.text))
    browser.send("/runs/rerun", since="1d", confirmed="yes")
    asked = browser.post("/entry/give-up", name="report", task_id="two")
    assert "counts as lost" in browser.send("/entry/give-up", **form_fields(asked.text))


def it_takes_stored_messages_away(ground: Ground) -> None:
    fill(ground)
    browser = of(ground)
    program = Program(ground.app(), token=Tokens(Store(ground.app("default"))).add("ci", ["admin"], None)[1])
    for task_id in ("json", "pickled"):
        assert "Revoked" in browser.send("/later/cancel", task_id=task_id, revision="", confirmed="yes")
    for task_id in ("one", "two"):
        assert program.ask("DELETE", f"/later/{task_id}").status_code == 200
    assert not ground.admin.keys("redbeat:*later*")


def it_keeps_calendars_and_files_by_forms(ground: Ground) -> None:
    browser = of(ground)
    browser.send("/calendar/set", name="closed", revision="", text="2098-01-01 New Year", about="")
    browser.send("/calendar/set", name="closed", first="2098-07-01", last="2098-07-03", label="holidays")
    browser.post("/calendar/delete", name="closed", confirmed="yes")
    text = "{owner: ops, entries: {mine: {task: tasks.report, schedule: 60}}}"
    for document in (text, text.replace("60", "90"), "{owner: ops, entries: {}}"):
        shown = browser.post("/files/plan", text=document, owner="", prune="yes").text
        fields = form_fields(shown)
        browser.send("/files/apply", **fields | {"text": document})
    eventually(lambda: "attachment" in browser.get("/files/export").headers.get("content-disposition", ""))


def it_does_what_programs_ask(ground: Ground) -> None:
    fill(ground)
    token = Tokens(Store(ground.app("default"))).add("ci", ["admin"], None)[1]
    program = Program(ground.app(), token=token)
    for _ in range(2):
        answer = program.ask("PUT", "/entries/report/trigger", {"args": [1]}, {"idempotency-key": "one"})
        assert answer.status_code == 200, answer.text
    program.put("/entries/report/pause", {"note": "why"})
    program.put("/resume", {"names": ["report"]})
    assert program.ask("DELETE", "/entries/report").status_code in (200, 204)
    names = Keys()  # what may be left of an entry that is gone
    ground.admin.rpush(names.about("gone").history, "{}")
    ground.admin.sadd(names.statics, "gone")
    ground.admin.sadd(names.static_owners, "proj\tgone")
    ground.admin.hset(names.downgraded, "redbeat:gone", "1.0")
    assert program.put("/purge", {"dry_run": False})
    left = (names.about("gone").history, names.statics, names.static_owners, names.downgraded)
    assert not ground.admin.exists(*left)


def it_repairs_what_the_doctor_has_found(ground: Ground) -> None:
    ground.admin.zadd(Keys().schedule, {"redbeat:gone": server_now(ground.admin) + 1000})
    browser = of(ground)
    look(ground, browser, "/doctor", "missing-hash")
    fields = form_fields(browser.read("/doctor/fix", kind="missing-hash"))
    browser.send("/doctor/fix", **fields | {"confirmed": "yes"})
    assert not ground.admin.exists(Keys().schedule)


LOOKING = (
    it_shows_all_pages, it_looks_for_news, it_shows_a_damaged_schedule, it_lets_in_who_has_a_token,
    it_answers_what_programs_ask,
)  # fmt: skip
CHANGING = (
    it_changes_entries_by_forms, it_runs_entries_by_forms, it_keeps_calendars_and_files_by_forms,
    it_does_what_programs_ask, it_repairs_what_the_doctor_has_found, it_takes_stored_messages_away,
)  # fmt: skip
