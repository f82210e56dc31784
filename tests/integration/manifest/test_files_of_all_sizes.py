"""One step takes no more than the server takes as arguments."""

from __future__ import annotations

import pytest
import redis
from celery import Celery

from redbeat.errors import FileError
from redbeat.manifest import plan as plans
from redbeat.manifest.format import Declared
from redbeat.manifest.plan import commit, make_plan
from redbeat.manifest.transfer import plan_import
from redbeat.store.scripts.owners import Script
from tests.support.applying import apply, many


def test_the_arguments_are_counted_before_they_are_sent(
    app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(app, many(30))
    entry = {"task": "echo", "schedule": 60, "history": ["x"], "backfilled": ["y"]}
    declared = Declared("file", None, {f"new-{n}": entry for n in range(20)}, {"c": {"days": ["2030-01-01"]}})
    counts: list[int] = []
    call = Script.__call__

    def count(self: Script, called: redis.Redis, keys: list[str], args: list[str]) -> object:
        counts.append(len(keys) + len(args))
        return call(self, called, keys, args)

    for plan, least in (
        (make_plan(app, declared, "billing", prune=True), 20 * 12 + 30 * 14 + 8),
        (plan_import(app, declared), 20 * 20 + 8),
    ):
        with monkeypatch.context() as context:
            context.setattr(plans, "MAX_ARGUMENTS", least)
            plans.check_size(plan, declared)
            context.setattr(plans, "MAX_ARGUMENTS", least - 1)
            with pytest.raises(FileError, match=r"^file: one step can't store all of that"):
                plans.check_size(plan, declared)
        with monkeypatch.context() as context:
            context.setattr(Script, "__call__", count)
            commit(plan)
        assert least <= max(counts) <= least + 10
        client.flushdb()
        counts.clear()


def test_a_plan_that_removes_too_many_says_what_to_do(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    apply(app, many(30))
    monkeypatch.setattr(plans, "MAX_ARGUMENTS", 400)
    with pytest.raises(FileError, match="and remove 29 entries: split the file, or delete some of these"):
        make_plan(app, many(1), "billing", prune=True)
