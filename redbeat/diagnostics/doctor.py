"""The examination of ``doctor``: the table of its checks, and their run over the schedule.

Invariants: nothing is written; the checks end in bounded time, whatever the schedule holds, and say what they
haven't looked at; a check that the server refuses becomes a note, and the others go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from itertools import chain
from typing import Any, NamedTuple

from redbeat.config.config import ensure_conf
from redbeat.config.masking import sanitize_url
from redbeat.connection.retry import is_refusal
from redbeat.diagnostics.checks import beats, entries, keys, runs, tasks, upgrade
from redbeat.diagnostics.checks.context import Context, Row
from redbeat.diagnostics.checks.server import SERVER_CHECKS
from redbeat.diagnostics.findings import Diagnosis, Finding, found
from redbeat.errors import ConfigurationError, RedBeatError, StoreCorrupt, StoreRefused
from redbeat.leadership.status import Status, read_status
from redbeat.store.store import Store

Check = Callable[[Context], Iterable[Finding]]


class Checks(NamedTuple):
    """The checks of an examination, in their order.

    Attributes:
        first, last: checks of the whole schedule, before and after the entries.
        of_entry: checks of each entry.
        of_page: checks of some hundred entries together.
    """

    first: Sequence[Check]
    of_entry: Sequence[Callable[[Context, Row], Iterable[Finding]]]
    of_page: Sequence[Callable[[Context, Sequence[Row]], Iterable[Finding]]]
    last: Sequence[Check]


_OF_THE_CODE = (tasks.load, tasks.check_static_entries, tasks.check_declared, tasks.check_routes)
CHECKS = Checks(
    first=(
        beats.check_leader,
        beats.check_lock_name,
        beats.check_lock,
        beats.check_layout,
        beats.check_hidden,
        beats.check_former_parts,
        *SERVER_CHECKS,
        *_OF_THE_CODE,
    ),
    of_entry=(
        entries.check_hash,
        entries.check_usable,
        entries.check_calendar,
        entries.check_typos,
        entries.check_future,
        tasks.check_message,
        tasks.check_task,
        tasks.note_destination,
        entries.check_ping_host,
        beats.check_place,
        beats.check_writer,
    ),
    of_page=(runs.check_runs,),
    last=(
        tasks.check_queues,
        entries.check_downgraded,
        runs.check_tracking,
        runs.check_long_runs,
        keys.check_visibility,
        keys.check_stored_messages,
        keys.check_statics,
        keys.check_removed_statics,
        keys.check_keys,
    ),
)
CHECKS_FROM_2X = Checks(
    first=(
        upgrade.check_takeover,
        upgrade.check_server_version,
        upgrade.check_changed_settings,
        upgrade.check_zones,
        upgrade.check_overrides,
        *SERVER_CHECKS,
        *_OF_THE_CODE,
    ),
    of_entry=(
        entries.check_usable,
        entries.check_future,
        tasks.check_message,
        tasks.check_task,
        tasks.note_destination,
        upgrade.check_change,
    ),
    of_page=(),
    last=(tasks.check_queues,),
)


def examine(
    app: Any,
    *,
    has_tasks: bool = True,
    is_dashboard: bool = False,
    workers_seconds: float | None = None,
    max_seconds: float = 30.0,
    is_from_2x: bool = False,
) -> Diagnosis:
    """Carry out all checks of the schedule of ``app``.

    Arguments:
        has_tasks: it is the user's app, with its tasks and routes.
        is_dashboard: the dashboard asks, which should have a user of its own in Redis, not beat's.
        workers_seconds: how long to wait for workers to say which queues they take from; None: don't ask.
        max_seconds: after that what is large isn't looked at any further.
        is_from_2x: celery-redbeat 2.x still leads: report what changes with version 3 instead.

    Raises:
        StoreUnavailable: Redis can't be reached, or doesn't answer in time.
        StoreRefused: it refuses the login.
    """
    diagnosis = Diagnosis(has_asked_workers=workers_seconds is not None)
    try:
        config = ensure_conf(app)
        diagnosis.server = sanitize_url(config.redis_url)
        with Store.hasty(app) as store, suppress(StoreRefused):  # what is refused is reported below
            diagnosis.add(beats.find_wrong_layout(store))
        if diagnosis.findings:
            return diagnosis
        status = read_status(app)
    except ConfigurationError as exc:
        problem = str(exc).removeprefix(f"{exc.setting}: ")
        diagnosis.add([found("setting", exc.setting or "settings", problem=problem)])
        return diagnosis
    except StoreCorrupt as exc:
        diagnosis.add([_of_key(exc)])
        return diagnosis
    except StoreRefused as exc:
        if exc.is_login or is_refusal(exc.__cause__):
            raise
        diagnosis.add([_of_refusal("who leads, and what is due", exc)])
        status = Status(datetime.now(timezone.utc), None, ())
    ends_at = time.monotonic() + max_seconds
    with Store.hasty(app) as store:
        context = Context(config.app, store, status, has_tasks, is_dashboard, workers_seconds, ends_at)
        for check in _in_order(CHECKS_FROM_2X if is_from_2x else CHECKS, diagnosis):
            try:
                diagnosis.add(check(context))
            except StoreCorrupt as exc:
                diagnosis.add([_of_key(exc)])
            except StoreRefused as exc:
                if is_refusal(exc.__cause__):  # the server is busy, say
                    raise
                diagnosis.add([_of_refusal(check.__name__, exc)])
        if context.unseen:
            unseen = ", ".join(context.unseen)
            diagnosis.add([found("unseen", context.place, seconds=max_seconds, unseen=unseen)])
    return diagnosis


def _in_order(checks: Checks, diagnosis: Diagnosis) -> Iterator[Check]:
    def check_entries(context: Context) -> Iterator[Finding]:
        for page in context.pages():
            diagnosis.seen += len(page)
            names = {subject: row.name for row in page for subject in (row.key, row.name)}
            of_rows = (
                finding for row in page for check in checks.of_entry for finding in check(context, row)
            )
            of_page = (finding for check in checks.of_page for finding in check(context, page))
            for finding in chain(of_rows, of_page):
                yield replace(finding, entry=names.get(finding.about))

    yield from (*checks.first, check_entries, *checks.last)


def _of_key(exc: StoreCorrupt) -> Finding:
    return found("wrong-type", exc.key, problem=str(exc).replace(f"{exc.key} holds", "It holds", 1))


def _of_refusal(check: str, exc: RedBeatError) -> Finding:
    what = check.removeprefix("check_").replace("_", " ")
    return found("refused", f"check of {what}", said=str(exc.__cause__ or exc).rstrip("."))
