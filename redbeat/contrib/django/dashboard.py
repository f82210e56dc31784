"""The dashboard below the admin, with the admin's login: whoever may see entries there may see it.

Invariant: what Django's permissions allow in the admin they allow here, and no more. Programs are let in
below ``api/`` with their own tokens, as in any other place of the dashboard.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from django.core.exceptions import PermissionDenied
from django.views.decorators.csrf import csrf_exempt

from redbeat.access.users import User
from redbeat.contrib.django.celery_app import find_app
from redbeat.contrib.django.entry_admin import EntryAdmin
from redbeat.web.django import urls
from redbeat.web.paths import API, STATIC


def dashboard_view(model_admin: EntryAdmin) -> Callable[..., Any]:
    """Return the view of the dashboard and of all below it, for a pattern with the group ``below``.

    Arguments:
        model_admin: the admin's pages of entries; who may see these may see the dashboard.
    """
    site, sees = model_admin.admin_site, model_admin.has_view_or_change_permission

    def auth(request: Any) -> User | None:
        return model_admin.user_of(request) if site.has_permission(request) and sees(request) else None

    @cache
    def dashboard_of(app: Any) -> Callable[..., Any]:
        [pattern] = urls(app, auth=auth)
        return pattern.callback  # type: ignore[no-any-return]

    def show(request: Any, below: str) -> Any:
        if not sees(request):
            raise PermissionDenied
        return dashboard_of(find_app())(request, below=below)

    show_after_login = site.admin_view(csrf_exempt(show))

    def view(request: Any, below: str) -> Any:
        # programs and files need no login, and a part of a page isn't the place to ask for one
        if f"/{below}".startswith((API, STATIC)) or "HX-Request" in request.headers:
            return dashboard_of(find_app())(request, below=below)
        return show_after_login(request, below=below)

    view.login_required = False  # type: ignore[attr-defined]  # by Django's middleware; it is here
    return csrf_exempt(view)  # type: ignore[no-any-return]  # each form of the dashboard has its own token
