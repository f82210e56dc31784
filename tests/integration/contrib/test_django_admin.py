"""The dashboard in Django's admin: who may open it, what they may do there, and what Django decides."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from typing import Any

import django
import httpx
import pytest
from celery import Celery
from django.conf import settings
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.db import connection
from django.test import override_settings
from django.urls import clear_script_prefix

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.contrib.django.models import Entry as Model
from redbeat.entries.audit import find_records
from tests.support import django_site as site
from tests.support.dashboards import serving, serving_wsgi
from tests.support.deadlines import patience
from tests.support.polling import eventually
from tests.support.programs import token_of

DASHBOARD = site.DASHBOARD
ORIGIN = "http://testserver"


@pytest.fixture
def admin(app: Celery) -> Any:
    """The browser of a superuser."""
    return site.visitor(is_superuser=True)


@pytest.fixture(autouse=True)
def report(app: Celery) -> Entry:
    """The entry of all tests."""
    return Entry("report", "echo", "0 9 * * *", app=app).save()


def token_in(answer: Any) -> str:
    """The token in the forms of a page."""
    [found] = re.findall(r"X-CSRF-Token[^:]*: (?:&#34;|\")([\w-]{43})", answer.content.decode())
    return str(found)


def post(browser: Any, path: str, **fields: str) -> Any:
    """The answer to a form of the dashboard."""
    token = token_in(browser.get(DASHBOARD))
    return browser.post(f"{DASHBOARD}{path}", {"csrf_token": token, "name": "report", **fields})


#: what a user may do: the page that offers it
PAGES = {
    "see": "entry?name=report",
    "pause": "entries/pause?name=report",
    "run": "entry/run?name=report",
    "edit": "entry/edit?name=report",
    "add": "entry/new",
    "delete": "entries/delete?name=report",
    "repair": "doctor/fix?kind=missing-hash",
}


@pytest.mark.parametrize(
    ("permissions", "allowed"),
    [
        ("", ""),
        ("view", "see"),
        ("change", "see pause run edit"),
        ("view add", "see"),
        ("view add change", "see pause run edit add"),
        ("view delete", "see delete"),
        ("view pause", "see pause"),
        ("view run", "see run"),
        ("add delete pause run", ""),
        ("view add change delete", "see pause run edit add delete"),
    ],
)
def test_permissions_decide_what_a_user_may_do(app: Celery, permissions: str, allowed: str) -> None:
    browser = site.visitor(*permissions.split())
    found = [deed for deed, path in PAGES.items() if browser.get(DASHBOARD + path).status_code != 403]
    assert found == allowed.split()


def test_superuser_may_do_everything_but_what_the_site_forbids(
    app: Celery, admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [admin.get(DASHBOARD + path).status_code for path in PAGES.values()] == [200] * len(PAGES)
    monkeypatch.setattr(site.EntryAdmin, "has_delete_permission", lambda self, request, obj=None: False)
    assert [deed for deed, path in PAGES.items() if admin.get(DASHBOARD + path).status_code == 403] == [
        "delete",
        "repair",
    ]


def test_index_of_the_admin_links_to_the_dashboard_and_the_form(app: Celery, admin: Any) -> None:
    index = admin.get("/admin/").content.decode()
    assert f'href="{DASHBOARD}"' in index
    assert f'href="{DASHBOARD}entry/new"' in index
    assert DASHBOARD not in site.visitor().get("/admin/").content.decode()
    assert "entry/new" not in site.visitor("view", "add").get("/admin/").content.decode()


def test_user_outside_the_staff_is_asked_to_log_in_by_django(app: Celery) -> None:
    customer = site.Client()
    customer.force_login(site.User.objects.create(username="customer", is_superuser=True, is_staff=False))
    for browser in (site.Client(), customer):
        for path in ("", *PAGES.values()):
            answer = browser.get(f"{DASHBOARD}{path}")
            assert (answer.status_code, answer["Location"][:19]) == (302, "/admin/login/?next=")
        assert browser.post(f"{DASHBOARD}entries/pause", {"name": "report"}).status_code == 302
        part = {"HX-Request": "true"}
        assert browser.get(f"{DASHBOARD}entries", headers=part).status_code == 401, "a part of an open page"
        assert browser.get(f"{DASHBOARD}static/redbeat.css").status_code == 200
        assert browser.get(f"{DASHBOARD}api/v1/entries").status_code == 401
    assert Entry.get("report", app).state == "scheduled"


def test_program_needs_a_token_and_no_session(app: Celery, admin: Any) -> None:
    token = {"Authorization": f"Bearer {token_of(app)}"}
    program = site.Client(headers=token, enforce_csrf_checks=True)
    assert admin.get(f"{DASHBOARD}api/v1/entries").status_code == 401
    middleware = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
    with override_settings(MIDDLEWARE=middleware if django.VERSION >= (5, 1) else middleware[:-1]):
        assert program.put(f"{DASHBOARD}api/v1/entries/report/pause").status_code == 200
    assert program.get(DASHBOARD).status_code == 302
    [record] = find_records(app)
    assert record.source == "api"


@pytest.mark.parametrize("path", ["login", "logout"])
def test_own_login_of_the_dashboard_is_unreachable(app: Celery, admin: Any, path: str) -> None:
    for browser in (admin, site.Client()):
        assert browser.get(f"{DASHBOARD}{path}").status_code == 404
        assert browser.post(f"{DASHBOARD}{path}", {"token": token_of(app)}).status_code == 404


def test_form_needs_the_token_of_the_dashboard_and_its_own_origin(app: Celery) -> None:
    browser = site.visitor("view", "change", name="chris", enforce_csrf_checks=True)
    foreign = {"csrf_token": token_in(browser.get(DASHBOARD)), "name": "report", "note": "no"}
    for fields, origin in (({"name": "report"}, ORIGIN), (foreign, "https://evil.example")):
        answer = browser.post(f"{DASHBOARD}entries/pause", fields, headers={"Origin": origin})
        assert (answer.status_code, Entry.get("report", app).state) == (403, "scheduled")
    assert post(browser, "entries/pause", note="holidays", confirmed="yes").status_code == 303
    paused = Entry.get("report", app)
    assert (paused.pause_note, paused.paused_by) == ("holidays", "chris")
    [record] = find_records(app)
    assert (record.user, record.source, record.host) == ("chris", "admin", "127.0.0.1")


def test_host_and_scheme_are_those_that_django_accepts(app: Celery, admin: Any) -> None:
    app.conf.redbeat_web_proxies = ["127.0.0.1"]
    said = {"X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "https", "X-Forwarded-Prefix": "/evil"}
    assert "evil" not in admin.get(DASHBOARD, headers=said).content.decode()
    fields = {"csrf_token": token_in(admin.get(DASHBOARD)), "name": "report"}
    said["Origin"] = "https://evil.example"
    assert admin.post(f"{DASHBOARD}entries/pause", fields, headers=said).status_code == 403
    with override_settings(ALLOWED_HOSTS=["ops.example.com"]):
        assert admin.get(DASHBOARD).status_code == 400
        assert admin.get(DASHBOARD, headers={"Host": "ops.example.com"}).status_code == 200


def _wsgi() -> Any:
    return serving_wsgi(get_wsgi_application())


def _asgi() -> Any:
    return serving(get_asgi_application())


@pytest.mark.parametrize("serve", [_wsgi, _asgi])
@pytest.mark.parametrize("prefix", ["", "/intranet"])
def test_dashboard_works_under_wsgi_and_asgi_below_a_prefix(
    admin: Any, app: Celery, serve: Callable[[], Any], prefix: str, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(clear_script_prefix)
    with override_settings(FORCE_SCRIPT_NAME=prefix or None), serve() as url:
        session = f"sessionid={admin.cookies['sessionid'].value}"
        browser = httpx.Client(base_url=url, timeout=patience(), headers={"cookie": session})
        page = browser.get(f"{DASHBOARD}entries")
        links = re.findall(r'(?:href|src|action|hx-get|hx-post)="(/[^"]*)"', page.text)
        assert links
        assert {one for one in links if not one.startswith(f"{prefix}{DASHBOARD}")} == {f"{prefix}/admin/"}
        assert "sse-connect" not in page.text, "pages poll, as a stream would hold a thread"
        style = next(one for one in links if "redbeat.css" in one)
        assert "text/css" in browser.get(style.removeprefix(prefix)).headers["content-type"]
        [token] = re.findall(r"X-CSRF-Token[^:]*: (?:&#34;|\")([\w-]{43})", page.text)
        [cookie] = [one for one in page.headers.get_list("set-cookie") if token in one]
        assert f"Path={prefix}{DASHBOARD.rstrip('/')};" in f"{cookie};"
        browser.headers["cookie"] = f"{session}; {cookie.partition(';')[0]}"
        fields = {"csrf_token": token, "name": "report", "note": "ä", "confirmed": "yes"}
        answer = browser.post(f"{DASHBOARD}entries/pause", data=fields)
        assert answer.status_code == 303, answer.text
        assert answer.headers["location"].startswith(f"{prefix}{DASHBOARD}")
    assert Entry.get("report", app).pause_note == "ä"


def test_admin_works_without_redis_and_the_dashboard_says_so(admin: Any, make_app: Any) -> None:
    away = make_app(
        redbeat_redis_url="redis://:s3cret@127.0.0.1:1/0", redbeat_redis_options={"retry_period": -1}
    )
    with override_settings(REDBEAT_CELERY_APP=away):
        answer = admin.get(DASHBOARD)
        assert (answer.status_code, b"s3cret" in answer.content) == (503, False)
        assert admin.get("/admin/").status_code == 200


def test_model_has_permissions_and_no_table(app: Celery) -> None:
    assert "redbeat_entry" not in connection.introspection.table_names()
    site.call_command("makemigrations", check=True, dry_run=True, verbosity=0)
    for whole in (False, True):
        out = io.StringIO()
        site.call_command("dumpdata", "redbeat", use_base_manager=whole, stdout=out)
        assert json.loads(out.getvalue()) == []
    assert list(Model.objects.all()) == []
    of_redbeat = site.Permission.objects.filter(content_type__app_label="redbeat")
    found = set(of_redbeat.values_list("codename", flat=True))
    assert found == {f"{one}_entry" for one in ("view", "add", "change", "delete", "pause", "run")}


def test_entry_is_paused_in_a_browser_that_came_from_the_index(app: Celery, admin: Any, page: Any) -> None:
    with override_settings(DEBUG=True), serving_wsgi(StaticFilesHandler(get_wsgi_application())) as url:
        session = admin.cookies["sessionid"].value
        page.context.add_cookies([{"name": "sessionid", "value": session, "url": url}])
        page.goto(f"{url}/admin/")
        page.click("text=Entries")
        page.click(".side nav >> text=Entries")
        page.click("main a:has-text('report')")
        page.click("main a:has-text('Pause')")
        page.fill("[name=note]", "from the admin")
        page.click("main button:has-text('Pause')")
        eventually(lambda: Entry.get("report", app).pause_note == "from the admin")
        page.goto(f"{url}{DASHBOARD}entries")
        Entry("another", "echo", 60, app=app).save()
        page.wait_for_selector("text=another")
