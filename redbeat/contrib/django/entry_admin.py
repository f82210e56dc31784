"""The pages of entries in an admin site: their addresses, and who may see and do what there.

Invariant: each page asks Django for the login and the permission. What a page needs is imported when it is
asked for first: workers and beat load the admin, too, and show no page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.auth import get_permission_codename
from django.urls import path, re_path, reverse

from redbeat.contrib.django.celery_app import find_app
from redbeat.contrib.django.models import Entry
from redbeat.errors import EntryNotFound

if TYPE_CHECKING:
    from redbeat.access.users import User


class EntryAdmin(admin.ModelAdmin):
    """The entries of the schedule in an admin site. Register it with ``Entry`` in a site of your own."""

    change_form_template = "admin/redbeat/entry/change_form.html"
    change_list_template = "admin/redbeat/entry/change_list.html"
    question_template = "admin/redbeat/entry/question.html"
    error_template = "admin/redbeat/entry/error.html"

    # -- addresses

    def get_urls(self) -> list[Any]:
        """Return the addresses that each model has in the admin, those of actions, and the dashboard."""
        from redbeat.contrib.django.dashboard import dashboard_view

        page, one = self.admin_site.admin_view, "<path:object_id>"
        views = {
            "changelist": ("", self.changelist_view),
            "add": ("add/", self.add_view),
            "change": (f"{one}/change/", self.change_view),
            "history": (f"{one}/history/", self.history_view),
            "delete": (f"{one}/delete/", self.delete_view),
            "action": (f"{one}/action/<slug:action>/", self.action_view),
        }
        return [
            *(path(route, page(view), name=self._name_of(name)) for name, (route, view) in views.items()),
            re_path(r"^dashboard/(?P<below>.*)\Z", dashboard_view(self), name=self._name_of("dashboard")),
        ]

    def _name_of(self, view: str) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_{view}"

    def address_of(self, view: str, *args: str, **query: str) -> str:
        """Return the address of one of these pages."""
        url = reverse(f"admin:{self._name_of(view)}", args=args, current_app=self.admin_site.name)
        return f"{url}?{urlencode(query)}" if query else str(url)

    # -- permissions: each method may be overridden

    def has_pause_permission(self, request: Any) -> bool:
        """Tell whether somebody may pause and resume entries."""
        return self.has_change_permission(request) or self._has(request, "pause")

    def has_run_permission(self, request: Any) -> bool:
        """Tell whether somebody may run entries now."""
        return self.has_change_permission(request) or self._has(request, "run")

    def _has(self, request: Any, permission: str) -> bool:
        codename = get_permission_codename(permission, self.opts)
        return bool(request.user.has_perm(f"{self.opts.app_label}.{codename}"))

    def user_of(self, request: Any) -> User:
        """Return who has sent a request as one of RedBeat's users, with the rights that they have here."""
        from redbeat.contrib.django.access import user_with

        has = {
            "view": self.has_view_permission(request),
            "add": self.has_add_permission(request),
            "change": self.has_change_permission(request),
            "pause": self.has_pause_permission(request),
            "run": self.has_run_permission(request),
            "delete": self.has_delete_permission(request),
        }
        return user_with(request.user, [permission for permission, is_there in has.items() if is_there])

    # -- pages, as Django calls them

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        """Show the list of entries, or do something with those that are chosen in it."""
        return self._answer(request, "show_list", extra_context=extra_context)

    def add_view(self, request: Any, form_url: str = "", extra_context: Any = None) -> Any:
        """Show the form of a new entry, or store it."""
        return self._answer(request, "add", form_url, extra_context=extra_context)

    def change_view(self, request: Any, object_id: str, form_url: str = "", extra_context: Any = None) -> Any:
        """Show a stored entry, or store what was changed."""
        return self._answer(request, "change", object_id, form_url, extra_context=extra_context)

    def delete_view(self, request: Any, object_id: str, extra_context: Any = None) -> Any:
        """Ask whether an entry is to be deleted, and delete it."""
        return self._answer(request, "delete", object_id, extra_context=extra_context)

    def action_view(self, request: Any, object_id: str, action: str) -> Any:
        """Ask whether something is to be done with one entry, and do it."""
        return self._answer(request, "act_on_one", object_id, action)

    def history_view(self, request: Any, object_id: str, extra_context: Any = None) -> Any:
        """Show what Django's log has of an entry."""
        show = super().history_view
        return self._answer(request, "show_history", object_id, show, extra_context=extra_context)

    def _answer(self, request: Any, page: str, *args: Any, **given: Any) -> Any:
        from redbeat.contrib.django.pages import answer

        return answer(self, request, page, *args, **given)

    def get_object(self, _request: Any, object_id: str, _from_field: Any = None) -> Entry | None:
        """Return the entry of a name, None if there is none."""
        from redbeat.entries.entry import RedBeatSchedulerEntry
        from redbeat.entries.query import read_listed

        try:
            return Entry(str(read_listed(RedBeatSchedulerEntry, find_app(), object_id).name))
        except EntryNotFound:
            return None
