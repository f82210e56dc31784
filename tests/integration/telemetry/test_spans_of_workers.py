"""A real beat and a real worker: what the worker does is below the span of the run, in one trace."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.apps import celery_beat, celery_worker, patched_beat, stop_worker, write_app
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.schedule import write_burst, write_raw
from tests.support.servers import Server

RECIPE = Path(__file__).parents[3] / "docs" / "recipes" / "tracing.py"

#: takes the place of the exporter to a collector: a file, with a line for each span
TO_FILE = """
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

class OTLPSpanExporter(SpanExporter):
    def export(self, spans):
        with open("spans", "a") as file:
            file.write("".join(span.to_json(indent=None) + "\\n" for span in spans))
        return SpanExportResult.SUCCESS

    def shutdown(self):
        pass
"""

#: as in an application that instruments Celery in each process
IN_BEAT = """
@beat_init.connect
def instrument_beat(**kwargs):
    CeleryInstrumentor().instrument()
"""


def traced() -> str:
    """The module of the documentation, with another exporter."""
    lines = RECIPE.read_text().splitlines()
    kept = [line for line in lines if "opentelemetry.exporter" not in line]
    assert len(kept) == len(lines) - 1
    return "\n".join([*kept, TO_FILE, IN_BEAT])


@pytest.mark.few_cases(1)
@pytest.mark.parametrize(
    ("library", "kind"), [("", "rabbitmq"), ("gevent", "redis")], ids=["rabbitmq", "gevent-redis"]
)
def test_what_a_worker_does_is_below_the_span_of_the_run(
    tmp_path: Path,
    server: Server,
    client: redis.Redis,
    request: pytest.FixtureRequest,
    library: str,
    kind: str,
) -> None:
    broker = request.getfixturevalue("rabbitmq").url() if kind == "rabbitmq" else server.url(0)
    write_app(
        tmp_path, "module", broker, runs_url=server.url(0), extra=traced(), redbeat_redis_url=server.url(1)
    )
    names = write_burst(client, 100)
    write_raw(client, "later", schedule={"__type__": "interval", "every": 1})
    soon = {"OTEL_BSP_SCHEDULE_DELAY": "200"}
    worker = celery_worker(tmp_path, "module", env=soon)
    beat = patched_beat(tmp_path, "module", library) if library else celery_beat(tmp_path, "module", env=soon)
    try:
        eventually(lambda: len(spans_of(tmp_path, "run/echo")) >= len(names) + 2)
        beat.signal(signal.SIGTERM)
        assert beat.wait() == 0
    finally:
        beat.kill()
        stop_worker(worker)
    assert "beat: Messages: compiled." in beat.output()
    assert not has_traceback(beat.output()), beat.output()
    creates = {span["context"]["span_id"]: span for span in spans_of(tmp_path, "create")}
    works = spans_of(tmp_path, "run/echo")
    assert len(works) >= len(names) + 2
    for span in works:
        create = creates[span["parent_id"]]
        assert span["context"]["trace_id"] == create["context"]["trace_id"]
        # its name in older instrumentors
        own = {name.replace("message_id", "message.id"): one for name, one in span["attributes"].items()}
        assert own["messaging.message.id"] == create["attributes"]["messaging.message.id"]
        assert create["start_time"] <= create["end_time"]
    entries = [span["attributes"]["redbeat.entry"] for span in creates.values()]
    assert set(entries) == {*names, "later"}
    assert sorted(name for name in entries if name != "later") == sorted(names)
    linked = [link["context"]["span_id"] for span in spans_of(tmp_path, "send") for link in span["links"]]
    assert sorted(linked) == sorted(creates), "each run was sent once"
    assert not spans_of(tmp_path, "apply_async/echo"), "the instrumentor makes no second span"


def spans_of(directory: Path, word: str) -> list[dict[str, Any]]:
    """The spans written so far whose names begin with the word; the last one may be half written."""
    path = directory / "spans"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    spans = [json.loads(line) for line in lines if line.endswith("\n")]
    return [span for span in spans if span["name"].split()[0] == word]
