"""The overview of a schedule in shards: who leads each, and what the spread is."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.store.store import Store
from redbeat.web.live import News
from redbeat.web.threads import Threads
from tests.support.command_line import call
from tests.support.dashboards import Browser, dashboard_of
from tests.support.polling import eventually
from tests.support.shards import EVERY_PLACE, announce, app_in, lead, names_in_every_shard, parts_of
from tests.support.topologies import ClusterTopology

#: of the status: what follows from other fields, and what the command line's documentation describes
UNDESCRIBED = {"standbys", "last_tick_age_seconds", "oldest_due_age_seconds", "oldest_message_age_seconds"}
ANN, BOB = "ann:12:aabbccdd", "bob:7:aabbccde"


@pytest.fixture
def sharded(request: pytest.FixtureRequest, place: str) -> Celery:
    app = app_in(place, request)
    lead(app, parts_of(app)[:9], ANN)
    lead(app, parts_of(app)[9:], BOB)
    announce(app, ANN, BOB)
    return app


def rows_of(page: str) -> list[list[str]]:
    """The cells of the table of shards."""
    table = page.split("<h2>Shards</h2>")[1].split("</table>", maxsplit=1)[0]
    rows = re.findall(r"<tr>(.*?)</tr>", table.split("<tbody>")[1], re.DOTALL)
    cells = (re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in rows)
    return [[unescape(re.sub(r"<[^>]+>", "", cell)).strip() for cell in row] for row in cells]


@EVERY_PLACE
def test_it_shows_who_leads_each_shard(sharded: Celery, place: str) -> None:
    for name in names_in_every_shard(sharded):
        Entry(name, "tasks.report", 3600, app=sharded).save()
    browser = Browser(dashboard_of(sharded, ("read",)))
    page = browser.read("/")
    rows = rows_of(page)
    assert [row[:2] for row in rows] == [
        [str(shard), "ann, process 12" if shard < 9 else "bob, process 7"] for shard in range(16)
    ]
    assert {row[3] for row in rows} == {"1"}
    assert len(rows[0]) == (7 if place == "cluster" else 6)
    assert "each has a leader" in page
    assert "ann, process 12, leads 9; bob, process 7, leads 7" in page
    assert "Healthy" in page
    page = str(eventually(lambda: "16 of 16 counted" in (found := browser.read("/")) and found))
    part = parts_of(sharded)[5]
    Store(sharded).client.delete(part.lock, part.tick)
    page = browser.read("/")
    assert "No beat leads shard 5 of 16." in page
    assert "1 without a leader" in page
    assert rows_of(page)[5][1] == "none"


@pytest.mark.parametrize("place", ["cluster"])
def test_while_a_node_is_away_it_shows_the_other_shards_and_a_list_is_refused(
    sharded: Celery, cluster: ClusterTopology
) -> None:
    for node in cluster.nodes:
        with node.client() as client:
            client.config_set("cluster-require-full-coverage", "no")
    gone = next(node for node in cluster.nodes[1:] if node is not cluster.owner("{redbeat}"))
    store = Store(sharded)
    lost = [
        shard
        for shard, keys in enumerate(parts_of(sharded))
        if store.node_of(keys) == f"{gone.host}:{gone.port}"
    ]
    browser = Browser(dashboard_of(sharded, ("read",)))
    browser.read("/")
    gone.kill()
    try:
        page = unescape(browser.read("/"))
        refused = browser.get("/entries")
    finally:
        cluster.heal()
    assert [int(row[0]) for row in rows_of(page) if row[1] == "can't be read"] == lost
    assert f"{len(lost)} can't be read" in page
    assert refused.status_code == 503
    assert "can't be used" in unescape(refused.text)


@EVERY_PLACE
def test_pages_are_told_of_a_shard_that_another_beat_leads_from_now_on(sharded: Celery, place: str) -> None:
    threads: Any = Threads
    news = News(sharded, threads)
    mark: Any = news._mark  # noqa: SLF001 - what is compared every two seconds
    before = mark()
    assert mark() == before, place
    lead(sharded, parts_of(sharded)[3:4], BOB)
    assert mark() != before


@EVERY_PLACE
def test_the_api_tells_the_same_as_its_schema_says(sharded: Celery, place: str) -> None:
    token = call(sharded, "token", "add", "me", "--right", "read").output.split()[0]
    browser = Browser(dashboard_of(sharded))
    answer = browser.get("/api/v1/status", {"Authorization": f"Bearer {token}"})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    document = browser.get("/api/v1/openapi.json", {"Authorization": f"Bearer {token}"}).json()
    schema = document["components"]["schemas"]["Status"]
    assert set(schema["required"]) <= found.keys() <= schema["properties"].keys() | UNDESCRIBED, place
    row = schema["properties"]["shards"]["items"]
    assert set(row["required"]) <= found["shards"][0].keys() <= set(row["required"]) | UNDESCRIBED
