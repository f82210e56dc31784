"""What the page of an entry in the admin says above its fields: when it runs, and what has become of it.

Invariant: what can't be read or computed is missing with a reason, and the rest is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from redbeat.contrib.django.access import AdminVisit
from redbeat.diagnostics.hints import source_of
from redbeat.entries.describe import description_of, zones_in_words
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.overview import overview_of
from redbeat.entries.query import STATES
from redbeat.entries.wording import in_words_of, next_run_in_words, one_line, relative, when_in
from redbeat.errors import RedBeatError
from redbeat.operations.showing import hide_in_sentence
from redbeat.store.owners import are_static, read_owners
from redbeat.store.store import Store
from redbeat.web.pages.entries import note_on

#: how many next and past runs are shown
NEXT_RUNS, LAST_RUNS = 5, 5


@dataclass(frozen=True)
class Summary:
    """What is said of an entry.

    Attributes:
        facts: titles and sentences.
        problem: why it can't be used, or its next runs can't be told; '': they can.
        next_runs: when it runs next, in words.
        past: its last runs: when they were due, and what became of them.
        actions: those of ``actions.ACTIONS`` that make sense, besides deleting.
    """

    facts: Sequence[tuple[str, str]]
    problem: str
    next_runs: Sequence[str]
    past: Sequence[tuple[str, str]]
    actions: Sequence[str]


def summary_of(visit: AdminVisit, entry: RedBeatSchedulerEntry) -> Summary:
    """Return what is said of ``entry``, which was listed."""
    found = overview_of(entry, visit.zone, next_runs=NEXT_RUNS, last_runs=LAST_RUNS)
    state, is_enabled = str(entry.state), entry.is_enabled_at(visit.now)
    description = description_of(entry, visit.zone)
    schedule = [description, zones_in_words(entry, visit.zone)] if description else []
    due = ", ".join(filter(None, next_run_in_words(entry, visit.zone, visit.now, when_in)))
    facts = [
        ("State", state if entry.problem else f"{state}: {STATES.get(state, '')}"),
        ("Why", note_on(visit.app, entry, visit.zone) if not entry.problem else ""),
        ("Schedule", ", ".join(schedule)),
        ("Next run", due),
        ("Runs so far", f"{entry.total_run_count:,}"),
        ("Comes from", _origin_of(entry)),
    ]
    words = hide_in_sentence(visit.app, entry.stored, entry.problem or found.problem)
    return Summary(
        [(title, one_line(words)) for title, words in facts if words],
        in_words_of(one_line(words.removeprefix(f"{entry.key}: "), 2000), visit.zone),
        [f"{when_in(run, visit.zone)}, {relative(run, visit.now)}" for run in found.next_runs],
        [(when_in(run.due, visit.zone), run.outcome) for run in found.past[:LAST_RUNS]],
        () if entry.problem else ("pause", "run_now") if is_enabled else ("resume", "run_now"),
    )


def _origin_of(entry: RedBeatSchedulerEntry) -> str:
    """Return who has stored the entry, if that isn't somebody here, and what follows from it."""
    store = Store(entry.app)
    try:
        [owner] = read_owners(store, [entry.key])
        [is_static] = are_static(store, [str(entry.name)])
    except RedBeatError:  # a right that is missing, say
        return ""
    if is_static:
        return (
            f"{source_of(entry.app, str(entry.name))}: what is changed here lasts until a beat starts or "
            "becomes leader, unless it is changed there, too. A pause lasts."
        )
    return f"a file of {owner}: applying it again undoes what is changed here." if owner else ""
