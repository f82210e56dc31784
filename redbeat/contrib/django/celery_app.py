"""Which Celery app the project has: that of ``REDBEAT_CELERY_APP``, else the one that ``celery -A`` would
find.

Invariant: it is the same in each thread. Celery's current app isn't: in the threads of a web server it may be
one that nobody has configured.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from celery import Celery
from celery.app.utils import find_app as find_app_in
from django.conf import settings

from redbeat.errors import ConfigurationError

SETTING = "REDBEAT_CELERY_APP"


def find_app() -> Any:
    """Return the project's Celery app.

    Raises:
        ConfigurationError: none is found, or importing it fails.
    """
    given = getattr(settings, SETTING, None)
    places = list(_packages()) if given is None else [given]
    remedy = f"Set {SETTING} in Django's settings to where it is, such as 'proj.celery:app'."
    for place in places:
        try:
            app = find_app_in(place, imp=import_module)
        except AttributeError:
            continue
        except Exception as exc:
            problem = f"{SETTING}: importing {place!r} fails: {type(exc).__name__}: {exc}."
            raise ConfigurationError(f"{problem} {remedy}", SETTING) from exc
        if isinstance(app, Celery):
            return app
    where = ", ".join(map(repr, places)) or "the settings' package"
    raise ConfigurationError(f"{SETTING}: no Celery app was found in {where}. {remedy}", SETTING)


def _packages() -> Iterator[str]:
    """Yield the packages in which the settings are, the outermost last: 'proj' for 'proj.settings'."""
    name = getattr(settings, "SETTINGS_MODULE", None)
    while isinstance(name, str) and "." in name:
        name = name.rpartition(".")[0]
        yield name
