"""The doctor's checks: what is wrong with a schedule, and what to do about it. Each check is a function.

Invariants: nothing is written; the checks end in bounded time, whatever the schedule holds, and say what they
haven't looked at; a check that the server refuses becomes a note, and the others go on.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from redbeat.config.config import ensure_conf
from redbeat.config.masking import sanitize_url
from redbeat.connection.retry import is_refusal
from redbeat.diagnostics.checks.context import Context, Row
from redbeat.diagnostics.checks.declared import check_declared, check_static_entries
from redbeat.diagnostics.checks.downgrade import Versions
from redbeat.diagnostics.checks.entries import ENTRY_CHECKS, check_future, check_usable
from redbeat.diagnostics.checks.finding import Finding as Finding
from redbeat.diagnostics.checks.finding import Repair as Repair
from redbeat.diagnostics.checks.finding import Severity as Severity
from redbeat.diagnostics.checks.finding import worst_of as worst_of
from redbeat.diagnostics.checks.leader import LEADER_CHECKS, check_writer
from redbeat.diagnostics.checks.orphans import ORPHAN_CHECKS
from redbeat.diagnostics.checks.pings import Pings
from redbeat.diagnostics.checks.runs import RunChecks
from redbeat.diagnostics.checks.server import SERVER_CHECKS
from redbeat.diagnostics.checks.shards import SHARD_CHECKS, check_place, find_wrong_layout
from redbeat.diagnostics.checks.tasks import Tasks, check_message, check_routes
from redbeat.diagnostics.checks.upgrade import UPGRADE_CHECKS, check_change
from redbeat.diagnostics.checks.ways import Ways
from redbeat.errors import ConfigurationError, RedBeatError, StoreCorrupt, StoreRefused
from redbeat.leadership.status import Status, read_status
from redbeat.store.store import Store

#: how many findings of a kind are kept; others are counted
MAX_OF_A_KIND = 10_000


@dataclass
class Diagnosis:
    """What an examination has found.

    Attributes:
        findings: in the order of the checks.
        more: how many there are besides, by their kind.
        seen: how many entries were looked at.
        server: the URL of the schedule's server, without its password; None: a finding says why it isn't
            known.
        has_asked_workers: workers were to say which queues they take from.
    """

    findings: list[Finding] = field(default_factory=list)
    more: Counter[str] = field(default_factory=Counter)
    seen: int = 0
    server: str | None = None
    has_asked_workers: bool = False
    _counts: Counter[str] = field(default_factory=Counter)

    def add(self, findings: Iterable[Finding]) -> None:
        """Add findings; a key's wrong type is told once, whichever check has met it."""
        for finding in findings:
            if finding.kind == "wrong-type" and any(_is_alike(finding, one) for one in self.findings):
                continue
            self._counts[finding.kind] += 1
            if self._counts[finding.kind] > MAX_OF_A_KIND:
                self.more[finding.kind] += 1
            else:
                self.findings.append(finding)

    @property
    def severity(self) -> Severity:
        """The highest severity of the findings; NOTE if there are none."""
        return worst_of(self.findings)

    def to_dict(self, repairs: Sequence[str] | None = None) -> dict[str, Any]:
        """Return it as a dict of plain JSON, with the sentences about repairs; None: none were wanted."""
        return {
            "severity": self.severity.name.lower() if self.findings else None,
            "exit_code": int(self.severity),
            "server": self.server,
            "entries": self.seen,
            "findings": [finding.to_dict() for finding in self.findings],
            "more": dict(self.more),
            "repairs": None if repairs is None else list(repairs),
        }


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
        StoreRefused: it lets nobody in with these settings.
    """
    diagnosis = Diagnosis(has_asked_workers=workers_seconds is not None)
    try:
        config = ensure_conf(app)
        diagnosis.server = sanitize_url(config.redis_url)
        with Store.hasty(app) as store, suppress(StoreRefused):  # what is refused is told of below
            diagnosis.add(find_wrong_layout(store))
        if diagnosis.findings:
            return diagnosis
        status = read_status(app)
    except ConfigurationError as exc:
        diagnosis.add([_of_setting(exc)])
        return diagnosis
    except StoreCorrupt as exc:
        diagnosis.add([_of_key(exc)])
        return diagnosis
    except StoreRefused as exc:
        if exc.is_login or is_refusal(exc.__cause__):
            raise
        diagnosis.add([_of_refusal("who leads, and what is due", exc)])
        status = Status(datetime.now(timezone.utc), None, ())
    with Store.hasty(app) as store:
        context = Context(
            config.app,
            store,
            status,
            has_tasks,
            is_dashboard,
            workers_seconds,
            time.monotonic() + max_seconds,
        )
        for check in _checks_from_2x(diagnosis) if is_from_2x else _checks(diagnosis):
            try:
                diagnosis.add(check(context))
            except StoreCorrupt as exc:
                diagnosis.add([_of_key(exc)])
            except StoreRefused as exc:
                if is_refusal(exc.__cause__):  # the server is busy, say
                    raise
                diagnosis.add([_of_refusal(check.__name__, exc)])
        if context.unseen:
            diagnosis.add([_of_unseen(context, max_seconds)])
    return diagnosis


def _checks(diagnosis: Diagnosis) -> Iterator[Callable[[Context], Iterable[Finding]]]:
    tasks, versions, ways, runs, pings = Tasks(), Versions(), Ways(), RunChecks(), Pings()
    check_entries = _of_each_entry(
        diagnosis,
        *ENTRY_CHECKS,
        check_writer,
        check_message,
        tasks.check_task,
        tasks.note_queue,
        versions.note_entry,
        ways.note_entry,
        runs.note_entry,
        pings.note_entry,
        check_place,
    )
    yield from LEADER_CHECKS
    yield from SHARD_CHECKS
    yield from SERVER_CHECKS
    yield tasks.load
    yield check_static_entries
    yield check_declared
    yield tasks.check_static_tasks
    yield check_routes
    yield check_entries
    yield tasks.check_queues
    yield versions.tell
    yield ways.tell
    yield runs.tell
    yield pings.tell
    yield from ORPHAN_CHECKS


def _checks_from_2x(diagnosis: Diagnosis) -> Iterator[Callable[[Context], Iterable[Finding]]]:
    tasks = Tasks()
    yield from UPGRADE_CHECKS
    yield tasks.load
    yield check_static_entries
    yield check_declared
    yield tasks.check_static_tasks
    yield check_routes
    yield _of_each_entry(
        diagnosis, check_usable, check_future, check_message, tasks.check_task, tasks.note_queue, check_change
    )
    yield tasks.check_queues


def _of_each_entry(
    diagnosis: Diagnosis, *checks: Callable[[Context, Row], Iterable[Finding]]
) -> Callable[[Context], Iterator[Finding]]:
    """Return a check that makes ``checks`` of each entry."""

    def check_entries(context: Context) -> Iterator[Finding]:
        for row in context.rows():
            diagnosis.seen += 1
            name = context.name_of(row.key)
            for check in checks:
                for finding in check(context, row):
                    is_about_it = finding.about in (name, row.key)
                    yield replace(finding, entry=name) if is_about_it else finding

    return check_entries


def _is_alike(first: Finding, other: Finding) -> bool:
    return (first.kind, first.about) == (other.kind, other.about)


def _of_setting(exc: ConfigurationError) -> Finding:
    problem = str(exc).removeprefix(f"{exc.setting}: ")
    advice = "Correct it; nothing else was looked at."
    return Finding(Severity.ERROR, "setting", exc.setting or "settings", problem, advice)


def _of_key(exc: StoreCorrupt) -> Finding:
    problem = str(exc).replace(f"{exc.key} holds", "It holds", 1)
    return Finding(
        Severity.ERROR, "wrong-type", exc.key, problem, "Look at what it holds before you delete it."
    )


def _of_refusal(check: str, exc: RedBeatError) -> Finding:
    what = check.removeprefix("check_").replace("_", " ")
    said = str(exc.__cause__ or exc).rstrip(".")
    return Finding(
        Severity.NOTE,
        "refused",
        f"check of {what}",
        f"It couldn't be made, because the server refuses: {said}.",
        "Call the doctor as a user with more rights.",
    )


def _of_unseen(context: Context, max_seconds: float) -> Finding:
    return Finding(
        Severity.NOTE,
        "unseen",
        context.place,
        f"Not all was looked at within {max_seconds:g} s: {', '.join(context.unseen)}.",
        "Give it longer with --max-seconds.",
    )
