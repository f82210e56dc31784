"""The pages in Django's admin in a real browser: they work with the admin's own scripts, and read well."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry

pytest.importorskip("django")

#: that everything has a name; colours and sizes are the admin's own
NAMED = (
    "label",
    "select-name",
    "image-alt",
    "button-name",
    "link-name",
    "list",
    "listitem",
    "aria-hidden-focus",
)


@pytest.fixture
def site(app: Celery) -> Iterator[tuple[str, str]]:
    """The address of the list of entries, and the session of somebody who may do everything."""
    from django.contrib.staticfiles.handlers import StaticFilesHandler
    from django.core.wsgi import get_wsgi_application
    from django.test import override_settings

    from tests.support.dashboards import serving_wsgi
    from tests.support.django_site import LIST, visitor

    session = visitor(is_superuser=True).cookies["sessionid"].value
    served = StaticFilesHandler(get_wsgi_application())
    with override_settings(DEBUG=True), serving_wsgi(served) as url:
        yield f"{url}{LIST}", session


def test_entries_are_chosen_paused_and_changed_in_a_browser(
    app: Celery, site: tuple[str, str], page: Any
) -> None:
    from tests.support.browser import axe

    url, session = site
    for name in ("report", "backup"):
        Entry(name, "echo", "0 9 * * *", app=app).save()
    page.context.add_cookies([{"name": "sessionid", "value": session, "url": url.partition("/admin")[0]}])
    page.goto(url)
    page.check("#action-toggle")
    assert page.inner_text(".action-counter") == "2 of 2 selected"
    page.select_option("select[name=action]", "pause")
    page.click("button[name=index]")
    assert "Paused 2 entries." in page.inner_text(".messagelist")
    assert Entry.get("report", app).state == "paused"
    assert axe(page, only=NAMED) == []
    page.click("text=report")
    assert axe(page, only=NAMED) == []
    page.fill("#id_schedule", "61 * * * *")
    page.click("input[name=_save]")
    assert "'61' is no number from 0 to 59" in page.inner_text(".errorlist")
    page.fill("#id_schedule", "30 7 * * *")
    page.click("input[name=_continue]")
    assert "Changed report." in page.inner_text(".messagelist")
    assert Entry.get("report", app).describe() == "At 07:30 (Europe/Berlin)"
    page.click("text=Run now")
    assert axe(page, only=NAMED) == []
    page.goto(f"{url}dashboard/entries")
    assert page.locator("text=backup").count()
