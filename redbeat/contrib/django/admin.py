"""The dashboard in Django's admin: its address, who may open it, and with which rights.

Invariant: Django's login and permissions decide about each request; only programs, below ``api/``, have
tokens of their own instead. The dashboard is imported with the first request, as workers and beat load this
module, too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import Http404
from django.urls import path, re_path, reverse
from django.views.decorators.csrf import csrf_exempt

from redbeat.access import Right
from redbeat.access.users import User
from redbeat.contrib.django.celery_app import find_app
from redbeat.contrib.django.models import Entry


@admin.register(Entry)
class EntryAdmin(admin.ModelAdmin):
    """The dashboard, where other models have their list. Register it with ``Entry`` in a site of your own."""

    def get_urls(self) -> list[Any]:
        """Return the addresses to which the admin links, and all below them."""
        name = f"{self.opts.app_label}_{self.opts.model_name}"
        return [
            path("", self.dashboard_view, {"below": ""}, name=f"{name}_changelist"),
            path("entry/new", self.dashboard_view, {"below": "entry/new"}, name=f"{name}_add"),
            re_path(r"^(?P<below>.*)\Z", self.dashboard_view, name=f"{name}_dashboard"),
        ]

    @csrf_exempt  # the dashboard's forms have a token of their own
    def dashboard_view(self, request: Any, below: str) -> Any:
        """Answer a request for the dashboard, or redirect to the admin's login."""
        if below in ("login", "logout"):
            raise Http404
        show = _dashboard_of(find_app(), self.user_of)
        # static files need no login, and a part of a page must not become the login page
        if below.startswith(("api/", "static/")) or "HX-Request" in request.headers:
            return show(request, below)
        return self.admin_site.admin_view(show)(request, below)

    dashboard_view.login_required = False  # for Django's LoginRequiredMiddleware: programs have no session

    def user_of(self, request: Any) -> User | None:
        """Return the user of a request with the rights that the permissions give; None: log in first.

        Raises:
            PermissionDenied: the user may see no entries.
        """
        if not self.admin_site.has_permission(request):
            return None
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        user, rights = request.user, {Right.READ}
        if self.has_change_permission(request):
            rights |= {Right.EDIT, Right.PAUSE, Right.RUN}
        if self.has_delete_permission(request):
            rights.add(Right.DELETE)
        for right in (Right.PAUSE, Right.RUN):
            if user.has_perm(f"{self.opts.app_label}.{right.value}_{self.opts.model_name}"):
                rights.add(right)
        may_add = self.has_add_permission(request)
        if user.is_superuser and may_add and rights == {*Right} - {Right.ADMIN}:
            rights.add(Right.ADMIN)
        home = reverse("admin:index", current_app=self.admin_site.name)
        return User(user.get_username(), rights, may_add=may_add, source="admin", home=home)

    def has_add_permission(self, request: Any) -> bool:
        """Return True if the user may add entries: that takes the permission to change them, too."""
        return bool(super().has_add_permission(request) and self.has_change_permission(request))


@cache
def _dashboard_of(app: Any, auth: Callable[[Any], User | None]) -> Callable[..., Any]:
    from redbeat.web.django import dashboard

    return dashboard(app, auth)
