"""Checks of the entries in the application's code: ``beat_schedule`` and ``@scheduled``.

Invariant: nothing is imported here; what couldn't be imported isn't looked at.
"""

from __future__ import annotations

from collections.abc import Iterator

from redbeat.declared.collection import collect_declared
from redbeat.declared.static_entries import read_static_entries
from redbeat.diagnostics.checks.context import Context
from redbeat.diagnostics.checks.finding import Finding, Severity
from redbeat.errors import DeclarationError
from redbeat.log.text import printable
from redbeat.store.entries import read_entries
from redbeat.store.parts import in_chunks


def check_static_entries(context: Context) -> Iterator[Finding]:
    """Find entries of ``beat_schedule`` that beat can't store."""
    for static in read_static_entries(context.app):
        if static.problem:
            yield Finding(
                Severity.ERROR,
                "static",
                printable(static.name),
                f"beat_schedule: it is invalid, so beat does not store it: {static.problem.rstrip('.')}.",
                "Correct it in the code.",
            )


def check_declared(context: Context) -> Iterator[Finding]:
    """Find schedules in the code that beat can't store, or that it hasn't stored yet."""
    if not context.has_tasks:
        return
    try:
        found = collect_declared(context.app)
    except DeclarationError as exc:
        place = exc.places[0]
        problem = str(exc).removeprefix(f"{place}: ")
        yield Finding(
            Severity.ERROR, "declaration", place, problem, "Correct it; no beat starts with this code."
        )
        return
    for declaration, reason in found.strays.items():
        yield Finding(
            Severity.ERROR,
            "stray-declaration",
            str(declaration.place),
            f"This schedule isn't stored: {reason}",
            "Put @scheduled over or under the decorator that makes the task.",
        )
    places = {context.store.keys.entry(name): entry.place for name, entry in found.entries.items()}
    for chunk in in_chunks(list(places)):
        for stored in read_entries(context.store, chunk)[1]:
            if not stored.exists:
                yield Finding(
                    Severity.NOTE,
                    "not-stored",
                    context.name_of(stored.key),
                    f"It is declared at {places[stored.key]}, and isn't stored.",
                    "A beat stores it when it starts with this code, or becomes leader.",
                )
