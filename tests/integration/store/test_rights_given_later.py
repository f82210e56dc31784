"""Rights are given under running programs: what was refused is asked for again, and of each client alone."""

from __future__ import annotations

import pytest

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.errors import EntryNotFound
from redbeat.keys import Keys
from redbeat.layout import Layout
from redbeat.reshard.resharding import Resharding
from tests.integration.store.test_rights_of_3_0 import RULES_OF_3_0
from tests.support.rights import Ground, in_shards

SHARDS = 4
DIVIDED = Layout(Keys(), SHARDS, 1).keys


@pytest.fixture
def old(ground: Ground) -> Ground:
    """The writer as 3.0 has described it: it may not look for a layout."""
    ground.let(RULES_OF_3_0["writer"].split(), "writer")
    return ground


def let_into_shards(ground: Ground) -> None:
    """Give the writer the rights for shards, as an administrator does: no program is told."""
    ground.admin.execute_command("ACL SETUSER", "writer", *in_shards("writer"))


def divide(ground: Ground, database: int = 0) -> None:
    Resharding(ground.app("default", database), SHARDS).run()


@pytest.fixture
def time_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was refused was refused some time ago."""
    for module in ("scripts.script", "layouts"):
        monkeypatch.setattr(f"redbeat.store.{module}.RIGHT_SECONDS", -60)


@pytest.mark.usefixtures("time_has_passed")
def test_a_program_that_is_given_the_rights_for_shards_as_it_runs_follows_a_division(old: Ground) -> None:
    app = old.app()
    Entry("before", "tasks.report", 60, app=app).save()
    with pytest.raises(EntryNotFound):
        Entry.get("missing", app)
    let_into_shards(old)
    divide(old)
    assert Entry.get("before", app).key == DIVIDED.entry("before")
    Entry("after", "tasks.report", 60, app=app).save()
    assert [*old.admin.scan_iter("*:after")] == [DIVIDED.entry("after")]


@pytest.mark.usefixtures("time_has_passed")
def test_one_that_only_saves_follows_it_too(old: Ground) -> None:
    app = old.app()
    Entry("before", "tasks.report", 60, app=app).save()
    let_into_shards(old)
    divide(old)
    Entry("after", "tasks.report", 60, app=app).save()
    assert [*old.admin.scan_iter("*:after")] == [DIVIDED.entry("after")]


def test_what_one_user_may_not_ask_for_another_one_of_the_same_process_asks_for_still(old: Ground) -> None:
    trusted = old.app("default", 3)
    Entry("before", "tasks.report", 60, app=trusted).save()
    Entry("before", "tasks.report", 60, app=old.app()).save()
    divide(old, 3)
    Entry("after", "tasks.report", 60, app=trusted).save()
    with old.server.client(db=3) as client:
        assert [*client.scan_iter("*:after")] == [DIVIDED.entry("after")]
