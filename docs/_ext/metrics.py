"""Directives that write the tables of metrics and of alerts, from ``redbeat`` and from the rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml
from docutils import nodes
from docutils.statemachine import StringList
from events import describe_table
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import redbeat.store.figures
import redbeat.telemetry
import redbeat.telemetry.metrics
from redbeat.history import ENDED_OUTCOMES, OUTCOMES
from redbeat.store.figures import REASONS, WORDS
from redbeat.telemetry.metrics import OF_BEAT, OF_SCHEDULE, Metric

ALERTS = Path(redbeat.telemetry.__file__).parent / "monitoring" / "alerts.yml"
SOURCES = (str(redbeat.telemetry.metrics.__file__), str(redbeat.store.figures.__file__), str(ALERTS))


def describe_metrics(metrics: Iterable[Metric]) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("Metric", "Type", "Labels", "What it says")]
    for metric in metrics:
        labels = ", ".join(f"``{label}``" for label in metric.labels)
        rows.append((f"``{metric.shown_name}``", metric.type, labels, metric.doc))
    yield from describe_table("32 10 16 42", rows)


def describe_words() -> Iterator[str]:
    outcomes = dict.fromkeys(outcome for outcome, _ in WORDS.values())
    texts = {**OUTCOMES, "sent": "its message is on its queue"}
    for title, words in (
        (
            "``outcome`` when it is due",
            {name: texts[name] for name in outcomes if name not in ENDED_OUTCOMES},
        ),
        ("``reason`` of ``skipped``", REASONS),
        ("``outcome`` when it is over", ENDED_OUTCOMES),
    ):
        rows = [(f"``{word}``", f"{text}.") for word, text in words.items()]
        yield from describe_table("30 70", [(title, ""), *rows])


def describe_alerts() -> Iterator[str]:
    rows = [("Alert", "Severity", "It says")]
    for rule in yaml.safe_load(ALERTS.read_text("utf-8"))["groups"][0]["rules"]:
        summary = rule["annotations"]["summary"].replace("{{ $labels.entry }}", "…")
        rows.append((f"``{rule['alert']}``", rule["labels"]["severity"], summary))
    yield from describe_table("40 16 44", rows)


class Tables(SphinxDirective):
    """``.. redbeat-metrics:: schedule``, ``beat``, ``words`` or ``alerts``."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        for source in SOURCES:
            self.env.note_dependency(source)
        lines = {
            "schedule": lambda: describe_metrics(OF_SCHEDULE),
            "beat": lambda: describe_metrics(OF_BEAT),
            "words": describe_words,
            "alerts": describe_alerts,
        }[self.arguments[0]]()
        node = nodes.container()
        self.state.nested_parse(StringList(list(lines), SOURCES[0]), self.content_offset, node)
        return node.children


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("redbeat-metrics", Tables)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
