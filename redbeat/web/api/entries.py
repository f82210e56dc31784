"""Entries: listed, counted, shown, made, changed and removed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from redbeat.access import Right
from redbeat.diagnostics.facts import read_facts
from redbeat.diagnostics.routes import document_of_way, find_destination, find_obstacle
from redbeat.entries.documents import document_of, find_problems, iso, outcome_of, overview_of
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.marks import marks_of, zone_for
from redbeat.entries.query import STATES, read_listed
from redbeat.entries.runs import read_last
from redbeat.entries.saving import MAX_TRIES, retry_when_changed
from redbeat.entries.timeline import first_of_all
from redbeat.entries.upcoming import next_runs
from redbeat.entries.validation import MAX_PRIORITY
from redbeat.errors import EntryChanged, EntryError, EntryNotFound
from redbeat.log.text import printable
from redbeat.operations import editing
from redbeat.operations.editing import revision_of
from redbeat.operations.hiding import hide, hiding_of, without_hidden
from redbeat.operations.selection import Wanted
from redbeat.operations.showing import hide_in_sentence, why
from redbeat.web.api.choices import CHOICE, DRY_RUN, ONE_CHOICE, chosen_names
from redbeat.web.api.cursors import CURSOR, look_through, path_on
from redbeat.web.api.etags import changed, check, etag_of, is_conditional
from redbeat.web.api.kinds import AHEAD, BACK, FLAG, PATTERN, TEXT, Field, one_of, whole
from redbeat.web.api.operations import (
    IF_MATCH,
    IF_NONE_MATCH,
    JSON,
    MERGE_PATCH,
    Answer,
    Body,
    Call,
    Operation,
)
from redbeat.web.api.patches import merged
from redbeat.web.api.problems import Refusal
from redbeat.web.api.schemas import of

#: how many entries one answer has at most
MOST_LISTED = 1000
#: how many next runs of all entries are computed: so many of each that is due before the last of them
MOST_NEXT = 100
#: for how long entries are looked at for these, seconds; of how many it is said that not all are known
NEXT_SECONDS, MOST_UNTOLD = 3.0, 100
#: what an answer adds to an entry's document; ignored where one is sent
ADDED = ("href", "etag")


FILTERS = (
    Field("match", PATTERN, "Only entries whose name matches; * and ? are wildcards, case-sensitive."),
    Field("task", PATTERN, "Only entries whose task matches; * and ? are wildcards."),
    Field("state", one_of([*STATES]), "Only entries in this state."),
    Field("enabled", FLAG, "Only enabled entries, or only disabled ones."),
    Field("due_before", AHEAD, "Only entries whose next run is due at this time or before."),
)
LIMIT = Field("limit", whole(1, MOST_LISTED), "At most so many.", default=100)


def wanted_by(given: Mapping[str, Any]) -> Wanted:
    """Return what tells whether an entry is one that the ``FILTERS`` want."""
    task, state, enabled, due_before = (given[one] for one in ("task", "state", "enabled", "due_before"))

    def is_wanted(entry: RedBeatSchedulerEntry) -> bool:
        due = entry.next_due_at
        return (
            (task is None or fnmatchcase(str(entry.task), task))
            and (state is None or entry.state == state)
            and (enabled is None or _is_enabled(entry) == enabled)
            and (due_before is None or (due is not None and due <= due_before))
        )

    return is_wanted


def _is_enabled(entry: RedBeatSchedulerEntry) -> bool:
    return entry.enabled if entry.seen_at is None else entry.is_enabled_at(entry.seen_at)


# -- documents


def document(
    call: Call, entry: RedBeatSchedulerEntry, more: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the document of an entry that was read or stored, without what is hidden."""
    fields = {**_fields(entry), **(more or {})}
    return {
        **hide(fields, hiding_of(call.app)),
        "error": hide_in_sentence(call.app, entry.stored, fields["error"] or "") or None,
        "href": call.href("entries", str(entry.name)),
        "etag": etag_of(revision_of(entry)),
    }


def _fields(entry: RedBeatSchedulerEntry) -> dict[str, Any]:
    try:
        return entry.to_dict()  # secrets are hidden once, or they wouldn't be recognized when they come back
    except EntryError:
        return document_of(entry)


def stored_answer(
    call: Call, entry: RedBeatSchedulerEntry, status: int = 200, headers: Mapping[str, str] | None = None
) -> Answer:
    """Return the answer to a change: the entry as it was stored."""
    made = document(call, entry)
    return Answer(made, status, {"ETag": made["etag"], **(headers or {})})


def found_entry(call: Call) -> RedBeatSchedulerEntry:
    """Return the entry in the path, also one that can't be used.

    Raises:
        EntryNotFound: there is none.
    """
    entry: RedBeatSchedulerEntry = read_listed(RedBeatSchedulerEntry, call.app, call.name)
    return entry


# -- looking


def list_entries(call: Call) -> Answer:
    """List entries, a slice at a time."""
    is_wanted = wanted_by(call.query)
    found, cursor = look_through(
        call.app, call.query["match"], is_wanted, call.query["cursor"], call.query["limit"]
    )
    lasts = read_last(call.app, [entry.key for entry in found])
    entries = [document(call, entry, outcome_of(last)) for entry, last in zip(found, lasts, strict=True)]
    return Answer({"entries": entries, "next": path_on(call, "/entries", cursor)})


def count_entries(call: Call) -> Answer:
    """Count entries; with filters a slice at a time."""
    if all(value is None for value in call.query.values()):
        return Answer({"count": RedBeatSchedulerEntry.count(call.app), "next": None})
    counted, is_wanted = 0, wanted_by(call.query)

    def count_wanted(entry: RedBeatSchedulerEntry) -> bool:
        nonlocal counted
        counted += is_wanted(entry)
        return False  # none is kept

    _, cursor = look_through(call.app, call.query["match"], count_wanted, call.query["cursor"], 1)
    return Answer({"count": counted, "next": path_on(call, "/count", cursor)})


def show_entry(call: Call) -> Answer:
    """Show all about an entry."""
    entry = found_entry(call)
    found = overview_of(entry, call.app.timezone)
    told = found.to_dict()
    own = document(call, entry)
    more = {name: value for name, value in told.items() if name not in own}
    return Answer({**own, **more}, headers={"ETag": own["etag"]})


def next_of_entry(call: Call) -> Answer:
    """Compute the next runs of an entry."""
    entry = found_entry(call)
    if entry.schedule is None:
        error = hide_in_sentence(call.app, entry.stored, entry.error)
        reason = error.removeprefix(f"{printable(entry.key)}: ")
        raise EntryError(f"{entry.key}: can't be used, so it has no runs: {reason}", entry.key)
    zone = zone_for(entry)
    after = call.query["after"]
    dues = next_runs(entry, call.query["count"], after, zone, call.now)
    marks = marks_of(entry, dues, zone, call.now if after is None else after)
    runs = [
        {
            "due": iso(due),
            "seconds": (due - call.now).total_seconds(),
            "marks": [{"kind": mark.kind, "words": mark.words} for mark in found],
        }
        for due, found in zip(dues, marks, strict=True)
    ]
    return Answer({"name": entry.name, "state": entry.state, "runs": runs})


def next_of_all(call: Call) -> Answer:
    """Compute the next runs of all entries together."""
    found = first_of_all(
        call.app, call.query["count"], call.query["after"], call.query["match"], max_seconds=NEXT_SECONDS
    )
    runs = [
        {
            "name": name,
            "href": call.href("entries", name),
            "due": iso(due),
            "seconds": (due - call.now).total_seconds(),
        }
        for due, name, _ in found.runs
    ]
    return Answer({"runs": runs, "untold": found.untold[:MOST_UNTOLD], "is_complete": found.is_complete})


def why_entry(call: Call) -> Answer:
    """Say why a run did or did not happen."""
    facts = read_facts(call.app, call.name)
    answer = why(call.actor, facts, call.query["at"])
    obstacle = None
    if facts.entry is not None:
        try:
            obstacle = find_obstacle(call.app, facts.entry)
        except Exception:  # noqa: BLE001 - the application's own code; then it isn't known
            obstacle = None
    return Answer({"name": call.name, **answer.to_dict(), "messages": document_of_way(obstacle)})


ROUTING = (
    Field("queue", TEXT, "Tried in place of the entry's."),
    Field("exchange", TEXT, "Likewise."),
    Field("exchange_type", one_of(("direct", "topic", "fanout", "headers")), "Likewise."),
    Field("routing_key", TEXT, "Likewise."),
    Field("priority", whole(0, MAX_PRIORITY), "Likewise."),
)


def route_entry(call: Call) -> Answer:
    """Say where the runs of an entry go."""
    found_entry(call)
    tried = {name: value for name, value in call.query.items() if value is not None}
    return Answer(find_destination(call.app, call.name, tried).to_dict())


# -- changing


def put_entry(call: Call) -> Answer:
    """Store an entry in place of what is there, or as a new one."""
    values = without_added(call.body)
    if values.setdefault("name", call.name) != call.name:
        raise Refusal(422, f"name: must be {call.name!r}, as in the path, or be left out.", field="name")

    def put() -> Answer:
        before = _revision_now(call)
        check(call, before)
        try:
            made = editing.add(call.actor, values, revision=before)
        except EntryChanged:
            raise
        except EntryError as exc:
            raise _with_all_problems(call, values, exc) from exc
        is_new = before is None
        location = {"Location": call.root + call.href("entries", call.name)} if is_new else {}
        return stored_answer(call, made, 201 if is_new else 200, location)

    return _until_unchanged(call, put)


def patch_entry(call: Call) -> Answer:
    """Change fields of an entry."""
    values = without_added(call.body)

    def patch() -> Answer:
        entry = found_entry(call)
        revision = revision_of(entry)
        check(call, revision)
        fields = editing.fields_of(entry)
        changes = merged(fields, values)
        try:
            made = editing.set_(call.actor, call.name, changes, revision, dry_run=call.query["dry_run"])
            return stored_answer(call, made)
        except (EntryChanged, EntryNotFound):
            raise
        except EntryError as exc:
            raise _with_all_problems(call, {**fields, **changes}, exc) from exc

    return _until_unchanged(call, patch)


def _until_unchanged(call: Call, change: Callable[[], Answer]) -> Answer:
    """Make a change; with what is there by now if somebody else changes the entry meanwhile.

    It is made once if the caller relies on what they have seen.
    """
    try:
        return change() if is_conditional(call) else retry_when_changed(change)
    except EntryChanged as exc:
        if is_conditional(call):
            raise changed(str(exc), _revision_now(call)) from exc
        raise Refusal(503, f"{exc} That was so {MAX_TRIES} times: try again in a few seconds.") from exc


def _with_all_problems(call: Call, values: Mapping[str, Any], exc: EntryError) -> Exception:
    """Return an error with all that is wrong with ``values``; ``exc`` itself, if it isn't about them."""
    given = {name: value for name, value in values.items() if value is not None}
    problems = find_problems({**given, "name": call.name}, call.app)
    if not problems:
        return exc
    field, hiding = next(filter(None, problems), None), hiding_of(call.app)
    # what is hidden in it may have been stored before
    errors = {name: without_hidden(words, given, hiding) for name, words in problems.items()}
    return Refusal(422, without_hidden(str(exc), given, hiding), entry=call.name, field=field, errors=errors)


def delete_entry(call: Call) -> Answer:
    """Remove an entry."""
    revision = _revision_now(call)
    if revision is None:
        found_entry(call)  # raises, unless it has been made this instant
    check(call, revision)
    if call.query["dry_run"]:
        call.actor.require(Right.DELETE)
        return Answer({"deleted": 0, "names": [call.name]})
    if revision is None or call.headers[IF_MATCH] in ("", "*"):
        editing.delete(call.actor, [call.name])
    else:
        try:
            editing.delete_as_seen(call.actor, call.name, revision)
        except EntryChanged as exc:
            raise changed(str(exc), _revision_now(call)) from exc
    return Answer({"deleted": 1, "names": [call.name]})


def delete_entries(call: Call) -> Answer:
    """Remove many entries."""
    names, cursor = chosen_names(call, lambda _entry: True)
    if call.body["dry_run"]:
        call.actor.require(Right.DELETE)
        return Answer({"deleted": 0, "names": names, "next": cursor})
    deleted = editing.delete(call.actor, names) if names else 0
    return Answer({"deleted": deleted, "names": names, "next": cursor})


def _revision_now(call: Call) -> str | None:
    try:
        return revision_of(found_entry(call))
    except EntryNotFound:
        return None


def without_added(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was sent of an entry, without what answers add to it."""
    return {name: value for name, value in body.items() if name not in ADDED}


_COUNT = Field("count", whole(1, 1000), "How many runs.", default=10)
ENTRY_BODY = Body(component="EntryInput", is_needed=True)
PATCH_BODY = Body(component="EntryPatch", media=(MERGE_PATCH, JSON), is_needed=True)

OPERATIONS: Sequence[Operation] = (
    Operation(
        *("GET", "/entries", "list", Right.READ, "The entries, the next to run first.", list_entries),
        {200: of("EntryList")},
        (*FILTERS, LIMIT, CURSOR),
    ),
    Operation(
        *(
            "GET",
            "/count",
            "count",
            Right.READ,
            "How many entries there are; with filters a part at a time.",
            count_entries,
        ),
        {200: of("Count")},
        (*FILTERS, CURSOR),
    ),
    Operation(
        *("GET", "/entries/{name}", "show", Right.READ, "All about one entry.", show_entry),
        {200: of("Entry")},
        has_etag=True,
    ),
    Operation(
        *(
            "PUT",
            "/entries/{name}",
            "add",
            Right.EDIT,
            "Add an entry, or put it in place of another.",
            put_entry,
        ),
        {200: of("Entry"), 201: of("Entry")},
        body=ENTRY_BODY,
        headers=(IF_MATCH, IF_NONE_MATCH),
        has_etag=True,
    ),
    Operation(
        *(
            "PATCH",
            "/entries/{name}",
            "set",
            Right.EDIT,
            "Change some fields of an entry; null removes one.",
            patch_entry,
        ),
        {200: of("Entry")},
        (Field("dry_run", FLAG, "Change nothing, and answer the entry as it would be.", default=False),),
        body=PATCH_BODY,
        headers=(IF_MATCH,),
        has_etag=True,
    ),
    Operation(
        *(
            "DELETE",
            "/entries/{name}",
            "delete",
            Right.DELETE,
            "Remove an entry with its history.",
            delete_entry,
        ),
        {200: of("Deleted")},
        (DRY_RUN,),
        headers=(IF_MATCH,),
    ),
    Operation(
        *(
            "PUT",
            "/delete",
            "delete",
            Right.DELETE,
            "Remove many entries with their histories.",
            delete_entries,
        ),
        {200: of("Deleted")},
        body=Body((*CHOICE, DRY_RUN), is_needed=True, exactly_one=ONE_CHOICE),
    ),
    Operation(
        *("GET", "/entries/{name}/next", "next", Right.READ, "The next runs of an entry.", next_of_entry),
        {200: of("NextRuns")},
        (_COUNT, Field("after", AHEAD, "Only runs later than this.")),
    ),
    Operation(
        *("GET", "/next", "next", Right.READ, "The next runs of all entries together.", next_of_all),
        {200: of("NextOfAll")},
        (
            Field("count", whole(1, MOST_NEXT), "How many runs.", default=10),
            Field("after", AHEAD, "Only runs later than this."),
            FILTERS[0],
        ),
        is_heavy=True,
    ),
    Operation(
        *("GET", "/entries/{name}/why", "why", Right.READ, "Why a run did or did not happen.", why_entry),
        {200: of("Why")},
        (Field("at", BACK, "When it was due. Default: the latest time of the schedule before now."),),
    ),
    Operation(
        *("GET", "/entries/{name}/route", "route", Right.READ, "Where the runs of an entry go.", route_entry),
        {200: of("Route")},
        ROUTING,
    ),
)
