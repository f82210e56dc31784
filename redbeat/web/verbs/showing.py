"""What others have written that pages and the API show as text: the audit list, and parts of stored entries.

Invariant: nothing leaves of it that ``redbeat_web_hide`` hides, also where it was written by a command or a
program, which hide nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from redbeat.access import Right
from redbeat.diagnostics.checks import Finding
from redbeat.entries.audit import AuditRecord, find_records
from redbeat.store.store import Store
from redbeat.web.hiding import HIDDEN, Hiding, hide_details, hiding_of, may_hide
from redbeat.web.verbs.actor import Actor

#: of how many entries of a change the tasks are looked up
MAX_NAMES = 5
#: where changes come from whose records were written without what is hidden
HIDING_SOURCES = ("web", "api")


def audit(actor: Actor, **wanted: Any) -> list[AuditRecord]:
    """Return the records that ``find_records`` finds, without what is hidden.

    Positional arguments are hidden by the task of the entry as it is now; all of them, if that isn't known.
    """
    actor.require(Right.READ)
    hiding, found = hiding_of(actor.app), find_records(actor.app, **wanted)
    names = {name for one in found if _needs_tasks(one) for name in one.names[:MAX_NAMES]}
    tasks = _tasks_of(actor.app, sorted(names))
    return [_shown(one, hiding, tasks) for one in found]


def _needs_tasks(record: AuditRecord) -> bool:
    return ("args" in record.details or "args" in record.before) and "task" not in record.details


def _tasks_of(app: Any, names: Sequence[str]) -> dict[str, str]:
    store = Store(app)
    _, found = store.read_entries([store.keys.entry(name) for name in names]) if names else (None, [])
    tasks = {}
    for name, stored in zip(names, found, strict=True):
        try:
            tasks[name] = str(json.loads(stored.definition or "")["task"])
        except (ValueError, TypeError, KeyError, RecursionError):  # it is gone, or can't be used
            continue
    return tasks


def _shown(record: AuditRecord, hiding: Hiding, tasks: Mapping[str, str]) -> AuditRecord:
    found = [tasks.get(name) for name in record.names[:MAX_NAMES]]
    known = [record.details.get("task"), record.before.get("task"), *found]
    is_unsure = None in found or record.count > MAX_NAMES
    is_hidden = is_unsure and _needs_tasks(record) and hiding.patterns and record.source not in HIDING_SOURCES

    def without_hidden(given: Mapping[str, Any]) -> dict[str, Any]:
        details = hide_details(given, hiding, *known)
        if is_hidden and "args" in details:
            details["args"] = HIDDEN
        for field, value in details.items():
            # what was cut off has no end, and can't be looked into
            if isinstance(value, str) and value[:1] in ("{", "["):
                is_hiding = field == "args" and any(hiding.hides_some(task) for task in known)
                details[field] = HIDDEN if is_hiding or may_hide(value, hiding) else value
        return details

    return replace(record, details=without_hidden(record.details), before=without_hidden(record.before))


def excerpts(actor: Actor, findings: Iterable[Finding]) -> dict[Finding, str]:
    """Return the parts of stored texts that may be shown: of no text in which something is to be hidden."""
    wanted = [finding for finding in findings if finding.excerpt and finding.entry is not None]
    if not wanted:
        return {}
    store, hiding = Store(actor.app), hiding_of(actor.app)
    _, stored = store.read_entries([store.keys.entry(str(finding.entry)) for finding in wanted])
    return {
        finding: finding.excerpt
        for finding, one in zip(wanted, stored, strict=True)
        if not may_hide(f"{one.definition} {one.policy} {finding.excerpt}", hiding)
    }
