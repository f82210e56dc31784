"""The pages of entries in Django's admin.

Invariant: each page asks Django for the login and the permission, and Redis for what it shows. An error of
RedBeat's is a page with its sentence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import wraps
from secrets import token_urlsafe
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME, AdminForm
from django.contrib.admin.models import ADDITION, CHANGE, DELETION, LogEntry
from django.contrib.admin.options import get_content_type_for_model
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.contrib.admin.utils import quote
from django.core.exceptions import PermissionDenied
from django.http import HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, re_path, reverse

from redbeat.contrib.django import editing
from redbeat.contrib.django.access import AdminVisit, has_permission, user_with
from redbeat.contrib.django.actions import ACTIONS, Action, Outcome, carry_out, hint_at
from redbeat.contrib.django.addresses import name_of, part_for
from redbeat.contrib.django.celery_app import find_app
from redbeat.contrib.django.dashboard import dashboard_view
from redbeat.contrib.django.editing import JSON, Saved
from redbeat.contrib.django.listing import read_listing
from redbeat.contrib.django.models import Entry
from redbeat.contrib.django.summary import summary_of
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.query import entries_called, read_listed
from redbeat.entries.wording import in_words_of, label_of, one_line
from redbeat.errors import AccessDenied, EntryChanged, EntryError, EntryNotFound, RedBeatError
from redbeat.log.text import counted
from redbeat.store.store import Store
from redbeat.web.access.users import User
from redbeat.web.routes import sentence_of, status_of
from redbeat.web.threads import PATIENCE_SECONDS
from redbeat.web.verbs.editing import revision_of

#: the fields of a question besides the entries: those of a pause, what tells one form from another, and which
#: entry was seen
ASKED = ("note", "until", "once", "revision")
#: of how many failures of an action each is said
MAX_TOLD = 20
#: a longer name doesn't stand in an address of the dashboard
MAX_IN_ADDRESS = 500

View = Callable[..., Any]


def _answering(view: View) -> View:
    """Return a view that gets the Celery app, and to whose caller no error of RedBeat's comes."""

    @wraps(view)
    def answer(self: EntryAdmin, request: Any, *args: Any, **kwargs: Any) -> Any:
        request.current_app = self.admin_site.name
        try:
            app = find_app()
            with Store.in_haste(app, PATIENCE_SECONDS):
                return view(self, request, app, *args, **kwargs)
        except AccessDenied as exc:
            raise PermissionDenied(str(exc)) from exc
        except EntryNotFound:
            shown = one_line(kwargs.get("object_id", ""), 200)
            return self._get_obj_does_not_exist_redirect(request, self.opts, shown)
        except RedBeatError as exc:
            return self.show_error(request, exc)

    return answer


class EntryAdmin(admin.ModelAdmin):
    """The entries of the schedule in an admin site. Register it with ``Entry`` in a site of your own."""

    change_form_template = "admin/redbeat/entry/change_form.html"
    change_list_template = "admin/redbeat/entry/change_list.html"
    question_template = "admin/redbeat/entry/question.html"
    error_template = "admin/redbeat/entry/error.html"

    # -- addresses

    def get_urls(self) -> list[Any]:
        """Return the addresses that each model has in the admin, those of actions, and the dashboard."""
        page, one = self.admin_site.admin_view, "<path:object_id>"
        views = {
            "changelist": ("", self.changelist_view),
            "add": ("add/", self.add_view),
            "change": (f"{one}/change/", self.change_view),
            "history": (f"{one}/history/", self.history_view),
            "delete": (f"{one}/delete/", self.delete_view),
            "action": (f"{one}/action/<slug:action>/", self.action_view),
        }
        dashboard = dashboard_view(self, self.user_of)
        return [
            *(path(route, page(view), name=self._name_of(name)) for name, (route, view) in views.items()),
            re_path(r"^dashboard/(?P<below>.*)\Z", dashboard, name=self._name_of("dashboard")),
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
        return self.has_change_permission(request) or has_permission(request.user, "pause")

    def has_run_permission(self, request: Any) -> bool:
        """Tell whether somebody may run entries now."""
        return self.has_change_permission(request) or has_permission(request.user, "run")

    def user_of(self, request: Any) -> User:
        """Return who has sent a request, and what they may do here."""
        has: dict[str, Callable[[Any], bool]] = {
            "view": self.has_view_permission,
            "add": self.has_add_permission,
            "change": self.has_change_permission,
            "pause": self.has_pause_permission,
            "run": self.has_run_permission,
            "delete": self.has_delete_permission,
        }
        return user_with(request.user, [one for one, may in has.items() if may(request)])

    # -- the list

    @_answering
    def changelist_view(self, request: Any, app: Any, extra_context: Any = None) -> Any:
        """Show the list of entries, or do something with those that are chosen in it."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        visit = AdminVisit(request, app, self.user_of(request))
        if request.method == "POST":
            return self._act_on_chosen(request, visit)
        found = read_listing(visit, request.GET.dict())
        context = {
            **self.admin_site.each_context(request),
            "title": "Entries of the schedule",
            "subtitle": None,
            "opts": self.opts,
            "media": self.media,
            "found": found,
            "rows": [(line, self._kept(request, "change", line.part)) for line in found.lines],
            "titles": (
                "Name and task",
                "Schedule",
                f"Next run ({label_of(visit.zone)})",
                "State",
                "Last outcome",
            ),
            "count": len(found.lines),
            "actions": _actions_for(visit),
            "add_url": self._kept(request, "add", "") if self.has_add_permission(request) else "",
            "dashboard_url": self.address_of("dashboard", ""),
            "checkbox": ACTION_CHECKBOX_NAME,
            **(extra_context or {}),
        }
        return TemplateResponse(request, self.change_list_template, context)

    def _kept(self, request: Any, view: str, part: str | None) -> str:
        """Return the address of a page from which the way back leads to the list as it is; '' for none."""
        if part is None:
            return ""
        kept = {"preserved_filters": self.get_preserved_filters(request), "opts": self.opts}
        return str(add_preserved_filters(kept, self.address_of(view, *filter(None, [part]))))

    # -- adding and changing

    @_answering
    def add_view(self, request: Any, app: Any, form_url: str = "", extra_context: Any = None) -> Any:
        """Show the form of a new entry, or store it."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        visit = AdminVisit(request, app, self.user_of(request), is_adding=True)
        if request.method == "POST":
            saved = self._save(visit, request)
            if saved.entry is not None:
                name = str(saved.entry.name)
                self._log(request, [name], ADDITION, [{"added": {}}])
                return self._after_saving(request, name, saved)
        else:
            like = request.GET.get("like", "") if self.has_view_or_change_permission(request) else ""
            saved = Saved(editing.new_form(visit, name_of(like, app) if like else ""))
        return self._show_form(request, visit, saved, None, form_url, extra_context)

    @_answering
    def change_view(
        self, request: Any, app: Any, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> Any:
        """Show a stored entry, or store what was changed."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        visit, name = AdminVisit(request, app, self.user_of(request)), name_of(object_id, app)
        if request.method == "POST":
            if not self.has_change_permission(request):
                raise PermissionDenied
            saved = self._save(visit, request, name)
            if saved.entry is not None:
                if saved.changed:
                    self._log(request, [name], CHANGE, [{"changed": {"fields": saved.changed}}])
                return self._after_saving(request, name, saved)
        else:
            entry = read_listed(RedBeatSchedulerEntry, app, name)
            is_json = request.GET.get("as") == JSON
            saved = Saved(editing.form_of_entry(visit, entry, as_json=is_json))
            saved.summary = summary_of(visit, entry)
            if not self.has_change_permission(request):
                saved.form.make_read_only()
        return self._show_form(request, visit, saved, name, form_url, extra_context)

    def _save(self, visit: AdminVisit, request: Any, name: str = "") -> Saved:
        """Return what has become of a form. Whatever Redis says, what was typed isn't lost."""
        try:
            return editing.save(visit, request.POST, name)
        except AccessDenied:
            raise
        except RedBeatError as exc:
            form = editing.form_as_typed(visit, request.POST, name)
            words, status = in_words_of(sentence_of(exc), visit.zone), status_of(exc)
            if status == 503:
                words += " What you have typed is still here: save it once more in a while."
            form.note_problems({"": words})
            return Saved(form, status=status)

    def _show_form(
        self,
        request: Any,
        visit: AdminVisit,
        saved: Saved,
        name: str | None,
        form_url: str,
        extra_context: Any,
    ) -> Any:
        fields = AdminForm(saved.form, saved.form.fieldsets(), {}, model_admin=self)
        obj = None if name is None else Entry(name)
        part = None if name is None else part_for(name)
        context = {
            **self.admin_site.each_context(request),
            "title": "Add entry" if name is None else "Entry",
            "subtitle": None if obj is None else str(obj),
            "adminform": fields,
            "object_id": name,
            "original": obj,
            "is_popup": False,
            "media": self.media + fields.media,
            "inline_admin_formsets": [],
            "errors": saved.form.errors if saved.form.is_bound else {},
            "preserved_filters": self.get_preserved_filters(request),
            "show_delete": part == quote(name),  # else Django's link would lead elsewhere
            "conflict": saved.conflict,
            "summary": saved.summary,
            "tools": [] if part is None else self._tools(visit, str(name), part, saved),
            **(extra_context or {}),
        }
        response = self.render_change_form(
            request, context, add=name is None, change=name is not None, form_url=form_url, obj=obj
        )
        response.status_code = saved.status
        return response

    def _tools(self, visit: AdminVisit, name: str, part: str, saved: Saved) -> list[tuple[str, str]]:
        """Return titles and addresses of what else can be done with an entry."""
        offered = () if saved.summary is None else saved.summary.actions
        tools = [
            (one.short, self.address_of("action", part, key))
            for key, one in _actions_for(visit).items()
            if key in offered or (key == "delete_selected" and part != quote(name))
        ]
        if saved.form.is_json:
            tools.append(("As a form", self.address_of("change", part)))
        else:
            tools.append(("As JSON", self.address_of("change", part, **{"as": JSON})))
        if visit.user.may_add:
            tools.append(("Add one like it", self.address_of("add", like=part)))
        if len(part) < MAX_IN_ADDRESS:
            tools.append(("Dashboard", self.address_of("dashboard", "entry", name=name)))
        tools.append(("History", self.address_of("history", part)))
        return tools

    def _after_saving(self, request: Any, name: str, saved: Saved) -> Any:
        """Return where the button leads that was pressed."""
        self.message_user(request, saved.words, messages.SUCCESS)
        for hint in saved.hints:
            self.message_user(request, hint, messages.WARNING)
        if "_continue" in request.POST and self.has_view_or_change_permission(request):
            return HttpResponseRedirect(self._kept(request, "change", part_for(name)))
        if "_addanother" in request.POST and self.has_add_permission(request):
            return HttpResponseRedirect(self._kept(request, "add", ""))
        return self.response_post_save_change(request, Entry(name))

    # -- actions

    def _act_on_chosen(self, request: Any, visit: AdminVisit) -> Any:
        here = HttpResponseRedirect(request.get_full_path())
        chosen = [given for given in request.POST.getlist("action") if given]
        action = ACTIONS.get(chosen[0]) if chosen else None
        if action is None:
            self.message_user(request, "No action was chosen.", messages.WARNING)
            return here
        names = [name_of(part, visit.app) for part in request.POST.getlist(ACTION_CHECKBOX_NAME)]
        if not names:
            words = "No entries were chosen, so nothing was done: tick some of them."
            self.message_user(request, words, messages.WARNING)
            return here
        if not visit.user.may(action.right):
            raise PermissionDenied
        if action.is_asked and request.POST.get("post") != "yes":
            return self._ask(request, visit, chosen[0], names)
        return self._carry_out(request, visit, chosen[0], names) or here

    @_answering
    def action_view(self, request: Any, app: Any, object_id: str, action: str) -> Any:
        """Ask whether something is to be done with one entry, and do it."""
        visit, name = AdminVisit(request, app, self.user_of(request)), name_of(object_id, app)
        if action not in ACTIONS:
            raise EntryNotFound(f"{action}: there is no such action.", "")
        if not visit.user.may(ACTIONS[action].right):
            raise PermissionDenied
        if request.method != "POST":
            return self._ask(request, visit, action, [name])
        failed = self._carry_out(request, visit, action, [name])
        if failed is not None or not self.has_view_or_change_permission(request):
            return failed or self.response_post_save_change(request, Entry(name))
        return HttpResponseRedirect(self._kept(request, "change", part_for(name)))

    @_answering
    def delete_view(self, request: Any, app: Any, object_id: str, extra_context: Any = None) -> Any:
        """Ask whether an entry is to be deleted, and delete it."""
        if not self.has_delete_permission(request):
            raise PermissionDenied
        visit, name = AdminVisit(request, app, self.user_of(request)), name_of(object_id, app)
        if request.method != "POST":
            return self._ask(request, visit, "delete_selected", [name], extra_context=extra_context)
        failed = self._carry_out(request, visit, "delete_selected", [name])
        return failed or self.response_post_save_change(request, Entry(name))

    def _ask(
        self,
        request: Any,
        visit: AdminVisit,
        key: str,
        names: Sequence[str],
        problem: str = "",
        status: int = 200,
        extra_context: Any = None,
    ) -> Any:
        """Show which entries an action is about, and what is to be known before."""
        action, read = ACTIONS[key], entries_called(RedBeatSchedulerEntry, visit.app, names)
        entries = [entry for entry in read if entry is not None]
        if not entries:
            raise EntryNotFound(f"{one_line(names[0], 200)}: there is no such entry.", "")
        is_delete = key == "delete_selected"
        context = {
            **self.admin_site.each_context(request),
            "title": action.short,
            "subtitle": None,
            "opts": self.opts,
            "media": self.media,
            "key": key,
            "action": action,
            "entries": [(str(Entry(str(one.name))), part_for(str(one.name)), one.task) for one in entries],
            "told": counted(len(entries), "entry", "entries"),
            "is_pause": key == "pause",
            "is_delete": is_delete,
            "hint": hint_at(visit, [str(one.name) for one in entries]) if is_delete else "",
            "typed": {name: request.POST.get(name, "") for name in ASKED},
            "once": token_urlsafe(16),
            "revision": revision_of(entries[0]) if is_delete and len(entries) == 1 else "",
            "problem": problem,
            "checkbox": ACTION_CHECKBOX_NAME,
            "back": self._kept(request, "changelist", ""),
            **(extra_context or {}),
        }
        return TemplateResponse(request, self.question_template, context, status=status)

    def _carry_out(self, request: Any, visit: AdminVisit, key: str, names: Sequence[str]) -> Any:
        """Do something with entries, and tell what has become of each; return a page only if it can't be."""
        fields = {name: request.POST.get(name, "") for name in ASKED}
        try:
            outcome = carry_out(visit, ACTIONS[key], names, fields)
        except EntryNotFound:
            raise
        except (EntryChanged, EntryError) as exc:
            words = in_words_of(str(exc), visit.zone)
            return self._ask(request, visit, key, names, words, status_of(exc))
        flag = DELETION if key == "delete_selected" else CHANGE
        self._log(request, outcome.done, flag, "" if flag == DELETION else f"{ACTIONS[key].done}.")
        self._tell(request, outcome)
        return None

    def _tell(self, request: Any, outcome: Outcome) -> None:
        if outcome.done:
            self.message_user(request, outcome.told, messages.SUCCESS)
        for words in outcome.left:
            self.message_user(request, words, messages.WARNING)
        for words in [*outcome.failed.values()][:MAX_TOLD]:
            self.message_user(request, words, messages.ERROR)
        if len(outcome.failed) > MAX_TOLD:
            words = f"{len(outcome.failed) - MAX_TOLD} more failed."
            self.message_user(request, words, messages.ERROR)

    # -- what Django knows of entries

    @_answering
    def history_view(self, request: Any, app: Any, object_id: str, extra_context: Any = None) -> Any:
        """Show what Django's log has of an entry."""
        return super().history_view(request, quote(name_of(object_id, app)), extra_context)

    def get_object(self, _request: Any, object_id: str, _from_field: Any = None) -> Entry | None:
        """Return the entry of a name, None if there is none."""
        try:
            return Entry(str(read_listed(RedBeatSchedulerEntry, find_app(), object_id).name))
        except EntryNotFound:
            return None

    def _log(self, request: Any, names: Sequence[str], flag: int, message: Any) -> None:
        kind = get_content_type_for_model(Entry)
        LogEntry.objects.bulk_create(
            LogEntry(
                user_id=request.user.pk,
                content_type_id=kind.pk,
                object_id=name,
                object_repr=str(Entry(name))[:200],
                action_flag=flag,
                change_message=message if isinstance(message, str) else json.dumps(message),
            )
            for name in names
        )

    # -- errors

    def show_error(self, request: Any, exc: RedBeatError) -> Any:
        """Show a page that says what is wrong."""
        context = {
            **self.admin_site.each_context(request),
            "title": "The schedule can't be shown",
            "subtitle": None,
            "opts": self.opts,
            "sentence": sentence_of(exc),
        }
        return TemplateResponse(request, self.error_template, context, status=status_of(exc))


def _actions_for(visit: AdminVisit) -> dict[str, Action]:
    return {key: one for key, one in ACTIONS.items() if visit.user.may(one.right)}
