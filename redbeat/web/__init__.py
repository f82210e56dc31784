"""The dashboard: the schedule in a browser, and as a REST API.

Owns pages, their look, and who may do what there. What a page shows and what a button does is decided in the
rooms below, where the command line finds it, too.

Invariants: without its extra (``pip install 'celery-redbeat[web]'``) nothing outside this room misses it; and
nothing here delays beat.

Never: decides anything about the schedule, or talks to Redis in its own words.
"""

from redbeat.access.users import User as User
from redbeat.web.application import asgi_app as asgi_app
from redbeat.web.application import wsgi_app as wsgi_app

__all__ = ["User", "asgi_app", "wsgi_app"]
