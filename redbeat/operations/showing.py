"""What others have written that pages and the API show as text: the audit list, and sentences that may quote
what is stored of an entry.

Invariant: nothing leaves of it that ``redbeat_web_hide`` hides, also where it was written by a command or a
program, which hide nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from redbeat.access import Right
from redbeat.config.config import ensure_conf
from redbeat.diagnostics.facts import Facts
from redbeat.diagnostics.findings import Diagnosis, Finding
from redbeat.diagnostics.why import Answer, explain
from redbeat.entries.audit import AuditRecord, find_records
from redbeat.entries.documents import read_object
from redbeat.later.documents import document_of
from redbeat.operations.actor import Actor
from redbeat.operations.hiding import (
    HIDDEN,
    Hiding,
    hide_details,
    hiding_of,
    may_hide,
    without_hidden,
)
from redbeat.operations.later import hide_in_reason
from redbeat.store.entries import read_entries
from redbeat.store.later import LaterStore
from redbeat.store.records import Stored
from redbeat.store.store import Store

#: of how many entries of a change the tasks are looked up
MAX_NAMES = 5
#: where changes of one entry come from whose records were written without what is hidden
HIDING_SOURCES = ("web", "api", "admin")


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
    _, found = read_entries(store, [store.keys.entry(name) for name in names]) if names else (None, [])
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
    is_written_hidden = record.source in HIDING_SOURCES and record.count == 1
    is_hidden = is_unsure and _needs_tasks(record) and hiding.patterns and not is_written_hidden

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


def hide_in_sentence(app: Any, stored: Stored | None, sentence: str) -> str:
    """Return a sentence about an entry, which may quote what is stored of it, without what is hidden."""
    if not sentence or stored is None:
        return sentence
    hiding = hiding_of(app)
    for document in filter(None, map(read_object, (stored.definition, stored.policy, stored.meta))):
        sentence = without_hidden(sentence, document, hiding)
    keys = ensure_conf(app).keys
    task_id = keys.message_id(stored.key)
    messages = LaterStore(app).named([task_id]) if task_id is not None else []
    for message in messages:
        if message.texts is not None:  # else another entry is called so
            sentence = hide_in_reason(sentence, document_of(keys, message), hiding)
    return sentence


def why(actor: Actor, facts: Facts, at: datetime | None) -> Answer:
    """Return why a run of an entry did or did not happen."""
    answer = explain(facts, at)
    return replace(answer, reason=hide_in_sentence(actor.app, facts.stored, answer.reason))


def hide_in_findings(app: Any, found: Diagnosis) -> Diagnosis:
    """Return what the doctor has found without what is hidden: an excerpt of no text that may have it."""
    store, hiding = Store(app), hiding_of(app)
    keys = {one.entry: store.keys.entry(one.entry) for one in found.findings if one.entry is not None}
    stored = dict(zip(keys, read_entries(store, [*keys.values()])[1] if keys else [], strict=True))
    messages = _messages_of(app, found)

    def shown(finding: Finding) -> Finding:
        if finding.about in messages:
            problem = hide_in_reason(finding.problem, messages[finding.about], hiding)
            return replace(finding, problem=problem)
        one = None if finding.entry is None else stored[finding.entry]
        if one is None:
            return finding
        is_hidden = may_hide(f"{one.definition} {one.policy} {finding.excerpt}", hiding)
        problem = hide_in_sentence(app, one, finding.problem)
        return replace(finding, problem=problem, excerpt="" if is_hidden else finding.excerpt)

    return replace(found, findings=[*map(shown, found.findings)])


def _messages_of(app: Any, found: Diagnosis) -> Mapping[str, Mapping[str, Any]]:
    """Return the stored messages that couldn't be sent, by what findings say that they are about."""
    store = LaterStore(app)
    names = [one.about for one in found.findings if one.kind == "unsent-message"]
    task_ids = [store.keys.message_id(store.keys.entry(name)) or "" for name in names]
    messages = store.named(task_ids) if names else []
    return {name: document_of(store.keys, one) for name, one in zip(names, messages, strict=True)}
