"""One dashboard: its app, its settings, and what all its requests share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redbeat.config.config import RedBeatConfig, ensure_conf
from redbeat.store.changes import ChangeRecords
from redbeat.store.store import Store
from redbeat.web.access.authentication import BasicAuth, Link, TokenInCookie, WayIn
from redbeat.web.background import Background
from redbeat.web.changes import Changes
from redbeat.web.live import News
from redbeat.web.names import Names
from redbeat.web.pages.changing import ending_of
from redbeat.web.threads import HastyClient, Threads

#: how old what pages know of the layout may be: they mostly read, so nothing else tells them of a change
LAYOUT_SECONDS = 2.0


class Dashboard:
    """The dashboard of one app.

    Arguments:
        app: the Celery app.
        ways_in: how its users show who they are.
        is_live: pages get news over a stream; False: they ask for it, as a stream would hold a thread of the
            server.
        is_read_only: nothing can be changed.
    """

    def __init__(self, app: Any, ways_in: Sequence[WayIn], *, is_live: bool, is_read_only: bool) -> None:
        self.app = app
        self.config: RedBeatConfig = ensure_conf(app)
        self.config.look_seconds = LAYOUT_SECONDS
        self.is_live = is_live
        self.is_read_only = is_read_only
        client = HastyClient(app)
        self.threads = Threads(client)
        #: pages that only say what went wrong, and who somebody is: these don't wait for pages
        self.threads_for_errors = Threads(None)
        self.threads_for_users = Threads(client)
        self.background = Background()
        self.changes = Changes(lambda: ChangeRecords(Store(app)), ending_of)
        self.news = News(app, self.threads)
        self.names = Names(app, client)
        #: the printed link; None: there is none
        self.link = next((way for way in ways_in if isinstance(way, Link)), None)
        #: somebody who isn't known may type a token, or is asked for a name and a password by their browser
        self.takes_token = any(isinstance(way, TokenInCookie) for way in ways_in)
        self.takes_password = any(isinstance(way, BasicAuth) for way in ways_in)
