"""What happens once, before the first tick: the banner, a look at the server, storing what is in the code.

That is the entries of ``beat_schedule``, those of ``@scheduled``, and Celery's own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime
from logging import ERROR
from types import SimpleNamespace
from typing import Any

from celery.backends.base import DisabledBackend
from celery.beat import Scheduler
from celery.utils.time import humanize_seconds

from redbeat.config.masking import sanitize_url
from redbeat.connection.client import find_given
from redbeat.declared.collection import collect_declared, load_tasks
from redbeat.delivery import guard
from redbeat.delivery.broker import Broker, describe_delivery
from redbeat.entries.bulk import save_entries
from redbeat.entries.entry import has_own_save
from redbeat.entries.loading import try_decode
from redbeat.entries.ownership import note_statics, plan_statics
from redbeat.entries.pauses import keep_pause
from redbeat.entries.saving import encode_entry
from redbeat.entries.validation import find_name_problem
from redbeat.errors import StoreRefused
from redbeat.log.events import ENTRY_NOT_STORED, STATIC_REMOVED
from redbeat.log.logger import logger
from redbeat.log.text import counted, joined, shorten
from redbeat.process.background import surviving
from redbeat.process.signals import let_through
from redbeat.scheduler.reports import Reports
from redbeat.scheduler.shard import Shard
from redbeat.store.downgrades import bring_back
from redbeat.store.entries import delete_entries
from redbeat.store.owners import read_owners, read_static_names
from redbeat.store.records import Stored, Write
from redbeat.store.rights import find_missing_rights
from redbeat.store.server import Server
from redbeat.store.store import Store

_LOOKED_UP = (
    "task_always_eager",
    "task_compression",
    "task_default_queue",
    "task_protocol",
    "task_send_sent_event",
    "task_repr_maxlevels",
    "task_serializer",
    "beat_cron_starting_deadline",
    "broker_pool_acquire_timeout",
)


def check_rights(store: Store) -> None:
    """Check that the schedule's user has the rights that beat needs, as far as the server tells.

    Raises:
        StoreRefused: it lacks some.
    """
    missing = find_missing_rights(store)
    if missing:
        config, user = store.config, Server(store).configured_user()
        raise StoreRefused(
            f"Redis at {sanitize_url(config.redis_url)}: its user {user} lacks rights that beat needs. Add "
            f"{' '.join(missing)} to its ACL rule (docs: configuration, Users with limited rights)."
        )


def pin_settings(app: Any) -> None:
    """Write the defaults of settings that Celery looks up for every message into the app's configuration.

    A default is what Celery finds last, after 3 us. All of these are a quarter of the time that a message
    takes.
    """
    for name in _LOOKED_UP:
        if name in app.conf:
            app.conf[name] = app.conf[name]


def banner(scheduler: Any, store: Store) -> str:
    """Return the lines of beat's banner about Redis, the lock, shards, delivery and messages.

    It waits at most two seconds for the broker, and no longer for Redis than a hasty store.
    """
    lines = [f"    . redis -> {sanitize_url(store.config.redis_url)}"]
    layout, lock_key, seconds = store.config.layout, scheduler.lock_key, scheduler.lock_timeout
    if layout.shards is not None:
        lines.append(f"    . shards -> {layout.shards}")
    if lock_key:
        lines.append(f"    . lock -> `{lock_key}` {humanize_seconds(seconds)} ({seconds}s)")
    else:
        lines.append("    . lock -> none, several beats share the work")
    app = store.config.app
    if not store.config.waits_for_redis and find_given(app) is None:
        lines.append("    . retry_period -> unset: beat ends if Redis is away (redbeat_redis_options)")
    if scheduler.chooses_client and find_given(app) is None:
        return "\n".join(lines)  # nothing is connected to before
    broker = Broker(app, scheduler.Producer, timeout_seconds=2)
    # invalid settings are an error when beat starts, not in its banner
    with surviving("Describing the server and the broker"), closing(broker), Store.hasty(app) as hasty_store:
        lines.append(f"    . delivery -> {describe_delivery(hasty_store, broker)}")
        obstacle = joined(guard.find_obstacle(app, scheduler), guard.find_broker_obstacle(app))
        way = guard.in_words(obstacle) if obstacle else "compiled, where task and entry allow it"
        lines.append(f"    . messages -> {way}")
    return "\n".join(lines)


def default_entries(app: Any) -> dict[str, Any]:
    """Return Celery's own entries: the clean-up of a result backend that does not expire results itself."""
    found: dict[str, Any] = {}
    if not isinstance(app.backend, DisabledBackend):  # Celery's scheduler makes one for that, too
        Scheduler.install_default_entries(SimpleNamespace(app=app, update_from_dict=found.update), {})
    return found


def read_statics(app: Any, *, has_defaults: bool = True, is_logging: bool = False) -> dict[str, Any]:
    """Return Celery's own entries, those of ``beat_schedule``, and those that ``@scheduled`` declares.

    Celery's commands have imported the application's modules; another program may not have done so yet.

    Arguments:
        has_defaults: with Celery's own entries.
        is_logging: declarations that belong to no task are logged.

    Returns names to entries or their keyword arguments.

    Raises:
        DeclarationError: two of them have the same name.
        Exception: what a module raises that cannot be imported.
    """
    load_tasks(app)
    declared = collect_declared(app)
    for declaration, reason in declared.strays.items() if is_logging else ():
        extra = ENTRY_NOT_STORED.of(entry=declaration.name or "", reason=reason)
        logger.error("beat: %s: @scheduled: %s", declaration.place, reason, extra=extra)
    entries = {name: entry.fields for name, entry in declared.entries.items()}
    defaults = default_entries(app) if has_defaults else {}
    return {**defaults, **app.conf.beat_schedule, **entries}


def store_statics(
    shard: Shard,
    statics: Mapping[str, Any],
    here: Mapping[str, Any],
    update: Callable[[Mapping[str, Any]], object],
) -> None:
    """Store the entries of the code in a shard, and remove those that have left the code.

    An entry that is also in another app's code, or in an applied file, stays.

    Arguments:
        statics: all entries of the code, by their names.
        here: those that belong to the shard.
        update: stores entries.
    """
    store, fence, keys_here = shard.store, shard.leadership.fence, shard.store.keys
    owners, reserved = store.config.statics_owners, store.config.reserved_names
    # one of RedBeat's own keys is never removed as an entry
    plan = plan_statics(
        read_static_names(store), statics, owners, lambda name: not find_name_problem(name, reserved)
    )
    keys = [keys_here.entry(name) for name in plan.removed]
    gone = [key for key, owner in zip(keys, read_owners(store, keys), strict=True) if not owner]
    for key in gone:
        name = keys_here.name(key)
        extra = STATIC_REMOVED.of(entry=name)
        logger.info("beat: Removing old static schedule entry '%s'.", name, extra=extra)
    delete_entries(store, gone, fence)
    update(here)
    note_statics(store, fence, owners[0], replace(plan, added=tuple(n for n in plan.added if n in here)))


def store_entries(
    shard: Shard, reports: Reports, make_entry: Callable[[str, Any], Any], entries: Sequence[tuple[str, Any]]
) -> None:
    """Store ``entries`` (name, and entry or its keyword arguments); a bad one is reported and skipped.

    An entry that is stored with the same values is not written. One that is paused stays so, unless
    ``entries`` says whether it is.
    """
    store = shard.store
    made: dict[str, Any] = {}
    given: dict[str, Container[str]] = {}  # by the same keys, the names of the fields

    @contextmanager
    def skipping(name: str) -> Iterator[None]:
        try:
            yield
        except BaseException as exc:  # noqa: BLE001 - the per-entry boundary
            let_through(exc)
            reason = f"{type(exc).__name__}: {shorten(str(exc))}"
            message = "beat: Skipped the entry '%s', it can't be stored (what was stored before stays): %s"
            reports.report(ERROR, ENTRY_NOT_STORED, str(name), message, reason, reason=reason)

    for name, fields in entries:
        with skipping(name):
            entry = make_entry(name, fields)
            key: str = entry.key
            key.encode("utf-8")  # a name that can't be encoded would fail the whole chunk
            if has_own_save(entry):
                entry.save()
            else:
                made[key], given[key] = entry, fields if isinstance(fields, Mapping) else ()

    def decide(entry: Any, stored: Stored, now: datetime) -> Write | None:
        with skipping(entry.name):
            has_pause = stored.policy and '"paused"' in stored.policy
            before = try_decode(type(entry), stored, entry.app) if has_pause else None
            if before is not None:  # a new leader must not end the pause
                entry = copy.copy(entry)
                keep_pause(entry, before, given[stored.key])
            is_scheduled = stored.score is not None and stored.meta is not None and stored.error is None
            if not is_scheduled or encode_entry(entry, stored) != (stored.definition, stored.policy or ""):
                write: Write = entry.plan_save(stored, now)
                return write
        return None

    save_entries(store, made, decide, shard.leadership.fence)


def bring_back_downgraded(shard: Shard, reports: Reports) -> None:
    """Put back the entries that ``celery redbeat downgrade`` has taken out of a shard.

    Raises:
        StoreCorrupt, StoreRefused: nothing of the shard can be read or written.
    """
    with reports.surviving(shard.store, "Entries taken out for celery-redbeat 2.x can't be brought back"):
        returned, gone = bring_back(shard.store, shard.leadership.fence)
        if returned or gone:
            logger.info(
                "beat: Restored %s, taken out of the schedule for celery-redbeat 2.x; %d deleted meanwhile.",
                counted(returned, "entry", "entries"),
                gone,
            )
