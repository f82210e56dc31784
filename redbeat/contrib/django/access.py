"""Who uses the admin's pages, and what they may do: Django's permissions as RedBeat's rights.

========================  =========================================================
``view_entry``            see entries
``add_entry``             add entries
``change_entry``          change entries, pause and resume them, and run them now
``pause_entry``           pause and resume entries
``run_entry``             run entries now
``delete_entry``          delete entries
========================  =========================================================

Superusers have all rights.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, tzinfo
from functools import cached_property
from typing import Any

from django.utils import timezone

from redbeat.access import Right
from redbeat.access.users import User
from redbeat.operations.actor import Actor
from redbeat.store.server import Server
from redbeat.store.store import Store

#: the permissions, and the rights that each has
RIGHTS: dict[str, tuple[Right, ...]] = {
    "view": (Right.READ,),
    "add": (),  # in the dashboard there is no right for this alone
    "change": (Right.EDIT, Right.PAUSE, Right.RUN),
    "pause": (Right.PAUSE,),
    "run": (Right.RUN,),
    "delete": (Right.DELETE,),
}


def user_with(django_user: Any, permissions: Collection[str]) -> User:
    """Return a user of Django's, who has these permissions, as one of RedBeat's."""
    rights = {right for permission in permissions for right in RIGHTS[permission]}
    if django_user.is_active and django_user.is_superuser and len(permissions) == len(RIGHTS):
        rights.add(Right.ADMIN)
    return User(django_user.get_username(), rights, may_add="add" in permissions)


class AdminVisit:
    """One request to a page of the admin: who asks, about which schedule, in which zone.

    Arguments:
        request: Django's.
        app: the Celery app.
        user: who asks.
        is_adding: a new entry is added, which takes its permission alone.
    """

    def __init__(self, request: Any, app: Any, user: User, *, is_adding: bool = False) -> None:
        self.app = app
        self.user = User(user.name, {*user.rights, Right.EDIT}) if is_adding and user.may_add else user
        self.actor = Actor(app, self.user, "admin", request.META.get("REMOTE_ADDR") or "")

    @cached_property
    def now(self) -> datetime:
        """The server's clock, UTC."""
        return Server(Store(self.app)).now()

    @property
    def zone(self) -> tzinfo:
        """The time zone that Django has for this request."""
        zone: tzinfo = timezone.get_current_timezone()
        return zone

    def may(self, right: str) -> bool:
        """Tell whether the user has a right, by its name."""
        return self.user.may(Right(right))
