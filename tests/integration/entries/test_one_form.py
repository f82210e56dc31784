"""An entry says the same of itself however it was come by: read by name, listed, or just saved."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from click.testing import CliRunner

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.cli import redbeat
from redbeat.decoder import encode_meta
from redbeat.errors import EntryChanged
from tests.support.polling import eventually
from tests.support.schedule import SCHEDULE, field, monitoring, score_of, server_now, write_raw
from tests.support.servers import Server

UTC = timezone.utc
HOUR = timedelta(hours=1)
READ_ONLY = ("state", "next_due_at", "description", "error")


def documents(app: Celery, *command: str) -> dict[str, Any]:
    done = CliRunner().invoke(redbeat, [*command, "--json"], obj=SimpleNamespace(app=app, no_color=True))
    assert done.exit_code == 0, done.output
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def soon(client: redis.Redis, hours: float) -> datetime:
    return datetime.fromtimestamp(server_now(client), UTC) + hours * HOUR


def write_scheduled(app: Celery, client: redis.Redis) -> None:
    Entry("entry", "t", HOUR, args=[datetime(2026, 1, 1, tzinfo=UTC)], app=app).save()


def write_due(app: Celery, client: redis.Redis) -> None:
    write_raw(client, "entry", score=server_now(client) - 9.5)


def write_paused(app: Celery, client: redis.Redis) -> None:
    Entry("entry", "t", "*/5 * * * *", app=app).save().pause("repairs", until=soon(client, 5))


def write_disabled(app: Celery, client: redis.Redis) -> None:
    Entry("entry", "t", HOUR, enabled=False, app=app).save()


def write_finished(app: Celery, client: redis.Redis) -> None:
    Entry("entry", "t", "0 0 30 2 *", app=app).save()


def write_failing(app: Celery, client: redis.Redis) -> None:
    retry_at = f"{server_now(client) + 60:.6f}"
    failure = {"reason": "no way", "since": "", "definition_sha1": "", "attempts": 3, "due": "1.5"}
    write_raw(client, "entry", score=float(retry_at))
    client.hset("redbeat:entry", "error", json.dumps({**failure, "retry_at": retry_at}))


def write_by_2x(app: Celery, client: redis.Redis) -> None:
    now = server_now(client)
    meta = json.dumps(json.loads(encode_meta(datetime.fromtimestamp(int(now) - 60 + 0.75, UTC), 3)))
    write_raw(client, "entry", meta=meta, score=int(now) + 3540)


def write_by_its_bare_name(app: Celery, client: redis.Redis) -> None:
    write_raw(client, "entry", score=None)
    client.zadd(SCHEDULE, {"entry": server_now(client) + 60})


EVERY_STATE = pytest.mark.parametrize(
    "write",
    [
        write_scheduled,
        write_due,
        write_paused,
        write_disabled,
        write_finished,
        write_failing,
        write_by_2x,
        write_by_its_bare_name,
    ],
)


@EVERY_STATE
def test_get_from_key_list_and_the_command_line_say_the_same(
    app: Celery, client: redis.Redis, write: Callable[..., None]
) -> None:
    write(app, client)
    [listed] = Entry.list(app)
    form = listed.to_dict()
    assert form["state"] == listed.state != ""
    assert form["description"] == listed.description == listed.describe()
    assert Entry.get("entry", app).to_dict() == form
    assert Entry.from_key("redbeat:entry", app).to_dict() == form
    about_runs = {"last_outcome": None, "failures_in_a_row": 0}
    assert documents(app, "list") == {**form, **about_runs}
    shown = documents(app, "show", "entry")
    assert {name: shown[name] for name in form} == form
    if listed.state == "scheduled":
        assert shown["next_runs"][0] == form["next_due_at"]
    assert Entry.get("entry", app).state == listed.state
    assert Entry.get("entry", app).next_due_at == listed.next_due_at
    assert Entry.get("entry", app).error == listed.error


@EVERY_STATE
def test_a_form_and_what_show_prints_make_the_same_entry_again(
    app: Celery, client: redis.Redis, write: Callable[..., None]
) -> None:
    write(app, client)
    entry = Entry.get("entry", app)
    for form in (entry.to_dict(), documents(app, "show", "entry")):
        again = Entry.from_dict(form, app).to_dict()
        own = {name: value for name, value in entry.to_dict().items() if name not in READ_ONLY}
        assert {name: value for name, value in again.items() if name not in READ_ONLY} == own
        assert (again["state"], again["next_due_at"], again["error"]) == (None, None, None), "not stored"


def test_saving_and_changing_say_what_the_entry_is_from_then_on(app: Celery, client: redis.Redis) -> None:
    entry = Entry("entry", "t", HOUR, app=app)
    assert (entry.state, entry.next_due_at, entry.to_dict()["state"]) == (None, None, None)

    def same() -> None:
        assert entry.to_dict() == Entry.get("entry", app).to_dict()

    assert entry.save().state == "scheduled"
    same()
    entry.pause()
    assert (entry.state, entry.next_due_at) == ("paused", None)
    same()
    entry.pause(until=soon(client, 3))
    assert entry.next_due_at is not None
    assert entry.next_due_at >= soon(client, 2.9)
    same()
    entry.resume()
    assert entry.state == "scheduled"
    same()
    entry.reschedule(soon(client, 2))
    assert entry.next_due_at is not None
    assert entry.next_due_at >= soon(client, 2.9)
    same()
    entry.update(enabled=False)
    assert entry.state == "disabled"
    same()
    Entry.save_many([entry])
    assert entry.state == "disabled"
    entry.delete()
    assert entry.state is None


def test_rescheduling_does_not_hide_that_somebody_has_changed_the_entry(app: Celery) -> None:
    mine = Entry("entry", "t", HOUR, app=app).save()
    Entry.get("entry", app).update(args=[1])
    mine.reschedule()
    with pytest.raises(EntryChanged, match="somebody has changed it since"):
        mine.save(if_unchanged=True)


def test_reading_one_entry_is_one_round_trip(app: Celery, client: redis.Redis, server: Server) -> None:
    write_paused(app, client)
    Entry.get("entry", app)
    with monitoring(server) as commands:
        assert Entry.get("entry", app).to_dict()["state"] == "paused"
    assert [command.split()[0] for command in commands] == ["EVALSHA"]


def test_the_next_runs_of_all_have_a_paused_one_from_its_end_on(app: Celery, client: redis.Redis) -> None:
    Entry("often", "t", timedelta(minutes=50), app=app).save()
    write_paused(app, client)
    Entry("rests", "t", timedelta(minutes=1), app=app).save().pause()
    done = CliRunner().invoke(
        redbeat, ["next", "-n", "10", "--json"], obj=SimpleNamespace(app=app, no_color=True)
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {run["name"] for run in found} == {"often", "entry"}
    first = next(run for run in found if run["name"] == "entry")
    assert first["due"] == Entry.get("entry", app).to_dict()["next_due_at"]
    assert [run["due"] for run in found] == sorted(run["due"] for run in found)
    chart = documents(app, "timeline")
    rows = {row["name"]: row["runs"] for row in chart["entries"]}
    assert rows.keys() == {"often", "entry"}
    begin, step = datetime.fromisoformat(chart["begin"]), chart["column_seconds"]
    until = Entry.get("entry", app).paused_until
    assert until is not None
    before = int((until - begin).total_seconds() // step)
    assert not any(rows["entry"][:before])
    assert all(rows["entry"][before + 1 :])


def test_only_what_is_due_by_then_is_listed_and_a_pause_is_not(app: Celery, client: redis.Redis) -> None:
    write_paused(app, client)
    write_raw(client, "raw", score=server_now(client) + 60)
    paused = {"paused": True, "paused_until": soon(client, 5).isoformat()}
    write_raw(client, "raw-paused", score=server_now(client) + 60, enabled=False)
    client.hset("redbeat:raw-paused", "policy", json.dumps(paused))
    assert [entry.name for entry in Entry.list(app, due_before=soon(client, 4))] == ["raw"]


# -- and beat does it


def test_a_pause_is_seen_by_beat_whoever_has_written_it(
    scheduler: RedBeatScheduler, client: redis.Redis, app: Celery
) -> None:
    """Neither by hand nor from Python does the end of a pause wait for beat's look once a minute."""
    until = soon(client, 0) + timedelta(seconds=6)
    Entry("python", "t", 0.5, app=app).save().pause(until=until)
    write_raw(client, "raw", schedule={"__type__": "interval", "every": 0.5}, enabled=False, score=1.5)
    client.hset("redbeat:raw", "policy", json.dumps({"paused": True, "paused_until": until.isoformat()}))
    assert 0 <= (score_of(client, "python") or 0) - until.timestamp() < 0.5
    scheduler.tick()
    assert 0 <= (score_of(client, "raw") or 0) - until.timestamp() < 0.5
    assert field(client, "raw", "meta") is None, "nothing was sent"


def test_an_entry_of_every_half_second_goes_on_at_the_end_of_its_pause(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, app: Celery
) -> None:
    entry = Entry("entry", "t", 0.5, app=app).save()
    phase = (score_of(client, "entry") or 0) % 0.5
    until = soon(client, 0) + timedelta(seconds=2)
    entry.pause(until=until)

    def goes_on() -> bool:
        scheduler.tick()
        return bool(broker.llen("celery"))

    eventually(goes_on, timeout=30)
    message = json.loads(broker.lindex("celery", -1))
    due = datetime.fromisoformat(message["headers"]["redbeat_due"])
    assert timedelta() <= due - until < timedelta(seconds=0.5)
    assert due.timestamp() % 0.5 == pytest.approx(phase, abs=1e-5)
