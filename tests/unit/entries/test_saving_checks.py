"""What a save refuses, as it couldn't be read again."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.entries.saving import plan_save
from redbeat.errors import EntryError
from redbeat.store.records import Stored
from tests.unit.entries.test_entry_due_times import NOON


@pytest.mark.parametrize("field", ["args", "kwargs"])
def test_definition_that_cannot_be_read_again_is_refused_also_beside_a_known_schedule(
    app: Celery, field: str
) -> None:
    broken: Any = {"__type__": "interval", "every": 0}
    fields = {field: [broken] if field == "args" else {"x": broken}}
    for given, is_refused in (({}, False), (fields, True), ({}, False)):
        entry = Entry("one", "t", 60, app=app)
        vars(entry).update(given)
        if is_refused:
            with pytest.raises(EntryError, match="one: "):
                plan_save(entry, Stored(entry.key), NOON)
        else:
            assert plan_save(entry, Stored(entry.key), NOON).definition
