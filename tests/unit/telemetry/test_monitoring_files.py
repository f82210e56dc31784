"""The dashboard and the alert rules of the documentation: they name metrics and commands that there are."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import yaml

from redbeat.cli import redbeat as commands
from redbeat.telemetry.metrics.table import METRICS

MONITORING = Path(__file__).parents[3] / "redbeat" / "telemetry" / "monitoring"
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text("utf-8"))
RULES = yaml.safe_load((MONITORING / "alerts.yml").read_text("utf-8"))["groups"][0]["rules"]

SHOWN = {
    f"{metric.name}{ending}"
    for metric in METRICS.values()
    for ending in {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}[
        metric.type
    ]
}


def targets() -> list[dict[str, Any]]:
    return [target for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]


def names_in(expr: str) -> set[str]:
    return set(re.findall(r"\bredbeat_\w+", expr))


def test_rules_and_dashboard_name_metrics_that_there_are() -> None:
    exprs = [*(target["expr"] for target in targets()), *(rule["expr"] for rule in RULES)]
    assert {name for expr in exprs for name in names_in(expr)} - SHOWN == set()


def test_the_dashboard_shows_each_metric() -> None:
    shown = {name for target in targets() for name in names_in(target["expr"])}
    counted_at = "redbeat_entries_counted_timestamp_seconds"
    missing = [
        name
        for name, metric in METRICS.items()
        if not shown & {metric.shown_name, f"{name}_bucket"} and name != counted_at
    ]
    assert missing == []


def test_the_dashboard_is_of_nobodys_installation() -> None:
    assert DASHBOARD["uid"] is None
    uids = set(re.findall(r'"uid": "([^"]*)"', json.dumps(DASHBOARD)))
    assert uids == {"${datasource}"}
    for target in targets():
        assert 'job="$job"' in target["expr"]


def test_no_panel_lies_over_another_one() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in DASHBOARD["panels"])
        for x, y in itertools.product(
            range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        )
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_each_panel_says_what_it_shows() -> None:
    for panel in DASHBOARD["panels"]:
        assert panel["type"] == "row" or panel["description"].endswith("."), panel["title"]


def test_each_alert_says_what_to_do_first_by_a_command_that_there_is() -> None:
    named = set()
    for rule in RULES:
        texts = rule["annotations"]
        assert texts["summary"].endswith(".")
        found = re.findall(r"`celery -A proj redbeat (\w+)", texts["description"])
        named |= set(found)
        assert found or "/healthz" in texts["description"] or "Start another" in texts["description"], rule[
            "alert"
        ]
        assert rule["labels"]["severity"] in ("critical", "warning")
    assert named <= set(commands.commands)


def test_each_alert_has_a_test_for_promtool() -> None:
    tests = (MONITORING / "alerts.test.yml").read_text("utf-8")
    assert [rule["alert"] for rule in RULES if f'ALERTS{{alertname="{rule["alert"]}"' not in tests] == []
