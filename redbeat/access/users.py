"""A user of the dashboard and what they may do. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from redbeat.access import Right, rights_of
from redbeat.errors import AccessDenied


@dataclass(frozen=True)
class User:
    """A user of the dashboard.

    Arguments:
        name: as it stands in the audit list.
        rights: ``read``, ``pause``, ``run``, ``edit``, ``delete`` and ``admin``, as text or
            :class:`redbeat.access.rights.Right`.
            ``admin`` has all of them, and each of the others has ``read``.
        until: when they aren't let in any more, with its offset from UTC, to be shown; None: it isn't known.
        may_add: with the right ``edit``, whether they may add entries, too, and not only change those that
            there are.
        source: where their changes come from, as the audit list has it.
        home: the path of the site around the dashboard, to which its pages have a link; '': no link.

    Raises:
        ValueError: there is no such right.
    """

    name: str
    rights: Iterable[str | Right]
    until: datetime | None = None
    may_add: bool = field(default=True, kw_only=True)
    source: str = field(default="web", kw_only=True)
    home: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", str(self.name))
        object.__setattr__(self, "rights", rights_of(self.rights))

    def may(self, right: Right) -> bool:
        """Return True if they have ``right``."""
        return right in self.rights

    def require(self, right: Right) -> None:
        """Raise AccessDenied if they don't have ``right``."""
        if not self.may(right):
            raise AccessDenied(
                f"{self.name or 'This user'} may not do this: it takes the right {right.value!r}.",
                right.value,
            )

    def require_adding(self) -> None:
        """Raise AccessDenied if they may not add entries."""
        self.require(Right.EDIT)
        if not self.may_add:
            raise AccessDenied(
                f"{self.name or 'This user'} may change the entries that there are, but add none.",
                Right.EDIT.value,
            )

    def only_reading(self) -> User:
        """Return them with the right to read alone."""
        return _Reader(self.name, {Right.READ} if self.may(Right.READ) else (), self.until)


class _Reader(User):
    """A user of a dashboard in which nobody may do more than read, whatever their rights."""

    def require(self, right: Right) -> None:
        """Raise AccessDenied if they don't have ``right``."""
        if not self.may(right):
            raise AccessDenied("This dashboard is read-only: nobody can change anything here.", right.value)
