"""Files are applied while a beat sends their entries: no run is lost, doubled or counted back."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
import redis

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.manifest.format import Declared
from redbeat.manifest.plan import apply_plan, make_plan
from tests.conftest import MakeApp
from tests.integration.conftest import MakeScheduler
from tests.support.schedule import messages


@pytest.mark.parametrize("settings", [{}, {"redbeat_lock_key": None}], ids=["lock", "no-lock"])
def test_runs_go_on_and_are_counted_while_files_are_applied(
    make_app: MakeApp,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    settings: dict[str, None],
) -> None:
    app = make_app(**settings)

    def declared(round_: int) -> Declared:
        entry = {"task": "echo", "schedule": {"every": 0.05}, "kwargs": {"round": round_}}
        return Declared(entries={f"entry-{number}": entry for number in range(20)})

    apply_plan(lambda: make_plan(app, declared(0), "billing"))
    scheduler = make_scheduler(**settings)
    failures: list[BaseException] = []
    is_over = threading.Event()

    def apply_often() -> None:
        try:
            for round_ in range(1, 30):
                apply_plan(lambda round_=round_: make_plan(app, declared(round_), "billing"))  # type: ignore[misc]
        except BaseException as exc:  # noqa: BLE001 - it is shown by the test
            failures.append(exc)
        finally:
            is_over.set()

    thread = threading.Thread(target=apply_often)
    thread.start()
    while not is_over.wait(0.01):
        scheduler.tick()
    thread.join()
    assert failures == []
    while len(messages(broker)) <= 20:  # the files were quick; a test that hangs has a time limit of its own
        scheduler.tick()
    sent = [message["headers"] for message in messages(broker)]
    assert len({headers["id"] for headers in sent}) == len(sent)
    counts = Counter(headers["redbeat_entry"] for headers in sent)
    for number in range(20):
        entry = Entry.get(f"entry-{number}", app)
        assert entry.kwargs == {"round": 29}
        assert entry.total_run_count == counts[f"entry-{number}"]
