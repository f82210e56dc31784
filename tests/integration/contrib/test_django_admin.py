"""Entries in Django's admin: what is shown, changed and done there, and by whom."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
import redis
from celery import Celery
from django.test import override_settings

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.contrib.django.addresses import part_for
from redbeat.entries.audit import find_records
from tests.support import django_site as site
from tests.support.dashboards import serving_wsgi
from tests.support.forms import form_fields
from tests.support.schedule import sent_names, write_raw

LIST = "/admin/redbeat/entry/"


@pytest.fixture
def admin(app: Celery) -> Any:
    """The browser of somebody who may do everything."""
    return site.visitor(is_superuser=True)


def entry(app: Celery, name: str = "report", **fields: Any) -> Entry:
    made: Entry = Entry(name, **{"task": "echo", "schedule": "0 9 * * *", **fields}, app=app)
    return made.save()


def words_of(answer: Any) -> str:
    """The words of a page."""
    html = re.sub(r"<(script|style).*?</\1>", " ", answer.content.decode(), flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


def form_of(answer: Any) -> dict[str, str]:
    """Return the fields of the form of an entry."""
    return form_fields(answer.content.decode(), "entry_form")


def change_url(name: str) -> str:
    return f"{LIST}{part_for(name)}/change/"


def logged(action_flag: int) -> list[tuple[str, str]]:
    """Who did what of late, as Django's log has it: user and name."""
    from django.contrib.admin.models import LogEntry

    found = LogEntry.objects.filter(action_flag=action_flag).order_by("-pk")
    return [(one.user.username, one.object_id) for one in found]


def test_list_shows_next_run_and_state_in_the_zone_of_django(app: Celery, admin: Any) -> None:
    entry(app, "report", schedule="30 7 * * *", timezone="Europe/Berlin")
    entry(app, "backup", task="ops.backup").pause("the disk is full")
    words = words_of(admin.get(LIST))
    assert re.search(
        r"report echo At 07:30 \(Europe/Berlin\) 20\d\d-\d\d-\d\d 07:30:00 in .* scheduled", words
    )
    assert "backup ops.backup At 09:00 (Europe/Berlin) paused paused the disk is full" in words
    for query, is_found in (("q=B*P", False), ("q=b*p", True), ("state=paused", True), ("state=x", False)):
        answer = admin.get(f"{LIST}?{query}")
        assert (answer.status_code, "ops.backup" in words_of(answer)) == (200, is_found), query


def test_entry_is_added_and_recorded(app: Celery) -> None:
    anna = site.visitor("view", "add", name="anna")
    fields = form_of(anna.get(f"{LIST}add/"))
    fields |= {"name": "report", "task": "echo", "args": "[1]", "schedule": "30 7 * * mon-fri"}
    fields |= {"jitter": "1m", "queue": "mails"}
    answer = anna.post(f"{LIST}add/", fields, follow=True)
    assert answer.redirect_chain == [(LIST, 302)]
    assert "Added report. Next run: " in words_of(answer)
    stored = Entry.get("report", app)
    assert (stored.args, stored.options, stored.jitter) == ([1], {"queue": "mails"}, 60)
    [record] = find_records(app)
    assert (record.user, record.source, record.verb, record.names) == ("anna", "admin", "add", ("report",))
    assert logged(1)[0] == ("anna", "report")


def test_invalid_or_taken_fields_are_refused_at_their_field(app: Celery, admin: Any) -> None:
    fields = form_of(admin.get(f"{LIST}add/"))
    typed = {"name": "report", "schedule": "61 * * * *", "args": "{", "jitter": "soon", "max_runs": "x"}
    answer = admin.post(f"{LIST}add/", fields | typed)
    errors = answer.context["adminform"].form.errors
    assert errors.keys() == {"schedule", "args", "task", "jitter", "max_runs"}
    assert 'value="report"' in answer.content.decode(), "what was typed is still there"
    assert Entry.count(app) == 0
    entry(app, "report", args=[1])
    answer = admin.post(f"{LIST}add/", {**fields, "name": "report", "task": "echo"})
    assert "There is an entry of this name already." in words_of(answer)
    assert Entry.get("report", app).args == [1]


def test_form_sent_back_untouched_changes_nothing(app: Celery, admin: Any) -> None:
    fields: dict[str, Any] = {"args": [1, "ä"], "kwargs": {"x": [None, 1.5]}, "jitter": 90, "misfire": "all"}
    fields |= {"options": {"queue": "q", "priority": 3, "expires": 60}, "one_off": True, "max_runtime": 61.5}
    entry(app, "report", timezone="Asia/Tokyo", **fields).pause("a\nnote")
    before = Entry.get("report", app).to_dict()
    for query in ("", "?as=json"):
        url = change_url("report") + query
        answer = admin.post(url, form_of(admin.get(url)), follow=True)
        assert "Nothing was changed." in words_of(answer)
        assert Entry.get("report", app).to_dict() == before
    assert find_records(app) == []


def test_change_keeps_counts_and_is_in_both_histories(app: Celery, admin: Any, client: redis.Redis) -> None:
    write_raw(client, "report", meta='{"last_run_at": null, "total_run_count": 7}', score=2**33)
    url = change_url("report")
    fields = form_of(admin.get(url))
    answer = admin.post(url, {**fields, "schedule": "2h", "_continue": "1"}, follow=True)
    assert answer.redirect_chain == [(url, 302)]
    stored = Entry.get("report", app)
    assert (stored.schedule.run_every, stored.total_run_count) == (timedelta(hours=2), 7)
    history = admin.get(url.replace("change/", "history/"))
    assert "Changed Schedule" in words_of(history) or "Changed schedule" in words_of(history)
    [record] = find_records(app)
    assert (record.verb, record.source) == ("set", "admin")


def test_second_of_two_editors_overwrites_nothing_unseen(app: Celery) -> None:
    entry(app, "report", args=[1])
    anna, ben = site.visitor("change", name="first"), site.visitor("change", name="second")
    url = change_url("report")
    of_anna, of_ben = (form_of(one.get(url)) for one in (anna, ben))
    anna.post(url, {**of_anna, "args": "[2]"})
    answer = ben.post(url, {**of_ben, "queue": "mails"})
    assert "first has changed it" in words_of(answer)
    assert Entry.get("report", app).options == {}
    merged = form_of(answer)
    assert (merged["args"], merged["queue"]) == ("[2]", "mails")
    ben.post(url, merged)
    stored = Entry.get("report", app)
    assert (stored.args, stored.options) == ([2], {"queue": "mails"})


def test_quarantined_entry_says_why_and_is_mended(app: Celery, admin: Any, client: redis.Redis) -> None:
    bad = {"name": "bad", "task": "echo", "schedule": {"__type__": "interval", "every": "x"}}
    write_raw(client, "bad", bad)
    why = "interval: every must be a number of seconds, not 'x'."
    assert why in words_of(admin.get(LIST))
    fields = form_of(admin.get(change_url("bad")))
    admin.post(change_url("bad"), {**fields, "document": fields["document"].replace('"x"', "30")})
    assert Entry.get("bad", app).state == "scheduled"


def test_hidden_arguments_are_not_shown_and_come_back(app: Celery, admin: Any) -> None:
    app.conf.redbeat_web_hide = ["password"]
    entry(app, kwargs={"password": "s3cret", "x": 1}, ping_url="https://example.com/t0ken")
    url = change_url("report")
    for query in ("", "?as=json"):
        assert not re.search("s3cret|t0ken", admin.get(url + query).content.decode())
    fields = form_of(admin.get(url))
    admin.post(url, {**fields, "kwargs": fields["kwargs"].replace("1", "2")})
    stored = Entry.get("report", app)
    assert (stored.kwargs, stored.ping_url) == ({"password": "s3cret", "x": 2}, "https://example.com/t0ken")


@pytest.mark.parametrize(
    "name",
    ["..", "a//b/../c", "dashboard", "a_2Fb", "x?y#z&q=1", "50% ü 漢字", "a\r\nb", "<b>'\"`", "x" * 3000],
    ids=range(9),
)
def test_entry_of_any_name_is_changed_paused_and_deleted(app: Celery, admin: Any, name: str) -> None:
    entry(app, name)
    listed = admin.get(LIST).content.decode()
    [url] = [unescape(one) for one in re.findall(r'<th class="field-name"><a href="([^"]*)"', listed)]
    fields = form_of(admin.get(url))
    admin.post(url, {**fields, "args": "[2]"})
    assert Entry.get(name, app).args == [2]
    assert admin.get(url.replace("/change/", "/history/")).status_code == 200
    assert admin.post(LIST, {"action": "pause", "_selected_action": part_for(name)}).status_code == 302
    assert Entry.get(name, app).state == "paused"
    assert admin.post(url.replace("/change/", "/delete/"), {"post": "yes"}).status_code == 302
    assert Entry.count(app) == 0
    assert admin.get("/admin/").status_code == 200, "with links to what was done of late"


def test_markup_that_users_have_typed_is_text(app: Celery, admin: Any, client: redis.Redis) -> None:
    evil = "<img src=x onerror=alert(1)>"
    entry(app, evil, task=evil, kwargs={evil: evil}).pause(evil)
    write_raw(client, f"{evil}2", {"name": evil, "task": evil, "schedule": {"__type__": evil}})
    pages = [LIST, f"{LIST}?q={evil}", f"{LIST}?state={evil}", "/admin/"]
    pages += [change_url(evil), f"{change_url(evil)}?as=json", change_url(f"{evil}2")]
    pages += [change_url(evil).replace("change/", one) for one in ("history/", "delete/", "action/pause/")]
    for page in pages:
        answer = admin.get(page)
        assert answer.status_code == 200, page
        assert "<img src=x" not in answer.content.decode(), page
    fields = form_of(admin.get(f"{LIST}add/"))
    for schedule in (evil, "0 9 * * *"):  # refused, and stored
        typed = {**fields, "name": f"{evil}3", "task": evil, "schedule": schedule}
        assert "<img src=x" not in admin.post(f"{LIST}add/", typed, follow=True).content.decode()
    assert Entry.get(f"{evil}3", app).task == evil


def test_entries_are_paused_and_resumed_from_the_list(app: Celery) -> None:
    operator = site.visitor("view", "pause", name="oli")
    for name in ("a", "b", "c"):
        entry(app, name)
    entry(app, "off", enabled=False)
    answer = operator.post(LIST, {"action": "pause", "_selected_action": ["a", "b", "gone"]}, follow=True)
    assert "Paused 2 entries." in words_of(answer)
    assert [Entry.get(name, app).state for name in "abc"] == ["paused", "paused", "scheduled"]
    assert Entry.get("a", app).paused_by == "oli"
    operator.post(LIST, {"action": "resume", "_selected_action": ["a", "c", "off"]}, follow=True)
    states = [Entry.get(name, app).state for name in ("a", "off")]
    assert states == ["scheduled", "disabled"], "to enable one takes the permission to change entries"
    operator.post(f"{LIST}c/action/pause/", {"note": "holidays", "until": "2h"})
    stored = Entry.get("c", app)
    assert (stored.pause_note, stored.paused_until is None) == ("holidays", False)
    assert ("oli", "a") in logged(2)


def test_run_now_asks_first_and_sends_one_run_when_repeated(
    app: Celery, admin: Any, broker: redis.Redis
) -> None:
    entry(app)
    question = admin.post(LIST, {"action": "run_now", "_selected_action": "report"})
    assert question.status_code == 200
    assert sent_names(broker) == []
    fields = form_fields(question.content.decode())
    for _ in range(2):
        answer = admin.post(LIST, fields, follow=True)
        assert "Sent a run of report." in words_of(answer)
    assert len(sent_names(broker)) == 1


def test_task_outside_redbeat_web_tasks_is_neither_run_nor_scheduled(
    app: Celery, admin: Any, broker: redis.Redis
) -> None:
    app.conf.redbeat_web_tasks = ["mails.*"]
    entry(app)
    answer = admin.post(LIST, {"action": "run_now", "_selected_action": "report", "post": "yes"}, follow=True)
    assert "The task 'echo' isn't one of redbeat_web_tasks" in words_of(answer)
    assert sent_names(broker) == []
    fields = form_of(admin.get(f"{LIST}add/"))
    answer = admin.post(f"{LIST}add/", {**fields, "name": "new", "task": "echo"})
    assert answer.context["adminform"].form.errors["task"]
    assert Entry.count(app) == 1


def test_delete_asks_first_and_deletes_only_what_was_seen(app: Celery, admin: Any) -> None:
    entry(app)
    url = f"{LIST}report/delete/"
    fields = form_fields(admin.get(url).content.decode())
    entry(app, args=["changed meanwhile"])
    answer = admin.post(url, fields)
    assert answer.status_code == 412
    assert "somebody else has changed it meanwhile" in words_of(answer)
    assert Entry.count(app) == 1
    answer = admin.post(url, form_fields(answer.content.decode()), follow=True)
    assert "Deleted 1 entry." in words_of(answer)
    assert Entry.count(app) == 0
    assert logged(3)[0][1] == "report"


FORM = {
    "name": "new", "task": "echo", "schedule_kind": "cron", "schedule": "0 9 * * *", "args": '["done"]',
    "state": "runs",
}  # fmt: skip
#: what one does: the permissions of which any suffices, the address, and what is sent
DEEDS: dict[str, tuple[tuple[str, ...], str, dict[str, str] | None]] = {
    "list": (("view", "change"), "", None),
    "see": (("view", "change"), "report/change/", None),
    "history": (("view", "change"), "report/history/", None),
    "dashboard": (("view", "change"), "dashboard/", None),
    "add": (("add",), "add/", FORM),
    "change": (("change",), "report/change/", FORM),
    "pause": (("change", "pause"), "report/action/pause/", {"post": "yes"}),
    "run": (("change", "run"), "report/action/run_now/", {"post": "yes"}),
    "delete": (("delete",), "report/delete/", {"post": "yes"}),
}


@pytest.mark.parametrize("permission", ["view", "add", "change", "delete", "pause", "run", None])
def test_deed_takes_its_permission(app: Celery, broker: redis.Redis, permission: str | None) -> None:
    browser = site.visitor(*([permission] if permission else []))
    for deed, (sufficient, path, sent) in DEEDS.items():
        Entry.delete_many(["report", "new"], app)
        entry(app)
        broker.flushdb()
        answer = browser.get(LIST + path) if sent is None else browser.post(LIST + path, sent)
        is_done = permission in sufficient
        assert (answer.status_code < 400) == is_done, deed
        found = {one.name: one for one in Entry.list(app)}
        assert ("new" in found) == (is_done and deed == "add")
        assert ("report" in found) != (is_done and deed == "delete")
        assert bool(sent_names(broker)) == (is_done and deed == "run")
        if "report" in found:
            assert (found["report"].state == "paused") == (is_done and deed == "pause")
            assert (found["report"].args == ["done"]) == (is_done and deed == "change")


def test_user_outside_the_staff_is_asked_to_log_in(app: Celery) -> None:
    customer = site.Client()
    customer.force_login(site.User.objects.create(username="customer", is_superuser=True, is_staff=False))
    entry(app)
    for browser in (site.Client(), customer):
        for path in ("", "add/", "report/change/", "report/delete/", "report/action/pause/", "dashboard/"):
            answer = browser.get(f"{LIST}{path}")
            assert answer.status_code == 302
            assert answer.headers["Location"].startswith("/admin/login/?next=")
        assert browser.post(LIST, {"action": "pause", "_selected_action": "report"}).status_code == 302
    assert Entry.get("report", app).state == "scheduled"


def test_form_without_csrf_token_changes_nothing(app: Celery) -> None:
    browser = site.visitor(is_superuser=True, enforce_csrf_checks=True)
    entry(app)
    for path in ("", "add/", "report/change/", "report/delete/", "report/action/pause/"):
        fields = {"action": "pause", "_selected_action": "report", "post": "yes", "args": "[2]"}
        assert browser.post(f"{LIST}{path}", fields).status_code == 403
    assert (Entry.get("report", app).state, Entry.get("report", app).args) == ("scheduled", None)


def test_addresses_below_a_prefix_have_it(app: Celery, admin: Any, request: pytest.FixtureRequest) -> None:
    entry(app)
    import httpx
    from django.core.wsgi import get_wsgi_application
    from django.urls import clear_script_prefix

    served = httpx.WSGITransport(app=get_wsgi_application(), script_name="/intranet")
    browser = httpx.Client(transport=served, base_url="http://localhost")
    browser.cookies.set("sessionid", admin.cookies["sessionid"].value)
    request.addfinalizer(clear_script_prefix)  # which the thread keeps
    for path in ("", "report/change/", "report/delete/", "dashboard/entries"):
        answer = browser.get(f"{LIST}{path}")
        assert answer.status_code == 200
        found = re.findall(r'(?:href|action)="(/[^"]*)"', answer.text)
        assert found
        assert [url for url in found if not url.startswith(("/intranet", "/static/"))] == []


def test_page_without_redis_says_so_and_keeps_what_was_typed(app: Celery, admin: Any, make_app: Any) -> None:
    entry(app)
    fields = form_of(admin.get(change_url("report")))
    away = make_app(
        redbeat_redis_url="redis://:s3cret@127.0.0.1:1/0", redbeat_redis_options={"retry_period": -1}
    )
    with override_settings(REDBEAT_CELERY_APP=away):
        for path in ("", "report/change/", "report/history/", "report/delete/", "report/action/pause/"):
            answer = admin.get(f"{LIST}{path}")
            assert (answer.status_code, "s3cret" in words_of(answer)) == (503, False), path
        answer = admin.post(change_url("report"), {**fields, "args": '["typed"]'})
        assert answer.status_code == 503
        assert "typed" in form_of(answer)["args"]
        assert admin.get(f"{LIST}add/").status_code == 200
        assert admin.get("/admin/").status_code == 200
        assert admin.get(f"{LIST}dashboard/").status_code == 503


def test_dashboard_in_the_admin_allows_what_the_permissions_allow(app: Celery) -> None:
    entry(app)
    dashboard = f"{LIST}dashboard"
    looking, browser = site.visitor("view"), site.visitor("view", "change", name="chris")
    assert "/entry/edit" not in looking.get(f"{dashboard}/entry?name=report").content.decode()
    assert looking.get(f"{dashboard}/entry/pause?name=report").status_code == 403
    assert "entry/new" not in browser.get(f"{dashboard}/entries").content.decode()
    assert browser.get(f"{dashboard}/entry/new").status_code == 403
    fields = form_fields(browser.get(f"{dashboard}/entry/edit?name=report").content.decode(), "entry-form")
    typed = {**fields, "entry": "", "base": "", "revision": "", "name": "new", "task": "echo"}
    assert browser.post(f"{dashboard}/entry/save", typed).status_code == 403
    file = json.dumps({"owner": "me", "entries": {"new": {"task": "echo", "schedule": {"every": 60}}}})
    planned = {"csrf_token": fields["csrf_token"], "text": file, "owner": "me"}
    assert browser.post(f"{dashboard}/files/apply", planned).status_code >= 400
    assert [one.name for one in Entry.list(app)] == ["report"]
    assert browser.post(f"{dashboard}/entry/save", {**fields, "args": "[2]"}).status_code == 303
    assert Entry.get("report", app).args == [2]
    [record] = find_records(app)
    assert (record.user, record.source) == ("chris", "web")


def test_overridden_permission_counts_for_actions_and_the_dashboard(
    app: Celery, admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site.EntryAdmin, "has_change_permission", lambda self, request, obj=None: False)
    monkeypatch.setattr(site.EntryAdmin, "has_delete_permission", lambda self, request, obj=None: False)
    entry(app)
    assert admin.get(f"{LIST}report/delete/").status_code == 403
    chosen = {"action": "delete_selected", "_selected_action": "report", "post": "yes"}
    assert admin.post(LIST, chosen).status_code == 403
    assert admin.get(f"{LIST}dashboard/entry/delete?name=report").status_code == 403
    assert admin.get(f"{LIST}dashboard/entry/edit?name=report").status_code == 403
    assert Entry.count(app) == 1


def test_model_has_no_table_and_nothing_to_migrate(app: Celery) -> None:
    import io

    from django.db import connection

    from redbeat.contrib.django.models import Entry as Model

    assert "redbeat_entry" not in connection.introspection.table_names()
    site.call_command("makemigrations", check=True, dry_run=True, verbosity=0)
    for whole in (False, True):
        out = io.StringIO()
        site.call_command("dumpdata", "redbeat", use_base_manager=whole, stdout=out)
        assert json.loads(out.getvalue()) == []
    assert list(Model.objects.all()) == []
    found = site.Permission.objects.filter(content_type__app_label="redbeat").values_list(
        "codename", flat=True
    )
    assert {*found} == {f"{one}_entry" for one in ("view", "add", "change", "delete", "pause", "run")}


def test_entry_is_paused_in_a_browser_on_accessible_pages(app: Celery, admin: Any, page: Any) -> None:
    from django.contrib.staticfiles.handlers import StaticFilesHandler
    from django.core.wsgi import get_wsgi_application

    from tests.support.browser import axe

    entry(app)
    # that everything has a name; colours and sizes are the admin's own
    rules = ("label", "select-name", "image-alt", "button-name", "link-name", "aria-hidden-focus")
    served = StaticFilesHandler(get_wsgi_application())
    with override_settings(DEBUG=True), serving_wsgi(served) as url:
        session = admin.cookies["sessionid"].value
        page.context.add_cookies([{"name": "sessionid", "value": session, "url": url}])
        page.goto(f"{url}{LIST}")
        page.check("#action-toggle")
        page.select_option("select[name=action]", "pause")
        page.click("button[name=index]")
        assert Entry.get("report", app).state == "paused"
        assert axe(page, only=rules) == []
        page.click("text=report")
        assert axe(page, only=rules) == []
