"""What a page or a verb is told of one request: who asks, about which schedule, in which time zone.

Owns how answers are made: pages, fragments of them, and redirections with a notice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone, tzinfo
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlencode
from zoneinfo import available_timezones

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from redbeat.access import Right
from redbeat.access.rights import names_of
from redbeat.access.users import User
from redbeat.entries.search import pattern_problem
from redbeat.entries.wording import one_line
from redbeat.errors import AccessDenied, EntryError
from redbeat.operations.actor import Actor
from redbeat.schedules.times import read_time
from redbeat.schedules.timezones import zone_called
from redbeat.store.server import Server
from redbeat.store.store import Store
from redbeat.web.access import csrf
from redbeat.web.access.cookies import Cookies
from redbeat.web.pages.rendering import ZONE_COOKIE, environment, navigation
from redbeat.web.paths import path_of, root_of

if TYPE_CHECKING:
    from redbeat.web.dashboard import Dashboard


class Visit:
    """One request to a page.

    Attributes:
        form: what was posted; empty for a page that is only shown.
        user: who asks.
    """

    def __init__(self, dashboard: Dashboard, request: Request) -> None:
        self.dashboard = dashboard
        self.request = request
        self.form = FormData()
        self.cookies: Cookies = request.scope["redbeat.cookies"]
        self.user: User = request.scope.get("redbeat.user") or User("", ())

    @property
    def app(self) -> Any:
        """The Celery app."""
        return self.dashboard.app

    @property
    def query(self) -> Mapping[str, str]:
        """What stands behind the question mark."""
        return self.request.query_params

    def pattern(self, field: str) -> str:
        """Return a pattern of names in the query.

        Raises:
            EntryError: it can't be one.
        """
        return checked_pattern(field, self.query.get(field, ""))

    def number(self, field: str) -> int:
        """Return a whole number in the query; 0 where it isn't one."""
        text = self.query.get(field, "")
        return int(text) if text.isdecimal() and len(text) < 10 else 0

    def time(self, field: str, problems: dict[str, str], *, ahead: bool = False) -> datetime | None:
        """Return a time in the form or the query; None: it is empty, or invalid, which `problems` tells."""
        text = (self.typed(field) if self.form else self.query.get(field, "")).strip()
        try:
            return read_time(text, self.now, self.zone, ahead=ahead) if text else None
        except ValueError as exc:
            problems[field] = one_line(exc)
            return None

    def typed(self, field: str) -> str:
        """Return the text of a field of the form; '' for a file."""
        value = self.form.get(field)
        return value if isinstance(value, str) else ""

    @property
    def is_confirmed(self) -> bool:
        """Whether the form is the answer to a question."""
        return self.form.get("confirmed") == "yes"

    @cached_property
    def now(self) -> datetime:
        """The server's clock, UTC."""
        return Server(Store(self.app)).now()

    @cached_property
    def zone(self) -> tzinfo:
        """The time zone of the user: the browser's, else the app's."""
        given = unquote(self.request.cookies.get(ZONE_COOKIE, ""))
        if given in known_zones():
            return zone_called(given)
        zone: tzinfo = self.app.timezone
        return zone

    @property
    def is_fragment(self) -> bool:
        """Whether only a part of the page is wanted, to be put into the one that is shown."""
        return "hx-request" in self.request.headers

    @property
    def actor(self) -> Actor:
        """Who does something, for verbs."""
        client = self.request.client
        return Actor(self.app, self.user, self.user.source, client.host if client else "", self.zone)

    # -- answers

    @property
    def root(self) -> str:
        """The path below which the dashboard is mounted, without a slash at its end."""
        return root_of(self.request.scope)

    def link(self, *parts: str, **query: object) -> str:
        """Return the path of a page, by its parts: each is quoted, and what is None is left out.

        What isn't Unicode can't stand in an address: a link with it leads nowhere, and the page is shown.
        """
        given = {name: value for name, value in query.items() if value is not None}
        path = "".join(f"/{quote(part, safe='', errors='replace')}" for part in parts) or "/"
        return f"{self.root}{path}" + (f"?{urlencode(given, doseq=True, errors='replace')}" if given else "")

    def render(self, template: str, status_code: int = 200, **context: Any) -> Response:
        """Return a page, or a fragment of one; ``title`` is the page's."""
        token = csrf.token_of(self.cookies.get("csrf"))
        notice = "" if self.is_fragment else self.cookies.notice
        is_known = bool(self.user.rights)
        context |= {
            "visit": self,
            "root": self.root,
            "nav": navigation(self.root, self.path),
            "user": self.user.name,
            "home": self.user.home,  # of the site around the dashboard; '': no link to it
            "rights": names_of(self.user.rights),
            "until": self.user.until,
            "csrf_token": token,
            "is_read_only": self.dashboard.is_read_only,
            "is_live": self.dashboard.is_live,  # pages get events over a stream; otherwise they poll
            "zone": self.zone,
            # the browser hasn't told it yet, and loads the page once more; a form isn't sent twice for it,
            # and a notice is shown once
            "is_zone_guessed": ZONE_COOKIE not in self.request.cookies
            and self.request.method == "GET"
            and is_known
            and not notice,
            # pages that say what went wrong, or ask who it is, are shown when Redis is away, too
            "now": self.now if status_code < 400 and is_known else datetime.now(timezone.utc),
            "can_log_out": is_known and self.cookies.get("session") is not None,
            "notice": notice,
        }
        response = HTMLResponse(environment().get_template(template).render(context), status_code)
        if token != self.cookies.get("csrf"):
            self.cookies.set(response, "csrf", token)
        if notice:
            self.cookies.set_notice(response, "")
        return response

    def see(self, *parts: str, notice: str = "", **query: object) -> Response:
        """Send the browser to another page after a change, and have a notice shown there."""
        response = RedirectResponse(self.link(*parts, **query), 303)
        if notice:
            self.cookies.set_notice(response, notice)
        return response

    def ask(
        self,
        question: str,
        label: str,
        action: str,
        fields: Iterable[tuple[str, object]],
        *,
        back: str,
        more: str = "",
        tone: str = "danger primary",
    ) -> Response:
        """Return the page that asks before a form is sent to the path ``action``, with these fields."""
        return self.render(
            "question.html",
            title=label,
            question=question,
            label=label,
            action=action,
            fields=fields,
            more=more,
            cancel_url=back,
            tone=tone,
        )

    # -- what pages show

    @property
    def path(self) -> str:
        """The path of this page below the root."""
        return path_of(self.request.scope)

    def may(self, right: str) -> bool:
        """Return True if the user has a right, by its name."""
        return self.user.may(Right(right))

    @property
    def may_add(self) -> bool:
        """Whether the user may add entries."""
        return self.user.may(Right.EDIT) and self.user.may_add

    def names(self, field: str = "name") -> Sequence[str]:
        """Return all values of a field of the form, such as the entries that were ticked.

        Raises:
            AccessDenied: one of them is a file.
        """
        values = self.form.getlist(field)
        if not all(isinstance(value, str) for value in values):
            raise AccessDenied(f"{field} must be text.")
        return [str(value) for value in values]


def checked_pattern(field: str, text: str) -> str:
    """Return a pattern without the space around it, or raise EntryError."""
    text = text.strip()
    if problem := pattern_problem(text):
        raise EntryError(f"{field}: {problem}", "")
    return text


@cache
def known_zones() -> frozenset[str]:
    """Return the names of all time zones."""
    return frozenset(available_timezones())
