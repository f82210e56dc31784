"""What the pages of entries in the admin show and do, one request at a time.

Invariant: an error of RedBeat's is a page with its sentence; and what somebody may not do isn't done, however
they ask for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from secrets import token_urlsafe
from typing import Any

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME, AdminForm
from django.contrib.admin.models import ADDITION, CHANGE, DELETION, LogEntry
from django.contrib.admin.options import get_content_type_for_model
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.contrib.admin.utils import quote
from django.core.exceptions import PermissionDenied
from django.http import HttpResponseRedirect
from django.template.response import TemplateResponse

from redbeat.config.config import ensure_conf
from redbeat.connection.client import using_client
from redbeat.contrib.django import editing
from redbeat.contrib.django.access import AdminVisit
from redbeat.contrib.django.actions import ACTIONS, Action, Outcome, carry_out, hint_at
from redbeat.contrib.django.addresses import name_of, part_for
from redbeat.contrib.django.celery_app import find_app
from redbeat.contrib.django.editing import JSON, Saved
from redbeat.contrib.django.entry_admin import EntryAdmin
from redbeat.contrib.django.listing import read_listing
from redbeat.contrib.django.models import Entry
from redbeat.contrib.django.summary import summary_of
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.query import entries_called, read_listed
from redbeat.entries.wording import in_words_of, label_of, one_line
from redbeat.errors import AccessDenied, EntryChanged, EntryError, EntryNotFound, RedBeatError
from redbeat.log.text import counted
from redbeat.operations.editing import revision_of
from redbeat.store.store import Store
from redbeat.web.routes import sentence_of, status_of
from redbeat.web.threads import PATIENCE_SECONDS

#: the fields of a question besides the entries: those of a pause, what tells one form from another, and which
#: entry was seen
ASKED = ("note", "until", "once", "revision")
#: of how many failures of an action each is said
MAX_TOLD = 20
#: a longer name doesn't stand in an address of the dashboard
MAX_IN_ADDRESS = 500


def answer(model_admin: EntryAdmin, request: Any, page: str, *args: Any, extra_context: Any = None) -> Any:
    """Return the answer to a request.

    Arguments:
        page: the method of :class:`Pages` that answers it, with these ``args``.
        extra_context: of the page's template.
    """
    request.current_app = model_admin.admin_site.name
    try:
        app = find_app()
        with Store.hasty(app, PATIENCE_SECONDS) as store, using_client(app, store.client):
            return getattr(Pages(model_admin, request, app, extra_context), page)(*args)
    except AccessDenied as exc:
        raise PermissionDenied(str(exc)) from exc
    except EntryNotFound as exc:
        lost = model_admin._get_obj_does_not_exist_redirect  # noqa: SLF001 - Django has no other name for it
        return lost(request, model_admin.opts, one_line(ensure_conf(app).keys.name(exc.key), 200))
    except RedBeatError as exc:
        context = {
            **model_admin.admin_site.each_context(request),
            "title": "The schedule can't be shown",
            "subtitle": None,
            "opts": model_admin.opts,
            "sentence": sentence_of(exc),
        }
        return TemplateResponse(request, model_admin.error_template, context, status=status_of(exc))


class Pages:
    """One request.

    Arguments:
        model_admin: whose permissions, templates and addresses count.
        app: the Celery app.
    """

    def __init__(self, model_admin: EntryAdmin, request: Any, app: Any, extra_context: Any) -> None:
        self.admin, self.request, self.app = model_admin, request, app
        self.extra_context = extra_context or {}
        self.visit = AdminVisit(request, app, model_admin.user_of(request))
        self.sees = model_admin.has_view_or_change_permission(request)

    # -- the list

    def show_list(self) -> Any:
        """Show the list of entries, or do something with those that are chosen in it."""
        _require(self.sees)
        if self.request.method == "POST":
            return self._act_on_chosen()
        found = read_listing(self.visit, self.request.GET.dict())
        zone = label_of(self.visit.zone)
        return self._page(
            self.admin.change_list_template,
            "Entries of the schedule",
            found=found,
            rows=[(line, self._kept("change", line.part)) for line in found.lines],
            titles=("Name and task", "Schedule", f"Next run ({zone})", "State", "Last outcome"),
            count=len(found.lines),
            actions=self._actions(),
            add_url=self._kept("add", "") if self.admin.has_add_permission(self.request) else "",
            dashboard_url=self.admin.address_of("dashboard", ""),
        )

    # -- adding and changing

    def add(self, form_url: str) -> Any:
        """Show the form of a new entry, or store it."""
        _require(self.admin.has_add_permission(self.request))
        self.visit = AdminVisit(self.request, self.app, self.visit.user, is_adding=True)
        if self.request.method == "POST":
            saved = self._save()
            if saved.entry is not None:
                name = str(saved.entry.name)
                self._log([name], ADDITION, [{"added": {}}])
                return self._after_saving(name, saved)
        else:
            like = self.request.GET.get("like", "") if self.sees else ""
            saved = Saved(editing.new_form(self.visit, name_of(like, self.app) if like else ""))
        return self._show_form(saved, None, form_url)

    def change(self, object_id: str, form_url: str) -> Any:
        """Show a stored entry, or store what was changed."""
        _require(self.sees)
        name, may_change = name_of(object_id, self.app), self.admin.has_change_permission(self.request)
        if self.request.method == "POST":
            _require(may_change)
            saved = self._save(name)
            if saved.entry is not None:
                if saved.changed:
                    self._log([name], CHANGE, [{"changed": {"fields": saved.changed}}])
                return self._after_saving(name, saved)
        else:
            entry = read_listed(RedBeatSchedulerEntry, self.app, name)
            form = editing.form_of_entry(self.visit, entry, as_json=self.request.GET.get("as") == JSON)
            if not may_change:
                form.make_read_only()
            saved = Saved(form, summary=summary_of(self.visit, entry))
        return self._show_form(saved, name, form_url)

    def _save(self, name: str = "") -> Saved:
        """Return what has become of a form. Whatever Redis says, what was typed isn't lost."""
        try:
            return editing.save(self.visit, self.request.POST, name)
        except AccessDenied:
            raise
        except RedBeatError as exc:
            form = editing.form_as_typed(self.visit, self.request.POST, name)
            words, status = in_words_of(sentence_of(exc), self.visit.zone), status_of(exc)
            if status == 503:
                words += " What you have typed is still here: save it once more in a while."
            form.note_problems({"": words})
            return Saved(form, status=status)

    def _show_form(self, saved: Saved, name: str | None, form_url: str) -> Any:
        fields = AdminForm(saved.form, saved.form.fieldsets(), {}, model_admin=self.admin)
        obj, part = (None, None) if name is None else (Entry(name), part_for(name))
        context = {
            **self.admin.admin_site.each_context(self.request),
            "title": "Add entry" if name is None else "Entry",
            "subtitle": None if obj is None else str(obj),
            "adminform": fields,
            "object_id": name,
            "original": obj,
            "is_popup": False,
            "media": self.admin.media + fields.media,
            "inline_admin_formsets": [],
            "errors": saved.form.errors if saved.form.is_bound else {},
            "preserved_filters": self.admin.get_preserved_filters(self.request),
            "show_delete": part == quote(name),  # else Django's link would lead elsewhere
            "conflict": saved.conflict,
            "summary": saved.summary,
            "tools": [] if part is None else self._tools(str(name), part, saved),
            **self.extra_context,
        }
        is_new = name is None
        response = self.admin.render_change_form(
            self.request, context, add=is_new, change=not is_new, form_url=form_url, obj=obj
        )
        response.status_code = saved.status
        return response

    def _tools(self, name: str, part: str, saved: Saved) -> list[tuple[str, str]]:
        """Return titles and addresses of what else can be done with an entry."""
        address_of = self.admin.address_of
        offered = () if saved.summary is None else saved.summary.actions
        tools = [
            (one.short, address_of("action", part, key))
            for key, one in self._actions().items()
            if key in offered or (key == "delete_selected" and part != quote(name))
        ]
        if saved.form.is_json:
            tools.append(("As a form", address_of("change", part)))
        else:
            tools.append(("As JSON", address_of("change", part, **{"as": JSON})))
        if self.visit.user.may_add:
            tools.append(("Add one like it", address_of("add", like=part)))
        if len(part) < MAX_IN_ADDRESS:
            tools.append(("Dashboard", address_of("dashboard", "entry", name=name)))
        return [*tools, ("History", address_of("history", part))]

    def _after_saving(self, name: str, saved: Saved) -> Any:
        """Return where the button leads that was pressed."""
        self._say(messages.SUCCESS, saved.words)
        self._say(messages.WARNING, *saved.hints)
        if "_continue" in self.request.POST and self.sees:
            return HttpResponseRedirect(self._kept("change", part_for(name)))
        if "_addanother" in self.request.POST and self.admin.has_add_permission(self.request):
            return HttpResponseRedirect(self._kept("add", ""))
        return self.admin.response_post_save_change(self.request, Entry(name))

    # -- actions

    def _actions(self) -> dict[str, Action]:
        return {key: one for key, one in ACTIONS.items() if self.visit.user.may(one.right)}

    def _act_on_chosen(self) -> Any:
        posted = self.request.POST
        key = next(filter(None, posted.getlist("action")), "")
        names = [name_of(part, self.app) for part in posted.getlist(ACTION_CHECKBOX_NAME)]
        if key not in ACTIONS:
            self._say(messages.WARNING, "No action was chosen.")
        elif not names:
            self._say(messages.WARNING, "No entries were chosen, so nothing was done: tick some of them.")
        else:
            _require(key in self._actions())
            if ACTIONS[key].is_asked and posted.get("post") != "yes":
                return self._ask(key, names)
            if (page := self._carry_out(key, names)) is not None:
                return page
        return HttpResponseRedirect(self.request.get_full_path())

    def act_on_one(self, object_id: str, key: str) -> Any:
        """Ask whether something is to be done with one entry, and do it."""
        name = name_of(object_id, self.app)
        if key not in ACTIONS:
            raise EntryNotFound(f"{key}: there is no such action.", key)
        _require(key in self._actions())
        if self.request.method != "POST":
            return self._ask(key, [name])
        if (page := self._carry_out(key, [name])) is not None:
            return page
        if key == "delete_selected" or not self.sees:
            return self.admin.response_post_save_change(self.request, Entry(name))
        return HttpResponseRedirect(self._kept("change", part_for(name)))

    def delete(self, object_id: str) -> Any:
        """Ask whether an entry is to be deleted, and delete it."""
        return self.act_on_one(object_id, "delete_selected")

    def _ask(self, key: str, names: Sequence[str], problem: str = "", status: int = 200) -> Any:
        """Show which entries an action is about, and what is to be known before."""
        read = entries_called(RedBeatSchedulerEntry, self.app, names)
        entries = [entry for entry in read if entry is not None]
        if not entries:
            raise EntryNotFound(f"{one_line(names[0], 200)}: there is no such entry.", names[0])
        found, is_delete = [str(entry.name) for entry in entries], key == "delete_selected"
        return self._page(
            self.admin.question_template,
            ACTIONS[key].short,
            status,
            key=key,
            action=ACTIONS[key],
            entries=[(str(Entry(str(one.name))), part_for(str(one.name)), one.task) for one in entries],
            told=counted(len(entries), "entry", "entries"),
            is_pause=key == "pause",
            is_delete=is_delete,
            hint=hint_at(self.visit, found) if is_delete else "",
            typed={name: self.request.POST.get(name, "") for name in ASKED},
            once=token_urlsafe(16),
            revision=revision_of(entries[0]) if is_delete and len(entries) == 1 else "",
            problem=problem,
            back=self._kept("changelist", ""),
        )

    def _carry_out(self, key: str, names: Sequence[str]) -> Any:
        """Do something with entries, and tell what has become of each; return a page if it can't be done."""
        fields = {name: self.request.POST.get(name, "") for name in ASKED}
        try:
            outcome = carry_out(self.visit, ACTIONS[key], names, fields)
        except EntryNotFound:
            raise
        except (EntryChanged, EntryError) as exc:
            return self._ask(key, names, in_words_of(str(exc), self.visit.zone), status_of(exc))
        is_delete = key == "delete_selected"
        self._log(
            outcome.done, DELETION if is_delete else CHANGE, "" if is_delete else f"{ACTIONS[key].done}."
        )
        self._tell(outcome)
        return None

    def _tell(self, outcome: Outcome) -> None:
        if outcome.done:
            self._say(messages.SUCCESS, outcome.told)
        self._say(messages.WARNING, *outcome.left)
        failed = [*outcome.failed.values()]
        more = [f"{len(failed) - MAX_TOLD} more failed."] if len(failed) > MAX_TOLD else []
        self._say(messages.ERROR, *failed[:MAX_TOLD], *more)
        if not (outcome.done or outcome.left or failed):
            self._say(messages.WARNING, "Nothing was done: there is no such entry any more.")

    # -- what Django logs

    def show_history(self, object_id: str, show: Callable[..., Any]) -> Any:
        """Show what Django's log has of an entry, as Django does."""
        return show(self.request, quote(name_of(object_id, self.app)), self.extra_context)

    def _log(self, names: Sequence[str], flag: int, message: Any) -> None:
        kind = get_content_type_for_model(Entry)
        LogEntry.objects.bulk_create(
            LogEntry(
                user_id=self.request.user.pk,
                content_type_id=kind.pk,
                object_id=name,
                object_repr=str(Entry(name))[:200],
                action_flag=flag,
                change_message=message if isinstance(message, str) else json.dumps(message),
            )
            for name in names
        )

    # -- answers

    def _page(self, template: str, title: str, status: int = 200, **context: Any) -> Any:
        whole = {
            **self.admin.admin_site.each_context(self.request),
            "title": title,
            "subtitle": None,
            "opts": self.admin.opts,
            "media": self.admin.media,
            "checkbox": ACTION_CHECKBOX_NAME,
            **context,
            **self.extra_context,
        }
        return TemplateResponse(self.request, template, whole, status=status)

    def _kept(self, view: str, part: str | None) -> str:
        """Return the address of a page from which the way back leads to the list as it is; '' for none."""
        if part is None:
            return ""
        kept = {"preserved_filters": self.admin.get_preserved_filters(self.request), "opts": self.admin.opts}
        return str(add_preserved_filters(kept, self.admin.address_of(view, *filter(None, [part]))))

    def _say(self, level: int, *sentences: str) -> None:
        for words in sentences:
            self.admin.message_user(self.request, words, level)


def _require(is_allowed: bool) -> None:
    if not is_allowed:
        raise PermissionDenied
