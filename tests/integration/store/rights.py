"""What each documented ACL user must be able to do, as claims.

A claim is a function of a Ground. It needs nothing but its user's rights, and all claims of a user together
need all of them.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from subprocess import PIPE
from typing import Any
from urllib.parse import quote

import kombu
import pytest
import redis
from celery import Celery
from kombu.transport.redis import Channel

from redbeat import RedBeatScheduler, later
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.config.timing import Timing
from redbeat.entries.audit import audited, find_records
from redbeat.entries.runs import Last, find_runs, read_last
from redbeat.errors import EntryBusy, StoreCorrupt
from redbeat.keys import Keys
from redbeat.leadership.heartbeat import Heartbeat
from redbeat.leadership.leadership import Leadership
from redbeat.leadership.lock import LeaderLock
from redbeat.leadership.membership import Membership
from redbeat.leadership.status import read_status
from redbeat.manifest.plan import apply_plan
from redbeat.manifest.transfer import export_entries, plan_import
from redbeat.schedulers import get_redis
from redbeat.store.beats import leave_beats, note_beat
from redbeat.store.events import add_events, note_told, read_events, read_last_ids
from redbeat.store.figures import Labels
from redbeat.store.later import LaterStore
from redbeat.store.layouts import locate_entries, read_layout
from redbeat.store.lock_tokens import beat_of, new_token
from redbeat.store.members import count_members, first_members
from redbeat.store.notifier import WakeChannel
from redbeat.store.records import Fence
from redbeat.store.runs import Answer, Delivery, End, Runs
from redbeat.store.schedule import read_head
from redbeat.store.store import Store
from redbeat.store.tokens import add_token, revoke_tokens
from redbeat.store.vitals import read_vitals
from redbeat.telemetry.gathering import Gathering, View
from redbeat.telemetry.labels import LabelBook, queue_finder
from redbeat.web import asgi_app
from tests.integration.web.dashboard_walk import call_operations, fill, open_pages, send_forms
from tests.support.applying import apply
from tests.support.command_line import call
from tests.support.dashboards import Browser, dashboard_of
from tests.support.polling import eventually
from tests.support.programs import Program
from tests.support.progress import Progress
from tests.support.schedule import LOCK, SCHEDULE, write_raw
from tests.support.servers import Server
from tests.support.stored import make_late, store
from tests.support.ticks import leader, memory_app, take_messages

RECIPES = Path(__file__).parents[3] / "docs" / "recipes"
EPOCH = datetime(2026, 1, 1, tzinfo=timezone.utc)
PASSWORD = "p@ss:w/rd#%"
#: what the doctor of a dashboard asks for, and does without
OF_THE_DOCTOR = ("config|get", "config", "{redbeat:0}::generation")


@dataclass(frozen=True)
class Ground:
    """A server on which `user` has rights, and an administrator's client of database 0."""

    server: Server
    admin: redis.Redis
    user: str

    def app(self, user: str = "", database: int = 0, **settings: Any) -> Celery:
        """An app that connects as the user, or as another one; ``user="default"``: as one with all rights."""
        options = {} if user == "default" else {"username": user or self.user, "password": PASSWORD}
        settings |= {"redbeat_redis_url": self.server.url(database), "redbeat_redis_options": options}
        return memory_app(**settings)

    def of(self, user: str) -> Ground:
        """The same server, for another user."""
        return Ground(self.server, self.admin, user)

    def let(self, rights: list[str], user: str = "") -> None:
        """Let a user have these rights, and no others; what was refused so far is forgotten."""
        self.admin.execute_command("ACL SETUSER", user or self.user, "reset", "on", f">{PASSWORD}", *rights)
        self.admin.acl_log_reset()
        self.admin.script_flush()  # so that scripts must be sent again

    def save(self, name: str, schedule: Any = 60, **fields: Any) -> Entry:
        """Save an entry as one who has all rights."""
        return Entry(name, "tasks.report", schedule, app=self.app("default"), **fields).save()

    def progress(self) -> Progress:
        return Progress(self.app("default"), self.admin)

    def make_due(self, *names: str) -> None:
        """Let the entries be due since a second after the epoch."""
        self.admin.zadd(SCHEDULE, {f"redbeat:{name}": 1 for name in names})

    def refusals(self) -> list[tuple[str, str]]:
        """(user, what) of everything refused, except that a client may not introduce itself: it need not; nor
        need the doctor of a dashboard read the configuration, in which there are passwords, or look for the
        shards of a schedule that has none.
        """
        log: Any = self.admin.acl_log()
        entries = [(entry["username"], entry["object"]) for entry in log]
        return [
            (user, what)
            for user, what in entries
            if not what.startswith("client") and not (user.startswith("dashboard") and what in OF_THE_DOCTOR)
        ]


def run_twice(ground: Ground, **settings: Any) -> None:
    """A beat with these settings sends the run of `report`, twice."""
    app = ground.app("beat", **settings)
    with leader(app) as scheduler:
        for _ in range(2):
            ground.make_due("report")
            scheduler.tick()
    assert [message.entry for message in take_messages(app)] == ["report", "report"]


Claim = Callable[[Ground], None]


def documented_rights(user: str) -> list[str]:
    """The words of the documented user, from its name and password on."""
    line = " ".join((RECIPES / f"{user}.acl").read_text("utf-8").split())
    start = f"user {user.partition('_')[0]} on >secret "
    assert line.startswith(start)
    return line.removeprefix(start).split()


def refused_to(ground: Ground, user: str, command: str) -> None:
    """Make sure that the server refuses it, by itself and from a script."""
    client = get_redis(ground.app(user))
    with pytest.raises(redis.exceptions.NoPermissionError):
        client.execute_command(*command.split())
    with pytest.raises(redis.exceptions.ResponseError):
        client.eval(f"return redis.call({', '.join(map(repr, command.split()))})", 0)


def in_shards(user: str) -> list[str]:
    """The same words after the command that the documentation has for a schedule in shards."""
    text = (RECIPES.parent / "configuration.rst").read_text("utf-8")
    [command] = re.findall(r"^    \$ (sed -E .+) users\.acl$", text, re.MULTILINE)
    rule = " " + " ".join(documented_rights(user))
    return subprocess.run(shlex.split(command), input=rule, stdout=PIPE, text=True, check=True).stdout.split()


# -- a writer


def it_saves_moves_and_deletes(ground: Ground) -> None:
    app = ground.app()
    entry = Entry("report", "tasks.report", 60, app=app).save()
    entry.save()
    entry.reschedule()
    next(entry)
    assert entry.rank == 0
    entry.delete()


def it_changes_and_runs_by_name(ground: Ground) -> None:
    app, now = ground.app(), datetime.now(timezone.utc)
    entry = Entry("report", "tasks.report", 60, app=app).save()
    entry.update(args=[1], jitter=5)
    entry.pause("broken", until=now + timedelta(days=1))
    entry.resume()
    entry.trigger()
    entry.backfill(now - timedelta(minutes=3), now)
    assert len(entry.history()) >= 3
    assert [found.name for found in Entry.list(app, match="re*")] == ["report"]
    Entry.get("report", app).delete()
    assert not ground.admin.keys("*:report")


def it_works_in_another_database(ground: Ground) -> None:
    Entry("report", "tasks.report", 60, app=ground.app(database=3)).save().delete()


def it_saves_and_deletes_many(ground: Ground) -> None:
    app = ground.app()
    for args in ([], [1], [1]):
        Entry.save_many([Entry(name, "tasks.report", 60, args, app=app) for name in ("a", "b")])
    assert Entry.delete_many(["a", "b", "c"], app) == 2
    Entry("c", "tasks.report", 60, app=app).save()
    assert Entry.clear(app) == 1


def it_keeps_calendars(ground: Ground) -> None:
    app = ground.app()
    Calendar("holidays", ["2026-12-25"], app=app).save()
    Entry("report", "tasks.report", 60, exclude="holidays", app=app).save()
    Calendar.load("holidays", app).save().delete()


def it_keeps_to_the_overlap_of_what_it_runs_by_hand(ground: Ground) -> None:
    app, progress = ground.app(), ground.progress()
    entry = Entry("alone", "tasks.report", 60, overlap="skip", app=app).save()
    for number in range(2):
        progress.end(progress.started("alone", f"{number}", 1000.0 + number), "failed")
    ground.admin.delete("redbeat::history:alone")  # so that only the list of failures knows them
    entry.rerun()
    with pytest.raises(EntryBusy):
        entry.trigger()
    ground.admin.delete("redbeat::running:alone")
    with pytest.raises(kombu.exceptions.EncodeError):
        entry.trigger(args=[object()])
    assert entry.running() == []
    assert len(entry.history()) == 1


def it_gives_up_runs(ground: Ground) -> None:
    app, progress = ground.app(), ground.progress()
    entry = Entry("stuck", "tasks.report", 60, overlap="buffer_one", app=app).save()
    progress.started("stuck", "one", overlap="buffer_one")
    progress.wait("stuck")
    assert [run.task_id for run in entry.give_up_runs(by="somebody")] == ["one"]
    assert entry.running() == []
    assert [run.error for run in entry.history()] == ["given up by somebody"]
    assert ground.admin.get("redbeat::failing:stuck") == "1"


def it_follows_the_recipes(ground: Ground) -> None:
    client = get_redis(ground.app())  # kept, as a client that is collected closes its connections
    with client.pipeline(transaction=True) as transaction:
        transaction.hset("redbeat:report", "definition", "{}")
        transaction.hset("redbeat:report", "policy", "{}")
        transaction.zadd(SCHEDULE, {"redbeat:report": 0})
        transaction.publish("redbeat::wake", "add")
        transaction.hget("redbeat:report", "definition")
        transaction.hdel("redbeat:report", "policy")
        transaction.lrange("redbeat::history:report", 0, -1)
        transaction.zrem(SCHEDULE, "redbeat:report")
        transaction.delete("redbeat:report", "redbeat::history:report", "redbeat::backfilled:report")
        transaction.execute()


def it_writes_down_who_changes_what(ground: Ground) -> None:
    app = ground.app()
    with audited(app, "ann", "cli", "delete", ["report"]):
        pass
    assert [record.user for record in find_records(app)] == ["ann"]


def it_stores_messages_and_takes_them_away(ground: Ground) -> None:
    app = ground.app(redbeat_durable_after=1)
    store(app, "one", "two")
    store(app, "soon", seconds=3)
    assert later.cancel(["one", "gone"], app) == ["one"]
    assert Entry.delete_many([":later:two"], app) == 1
    assert [one.task_id for one in LaterStore(app).first(None)] == ["soon"]


# -- all who write


def it_reads_the_layout(ground: Ground) -> None:
    ground.admin.hset("redbeat::layout", mapping={"shards": 0, "generation": 2, "former": 7})
    layout = read_layout(Store(ground.app()))
    assert (layout.shards, layout.generation) == (None, 2)


def _locate(ground: Ground, name: str, key: str = "", **options: Any) -> None:
    """Find what is still where it was before the schedule was sharded."""
    ground.admin.hset(key or Keys().entry(name), "definition", "{}")
    moving = {"shards": 7, "generation": 2, "former": 0, "state": "moving"}
    ground.admin.hset("redbeat::layout", mapping=moving)
    app = ground.app()
    store = Store(app)
    app.redbeat_conf.found_layout = read_layout(store)
    assert locate_entries(store, [name], **options) == [Keys().entry(name)]


def it_locates_entries_that_move(ground: Ground) -> None:
    _locate(ground, "report")


def it_locates_messages_that_move(ground: Ground) -> None:
    _locate(ground, ":later:one")


def it_locates_runs_of_entries_that_move(ground: Ground) -> None:
    _locate(ground, "report", Keys().about("report").running, of_runs=True)


# -- an application that stores messages


def it_stores_messages_of_any_kind(ground: Ground) -> None:
    app = ground.app(redbeat_durable_after=1)
    store(app, "json", "two")
    store(app, "pickled", args=[object], serializer="pickle")
    store(app, "soon", seconds=3)
    assert later.cancel(["json", "pickled", "gone"], app) == ["json", "pickled"]
    assert ground.admin.zcard(Keys().later) == 2
    assert not ground.admin.exists(Keys().message_body("pickled"))


def it_stores_messages_in_another_database(ground: Ground) -> None:
    store(app := ground.app(database=3), "one")
    assert later.cancel("one", app) == ["one"]


# -- a viewer


def it_looks_at_stored_messages(ground: Ground) -> None:
    store(ground.app("default"), "json")
    store(ground.app("default"), "pickled", args=[1], serializer="pickle", seconds=90_000)
    messages = LaterStore(ground.app())
    assert count_members(messages) == 2
    found = [one.texts for one in messages.first(None)]
    assert [bool(texts and texts.body) for texts in found] == [False, True]
    assert [one.task_id for one in messages.first(1, 1)] == ["pickled"]
    assert messages.find("pickled")


def it_applies_files_and_puts_a_schedule_back(ground: Ground) -> None:
    app, file = ground.app(), "{calendars: {holidays: {days: [2026-12-25]}}, entries: {%s}}"
    Entry("own", "tasks.report", 60, app=app).save().backfill(EPOCH, EPOCH + timedelta(minutes=2))
    apply(app, file % "report: {task: tasks.report, schedule: 60}, other: {task: t, schedule: 60}")
    apply(app, file % "report: {task: tasks.report, schedule: 90}", prune=True)
    exported = export_entries(app, with_history=True).declared
    assert exported.entries.keys() == {"own", "report"}
    assert Entry.clear(app) == 2
    assert apply_plan(lambda: plan_import(app, exported))
    assert len(Entry.get("own", app).history()) >= 2


def it_looks_at_entries(ground: Ground) -> None:
    Calendar("holidays", ["2026-12-25"], app=ground.app("default")).save()
    for name in ("other", "report"):
        entry = ground.save(name, exclude="holidays")
    entry.trigger()
    app = ground.app()
    assert Calendar.load("holidays", app)
    assert {entry.name for entry in Entry.list(app, state="scheduled")} == {"report", "other"}
    assert Entry.count(app) == 2
    found = Entry.get("report", app)
    assert [run.is_manual for run in found.history()] == [True]
    assert found.rank is not None
    assert found.next_runs(2)


def it_looks_at_last_outcomes(ground: Ground) -> None:
    entry, progress = ground.save("report"), ground.progress()
    progress.end(progress.started("report", "one"), "failed")
    assert read_last(ground.app(), [entry.key]) == [Last("failed", 1, ["failed"])]
    assert [run.task_id for run in find_runs(ground.app(), ["failed"])] == ["one"]


def it_looks_at_runs(ground: Ground) -> None:
    it_looks_at_last_outcomes(ground)
    ground.progress().started("report", "two")
    assert [run.task_id for run in find_runs(ground.app(), ["running", "failed"])] == ["two", "one"]
    found = Entry.get("report", ground.app())
    assert [run.task_id for run in found.runs()] == ["two", "one"]
    assert found.figures().runs == 1


def it_asks_who_leads(ground: Ground) -> None:
    probe = ground.app()
    assert RedBeatScheduler.leader(probe) is None
    with leader(ground.app("default")) as scheduler:
        write_raw(ground.admin, "entry")
        found = read_status(probe)
        assert found.leader is not None
        assert found.leader.token == scheduler.lock.token
        assert found.last_tick is not None
        assert found.backlog == 1
        assert not found.standbys
    ground.admin.hset(LOCK, "a", "b")
    with pytest.raises(StoreCorrupt, match="redbeat::lock"):
        RedBeatScheduler.leader(probe)


def it_asks_by_the_command(ground: Ground) -> None:
    with leader(ground.app("default")) as scheduler:
        scheduler.tick()
        done = call(ground.app(), "status")
    assert done.exit_code == 0, done.output


def it_counts_stored_messages(ground: Ground) -> None:
    store(ground.app("default"), "one", "two")
    make_late(ground.admin, "one", 5.0)
    found = read_status(ground.app())
    assert (found.stored_messages, found.overdue_messages) == (2, 1)
    assert found.oldest_message is not None


def it_asks_in_another_database(ground: Ground) -> None:
    assert read_status(ground.app(database=3)).backlog == 0


def it_sees_who_shares_the_shards(ground: Ground) -> None:
    assert read_status(ground.app()).beats == []


# -- a beat


def _it_runs_the_schedule(ground: Ground, **settings: Any) -> None:
    client, trusted = ground.admin, ground.app("default")
    settings |= {"redbeat_history": 2, "accept_content": ["json", "pickle"]}
    statics = {"old": {"task": "tasks.report", "schedule": 60}}
    with leader(ground.app(beat_schedule=statics, **settings)):
        pass
    Calendar("holidays", app=trusted).save()
    ground.save("report", exclude="holidays")
    ground.save("once", one_off=True, after_finish="delete")
    write_raw(client, "broken", "{oops")
    client.zadd(SCHEDULE, {"redbeat:gone": 1, "bare": 1})
    for task_id, options in (("json", {}), ("pickled", {"serializer": "pickle"})):
        store(trusted, task_id, **options)
        make_late(client, task_id, 5.0)
    app = ground.app(beat_schedule={"new": {"task": "tasks.report", "schedule": 60}}, **settings)
    channel = WakeChannel(get_redis(app), "redbeat::wake")
    assert not channel.wait(0.1), "it has subscribed now"
    with leader(app) as scheduler:
        assert channel.wait(2), "the statics wake others"
        for names in (["report", "new", "once"], ["report"]):
            ground.make_due(*names)
            scheduler.tick()
            read_head(scheduler.store).run()
        assert set(scheduler.schedule) <= {"report", "new"}
    channel.close()
    sent = [message.headers.get("redbeat_entry") for message in take_messages(app)]
    assert (sent.count("report"), sent.count("once")) == (2, 1)
    assert client.hexists("redbeat:broken", "error")
    assert not client.exists("redbeat:old")
    assert not client.keys("redbeat:*once") + client.keys("redbeat::later*") + client.keys("redbeat::body:*")
    assert client.llen("redbeat::history:report") == 2, "as many as are kept"


def it_runs_the_schedule(ground: Ground) -> None:
    _it_runs_the_schedule(ground)


def it_runs_the_schedule_without_a_lock(ground: Ground) -> None:
    _it_runs_the_schedule(ground, redbeat_lock_key=None)


def it_stands_by(ground: Ground) -> None:
    with leader(ground.app("default")):
        standby = LeaderLock(Store(ground.app()), LOCK, Timing(60))
        assert not standby.acquire()
        assert "holds" in standby.describe_holder()
        assert read_status(ground.app()).leader is not None


def it_says_that_it_is_there(ground: Ground) -> None:
    store, token = Store(ground.app()), new_token()
    found: list[frozenset[str]] = []
    store.ask(note_beat(store, token, 15, lambda beats, _generation: found.append(beats)))
    assert found == [{beat_of(token)}]
    leave_beats(store, token, [])


def it_tells_what_has_happened(ground: Ground) -> None:
    store, names, fence = Store(ground.app()), Keys(), Fence(LOCK, "x", 1000)
    ground.admin.set(LOCK, "x")
    read_events(store, {names: fence}, "teller")
    add_events(store, "entry_quarantined", [("report", {"reason": "it can't be read"})])
    for news in read_events(store, {names: fence}, "teller").values():
        assert [event.fields["entry"] for event in news.events] == ["report"]
        assert note_told(store, names, "teller", news.told, news.events[-1].id)
        assert read_events(store, {names: fence}, "teller")[names] == (news.events[-1].id, [])


def it_holds_back_runs(ground: Ground) -> None:
    names = ("skip", "buffer_one", "replace")
    for name in names:
        ground.save(name, 10**9, overlap=name)
    app = ground.app()
    with leader(app) as scheduler:
        for _ in range(2):
            ground.make_due(*names)
            scheduler.tick()
        ground.admin.delete(*(Keys().about(name).running for name in names))
        ground.admin.zadd(Keys().deadlines, {f"\0{Keys().about(name).running}": 1 for name in names})
        scheduler.tick()
    assert sorted(message.entry for message in take_messages(app)) == sorted(names)


def it_ends_runs_that_are_lost(ground: Ground, app: Celery | None = None) -> None:
    progress = ground.progress()
    progress.started("report", "one")
    progress.wait("report")
    beat = Progress(app or ground.app(), ground.admin)
    for _ in range(2):  # then it looks at the run that waits
        beat.settle(at=1e12)
    assert progress.deadline_of("report", "one") is None


def gathering_of(app: Celery) -> Gathering:
    """Return the part of a beat without a lock that gathers metrics."""
    timing = Timing(30)
    leadership = Leadership(
        Store(app), None, timing, Heartbeat(app, timing, Membership(app, timing), tuple), ""
    )
    return Gathering(app, lambda: (leadership,), LabelBook(queue_finder(app), 1), is_shown=True)


def view_of(gathering: Gathering) -> View | None:
    """What a beat shows of a schedule that isn't divided; None: nothing."""
    return next(iter(gathering.views), None)


def shown_by(gathering: Gathering) -> View:
    """What the beat shows that is known to show the schedule."""
    view = view_of(gathering)
    assert view is not None
    return view


def it_gathers_metrics(ground: Ground) -> None:
    names, now = Keys(), time.time()
    for name in ("report", "other"):
        ground.save(name)
        ground.admin.zadd(names.streaks, {names.about(name).running: 2})
        ground.admin.zadd(names.expected, {names.about(name).running: now - 5})
    ground.admin.set(names.about("report").failing, 2)
    ground.admin.hset(names.labels, Labels("t", "q", "gone").id, '["t", "q", "gone", false]')
    ground.admin.hset(names.figures, ":sent", 1)
    gathering = gathering_of(ground.app())
    gathering.book.id_of("report", "tasks.report", {}, is_asked=False)
    gathering.gather()
    view = shown_by(gathering)
    assert view.streaks == {"report": 2}
    assert view.states is not None
    assert view.states["scheduled"] == 2


# -- a worker that tracks runs


def track_runs_of_a_worker(ground: Ground, part: Keys) -> None:
    """Begin, renew and end runs of `report` as a worker does. One fails, is reported twice, one succeeds."""
    about, runs = part.about("report"), Runs(Store(ground.app()))
    run = {"due": "1.000000", "state": "sent", "sent": "2.000000", "pause": 1, "workflow": 1}
    for outcome, failures in (("failed", "1"), ("retrying", "1"), ("succeeded", None)):
        ground.admin.hset(about.running, mapping={"one": json.dumps(run), "": '{"due":"2.000000"}'})
        ground.admin.lpush(about.history, '{"at":2.0,"due":1.000000,"id":"one"}')
        delivery = Delivery("report", "one", "1.000000", f"of-{outcome}", "celery@test", overlap="skip")
        assert runs.begin(delivery, 30_000).answer is Answer.GO
        assert runs.leased(delivery)
        assert runs.begin(delivery._replace(token="another"), 30_000).answer is Answer.BUSY
        assert runs.renew([(delivery, 1.0)], 30_000, "celery@test", '"pool":"prefork"') == {}
        child = delivery._replace(task_id="child", root="one", token=f"child-of-{outcome}")
        runs.note_child(child, "child")
        runs.begin(child, 30_000)
        for ended in ([End(child, "succeeded")], *[[End(delivery, outcome, "ValueError: no", 1.5)]] * 2):
            runs.end(ended)
        assert ground.admin.get(about.failing) == failures
    runs.forget_worker("celery@test")
    assert ground.admin.xlen(part.failures) == 1


def it_tracks_runs(ground: Ground) -> None:
    track_runs_of_a_worker(ground, Keys())


def it_tracks_runs_in_another_database(ground: Ground) -> None:
    runs = Runs(Store(ground.app(database=3)))
    # without a history the list of failures says whether this was told before
    runs.end([End(Delivery("report", "one", "1.000000", "token", "celery@test"), "failed")])


# -- a beat that writes the queues, too


def _send(ground: Ground, names: list[str], app: Celery, **options: Any) -> None:
    with leader(app) as scheduler:
        assert ". delivery -> exactly once" in scheduler.info
        for name in names:
            ground.save(name, 10**10, options=options)
            ground.make_due(name)
        scheduler.tick()


def it_delivers_exactly_once(ground: Ground) -> None:
    for database in (0, 3):
        app = ground.app(broker_url=ground.server.url(database), task_default_queue="celery")
        _send(ground, ["report"], app)
        _send(ground, ["urgent"], app, priority=9)
        assert {message.entry for message in take_messages(app)} == {"report", "urgent"}


def it_pushes_to_a_queue_that_expires(ground: Ground) -> None:
    queues = [kombu.Queue("celery"), kombu.Queue("celery-short", queue_arguments={"x-expires": 60_000})]
    app = ground.app(broker_url=_broker_url(ground), task_queues=queues, task_default_queue="celery")
    _send(ground, ["short"], app, queue="celery-short")
    if hasattr(Channel, "_get_queue_expire"):  # not in all versions of kombu
        assert ground.admin.pttl("celery-short") > 0


def it_takes_back_what_only_one_of_two_queues_got(ground: Ground) -> None:
    exchange = kombu.Exchange("both", type="direct")
    names = ("celery-a", "celery-b")
    queues = [kombu.Queue(name, exchange, routing_key="both") for name in names]
    app = ground.app(broker_url=_broker_url(ground), task_queues=queues, task_default_queue="celery")
    with ground.app("default", broker_url=ground.server.url(0)).connection_for_write() as connection:
        for queue in queues:
            queue(connection.default_channel).declare()
    with leader(app) as scheduler:
        options = {"exchange": "both", "routing_key": "both"}
        ground.save("both", 10**10, options=options)
        for broken in ("", *names):  # one of them is pushed to first
            ground.admin.delete(*names)
            if broken:
                ground.admin.hset(broken, "no", "list")
            ground.make_due("both")
            scheduler.tick()
            assert ground.admin.exists(*names) == (1 if broken else 2), "taken back"
    ground.admin.delete(*names)


def it_uses_the_broker_itself(ground: Ground) -> None:
    app = ground.app(broker_url=_broker_url(ground), task_default_queue="celery")
    _send(ground, ["report"], app)
    assert ground.admin.llen("celery") == 1
    ground.admin.delete("celery")
    Entry("direct", "tasks.report", 60, app=app).trigger()
    assert ground.admin.llen("celery") == 1


def _broker_url(ground: Ground) -> str:
    """Both users have rights on the queues; only one of them has all that kombu wants."""
    if ground.user == "beat_and_broker":
        return f"redis://beat_and_broker:{quote(PASSWORD, safe='')}@127.0.0.1:{ground.server.port}/0"
    return ground.server.url(0)


# -- a dashboard


def browser_of(ground: Ground) -> Browser:
    """Return a browser at a dashboard that has the user's rights in Redis."""
    return Browser(dashboard_of(ground.app(), read_only=ground.user.endswith("read_only")))


def program_of(ground: Ground) -> Program:
    return Program(ground.app(), token=add_token(Store(ground.app("default")), "ci", ["admin"], None)[1])


def look(ground: Ground, browser: Browser, path: str, words: str) -> str:
    """Open a page until it has these words, or the server has refused something."""

    def read() -> str | None:
        page = browser.read(path)
        assert not ground.refusals()
        return page if words in page else None

    return str(eventually(read, message=f"{path} doesn't show {words}", retry_on=()))


def it_shows_all_pages(ground: Ground) -> None:
    fill(ground.app("default"), ground.admin)
    browser = browser_of(ground)
    with leader(ground.app("default")) as scheduler:
        scheduler.tick()
        for path, answer in open_pages(browser):
            may_be = (200, 303, *([403] if ground.user.endswith("read_only") else []))
            assert answer.status_code in may_be or path == "/changing", (path, answer.text)
        told = look(ground, browser, "/doctor", "looked at")
        can_be_told = not ground.server.version.startswith("6.")  # which has no ACL DRYRUN
        assert ("may do less than beat" in told, "lacks rights" in told) == (can_be_told, False)
        for path, words in (
            ("/timeline", "hourly"),
            ("/calendars", 'data-label="Entries">1<'),
            ("/routes", "report"),
            ("/entries?state=paused", "other"),
            ("/entries?match=rep&outcome=failed", "report"),
            ("/entries?owner=billing", "Entries"),
            ("/runs?state=failed", "report"),
            ("/timeline?start=6h", "hourly"),
            ("/later/message?task_id=third", "x-python-serialize"),
        ):
            look(ground, browser, path, words)


def it_looks_for_news(ground: Ground) -> None:
    fill(ground.app("default"), ground.admin)
    store = Store(ground.app())
    assert any(read_last_ids(store))
    assert first_members(store, 1)
    assert sum(one.due for one in read_vitals(store, store.all_parts)) == 1


def it_shows_a_damaged_schedule(ground: Ground) -> None:
    ground.admin.hset("redbeat:broken", "definition", "{oops")
    ground.admin.zadd(Keys().schedule, {"redbeat:broken": 1, "redbeat:gone": 1})
    browser = browser_of(ground)
    for path in ("/entries", "/entry?name=broken", "/entry?name=gone", "/timeline", "/"):
        browser.read(path)
    look(ground, browser, "/doctor", "gone")


def it_lets_in_who_has_a_token(ground: Ground) -> None:
    token, text = add_token(Store(ground.app("default")), "deploy", ["read"], None, "anna")
    browser = Browser(asgi_app(ground.app()))
    assert browser.post("/login", token="rb_abcdefgh_" + "x" * 43).status_code == 401
    assert browser.post("/login", token=text).status_code == 303
    assert "deploy" in browser.read("/")
    assert Program(ground.app(), token=text).get("/entries")["entries"] == []
    revoke_tokens(Store(ground.app("default")), token.id)
    assert browser.get("/").status_code == 401


def it_answers_what_programs_ask(ground: Ground) -> None:
    fill(ground.app("default"), ground.admin)
    program = program_of(ground)
    for operation, answer in call_operations(program, ("GET",)):
        assert answer.status_code == 200, (operation.path, answer.text)
    for path in ("/entries", "/later"):  # and on from there
        program.get(program.get(path, limit=1)["next"])


def it_sends_all_forms(ground: Ground) -> None:
    fill(ground.app("default"), ground.admin)
    for path, answer in send_forms(browser_of(ground)):
        assert answer.status_code in (200, 303), (path, answer.text)
    left = {key for key in ground.admin.keys("redbeat*") if "later:first" in key or key.endswith(":extra")}
    assert left == set(), "what was deleted or revoked"


def it_does_what_programs_ask(ground: Ground) -> None:
    fill(ground.app("default"), ground.admin)
    names = Keys()  # what may be left of an entry that is gone
    ground.admin.sadd(names.statics, "past")
    ground.admin.sadd(names.static_owners, "proj\tpast")
    ground.admin.hset(names.downgraded, "redbeat:past", "1.0")
    program = program_of(ground)
    for operation, answer in call_operations(program, ("PUT", "PATCH", "DELETE")):
        assert answer.status_code < 300, (operation.path, answer.text)
    for _ in range(2):  # the second time it is found that it was sent
        asked: Any = program.ask("PUT", "/entries/report/trigger", {"args": [1]}, {"idempotency-key": "one"})
        assert asked.status_code == 200, asked.text
    assert later.cancel("third", ground.app()) == ["third"]  # its body is a key of its own
    assert not ground.admin.exists(names.message_body("third"))
    left = (names.about("past").history, names.statics, names.static_owners, names.downgraded)
    assert not ground.admin.exists(*left)


LOOKING = (
    it_shows_all_pages, it_looks_for_news, it_shows_a_damaged_schedule, it_lets_in_who_has_a_token,
    it_answers_what_programs_ask,
)  # fmt: skip
CHANGING = (it_sends_all_forms, it_does_what_programs_ask)


BEAT: tuple[Claim, ...] = (
    *(it_asks_in_another_database, it_runs_the_schedule, it_runs_the_schedule_without_a_lock),
    *(it_stands_by, it_tells_what_has_happened, it_ends_runs_that_are_lost, it_holds_back_runs),
    *(it_gathers_metrics, it_says_that_it_is_there),
)
STATUS: tuple[Claim, ...] = (
    *(it_asks_who_leads, it_asks_by_the_command, it_counts_stored_messages, it_asks_in_another_database),
    *(it_reads_the_layout, it_sees_who_shares_the_shards),
)
CHANGES: tuple[Claim, ...] = (
    *(it_works_in_another_database, it_saves_and_deletes_many, it_keeps_calendars),
    *(it_changes_and_runs_by_name, it_gives_up_runs, it_applies_files_and_puts_a_schedule_back),
    *(it_keeps_to_the_overlap_of_what_it_runs_by_hand, it_locates_entries_that_move),
)
QUEUES: tuple[Claim, ...] = (it_pushes_to_a_queue_that_expires, it_takes_back_what_only_one_of_two_queues_got)
#: user to what it may do
CLAIMS: dict[str, tuple[Claim, ...]] = {
    "writer": (
        *(*CHANGES, it_saves_moves_and_deletes, it_follows_the_recipes, it_looks_at_last_outcomes),
        *(it_writes_down_who_changes_what, it_stores_messages_and_takes_them_away, it_reads_the_layout),
    ),
    "later": (
        *(it_stores_messages_of_any_kind, it_stores_messages_in_another_database),
        *(it_reads_the_layout, it_locates_messages_that_move),
    ),
    "viewer": (
        *(it_looks_at_entries, it_looks_at_runs, it_looks_at_stored_messages),
        *(it_locates_entries_that_move, *STATUS),
    ),
    "status": STATUS,
    "worker": (
        *(it_tracks_runs, it_tracks_runs_in_another_database),
        *(it_reads_the_layout, it_locates_runs_of_entries_that_move),
    ),
    "dashboard": (*LOOKING, *CHANGING, *CHANGES),
    "dashboard_read_only": (*LOOKING, it_asks_in_another_database, it_locates_entries_that_move),
    "beat": BEAT,
    "beat_exactly_once": (*BEAT, it_delivers_exactly_once, *QUEUES),
    "beat_and_broker": (*BEAT, it_uses_the_broker_itself, *QUEUES),
}
