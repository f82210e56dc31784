"""What the doctor says: a finding, how bad it is, and how it is repaired."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class Severity(IntEnum):
    """How bad a finding is; the values are the exit codes of ``celery redbeat doctor``."""

    NOTE = 0
    WARNING = 1
    ERROR = 2


@dataclass(frozen=True)
class Repair:
    """What would repair a finding without losing a definition.

    Attributes:
        action: 'drop' a member of the schedule without an entry, 'schedule' an entry that isn't a member,
            'forget' the name of a static entry that is gone, 'delete' what was kept beside one,
            'schedule-message' the entry of a stored message that isn't to be sent, 'delete-body' what is left
            of one, 'move' an entry, or all entries of a part that is none any more, to where they belong,
            'free' what was left hidden in a part, or 'raise-generation' to let a part be written by those who
            know the layout.
        entry_key: the key of the entry that it is about; of a part its schedule.
        target: the member, the name, or the key that is deleted or moved; of a run its key, or its deadline;
            of a part its prefix, or its key that it is about.
    """

    action: str
    entry_key: str
    target: str


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or may be.

    Attributes:
        kind: which check has found it, for programs.
        about: the entry, key, setting, queue or server that it is about.
        problem: what is wrong, one sentence.
        advice: what to do, one sentence or two.
        excerpt: the part of the stored text that is wrong; '' where there is none.
        repair: None: nothing that can be done without you.
        entry: the name of the entry that it is about; None: it is about something else.
    """

    severity: Severity
    kind: str
    about: str
    problem: str
    advice: str
    excerpt: str = ""
    repair: Repair | None = None
    entry: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as a dict of plain JSON."""
        return {
            "severity": self.severity.name.lower(),
            "kind": self.kind,
            "about": self.about,
            "problem": self.problem,
            "advice": self.advice,
            "excerpt": self.excerpt or None,
            "fixable": self.repair is not None,
        }


def worst_of(findings: Iterable[Finding]) -> Severity:
    """Return the highest severity among ``findings``; NOTE if there are none."""
    return max((finding.severity for finding in findings), default=Severity.NOTE)
