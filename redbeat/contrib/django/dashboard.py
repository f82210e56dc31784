"""The dashboard below the admin, with the admin's login: whoever may see entries there may see it.

Invariant: what Django's permissions allow in the admin they allow here, and no more. Programs are let in
below ``api/`` with their own tokens, as in any other place of the dashboard.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.views.decorators.csrf import csrf_exempt

from redbeat.contrib.django.access import may, user_of
from redbeat.contrib.django.celery_app import find_app
from redbeat.web.access.users import User
from redbeat.web.django import urls
from redbeat.web.paths import API, STATIC


def dashboard_view(site: AdminSite) -> Callable[..., Any]:
    """Return the view of the dashboard and of all below it, for a pattern with the group ``below``."""

    def let_in(request: Any, below: str) -> Any:
        if not (may(request.user, "view") or may(request.user, "change")):
            raise PermissionDenied
        return _dashboard_of(find_app())(request, below=below)

    let_in_by_admin = site.admin_view(csrf_exempt(let_in))

    def view(request: Any, below: str) -> Any:
        if f"/{below}".startswith((API, STATIC)):
            return _dashboard_of(find_app())(request, below=below)
        return let_in_by_admin(request, below=below)

    return csrf_exempt(view)  # type: ignore[no-any-return]  # each form of the dashboard has its own token


@cache
def _dashboard_of(app: Any) -> Callable[..., Any]:
    [pattern] = urls(app, auth=_user_of_request)
    return pattern.callback  # type: ignore[no-any-return]


def _user_of_request(request: Any) -> User | None:
    return user_of(request.user)
