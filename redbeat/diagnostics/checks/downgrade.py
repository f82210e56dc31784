"""What celery-redbeat 2.x would do with the schedule, for those who may have to go back to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from redbeat.diagnostics.checks.context import Context, Row
from redbeat.diagnostics.checks.finding import Finding, Severity
from redbeat.diagnostics.compatibility import find_ignored, find_trouble
from redbeat.log.text import counted
from redbeat.store.downgrades import read_downgraded

#: how many are named
MAX_NAMED = 3


@dataclass
class Versions:
    """The names of entries that celery-redbeat 2.x can't run, or would run differently."""

    unreadable: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)

    def note_entry(self, context: Context, row: Row) -> Iterator[Finding]:
        """Note an entry that RedBeat itself can use; other checks report those that it can't."""
        if row.entry is None or row.is_quarantined or row.stored.score is None or row.stored.score < 0:
            return
        name = context.name_of(row.key)
        if find_trouble(row.member, name, row.stored, row.problem, context.now) is not None:
            self.unreadable.append(name)
        elif find_ignored(row.entry, context.now):
            self.ignored.append(name)
        yield from ()

    def tell(self, context: Context) -> Iterator[Finding]:
        """Say how many there are, and which are taken out for it already.

        What is in shards celery-redbeat 2.x doesn't see.
        """
        if self.unreadable and not context.store.parts.is_divided:
            ignored = (
                f", and would run {_named(self.ignored)} differently than asked for, as it knows no policies"
                if self.ignored
                else ""
            )
            yield Finding(
                Severity.NOTE,
                "downgrade",
                context.place,
                f"celery-redbeat 2.x couldn't run {_named(self.unreadable)}{ignored}.",
                "Nothing, unless you go back to 2.x: then call celery redbeat downgrade before.",
            )
        found = read_downgraded(context.store)
        away = sorted(map(context.name_of, found))
        scoreless = sorted(context.name_of(key) for key, score in found.items() if score is None)
        if away:
            yield Finding(
                Severity.NOTE,
                "downgraded",
                context.store.parts.of(next(iter(found))).downgraded,
                f"Taken out for celery-redbeat 2.x: {_named(away)}.",
                "Nothing: what is there comes back when a beat of version 3 leads.",
            )
        if scoreless:
            yield Finding(
                Severity.WARNING,
                "downgraded",
                context.store.parts.of(next(iter(found))).downgraded,
                f"It has no valid score for {_named(scoreless)}: they are due as soon as they come back.",
                "Write when each is due, in UNIX seconds, into its field of that hash.",
            )


def _named(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"{counted(len(names))} ({', '.join(names[:MAX_NAMED])}{more})"
