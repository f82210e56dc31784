"""Which Celery app the project has: that of ``REDBEAT_CELERY_APP``, else the one that ``celery -A`` would
find.

Invariant: it is the same in each thread. Celery's current app isn't: in the threads of a web server it may be
one that nobody has configured.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from celery import Celery
from celery.app.utils import find_app as find_app_in
from django.conf import settings

from redbeat.errors import ConfigurationError

SETTING = "REDBEAT_CELERY_APP"
_HOW_TO = f"Set {SETTING} in Django's settings to where it is, such as 'proj.celery:app'."


def find_app() -> Any:
    """Return the project's Celery app.

    Raises:
        ConfigurationError: none is found, or importing it fails.
    """
    given = getattr(settings, SETTING, None)
    if given is not None:
        return _named(given)
    for package in _packages():
        found = _app_in(package)
        if found is not None:
            return found
    raise ConfigurationError(f"{SETTING}: no Celery app was found. {_HOW_TO}", SETTING)


def _named(given: Any) -> Any:
    if not isinstance(given, str):
        if isinstance(given, Celery):
            return given
        raise ConfigurationError(f"{SETTING}: {given!r} is no Celery app. {_HOW_TO}", SETTING)
    module, _, attribute = given.partition(":")
    try:
        found = import_module(module) if attribute else None
        app = getattr(found, attribute) if found else find_app_in(given, imp=import_module)
    except Exception as exc:
        raise ConfigurationError(
            f"{SETTING}: {given!r} can't be used: {type(exc).__name__}: {exc}. {_HOW_TO}", SETTING
        ) from exc
    if not isinstance(app, Celery):
        raise ConfigurationError(f"{SETTING}: {given!r} is no Celery app, but {app!r}.", SETTING)
    return app


def _packages() -> Iterator[str]:
    """Yield the packages in which the settings are, the outermost last: 'proj' for 'proj.settings'."""
    name = getattr(settings, "SETTINGS_MODULE", None)
    while isinstance(name, str) and "." in name:
        name = name.rpartition(".")[0]
        yield name


def _app_in(package: str) -> Any:
    """Return the app that ``celery -A`` finds in a package; None: it has none."""
    found = vars(import_module(package)).values()
    app = next((one for one in found if isinstance(one, Celery)), None)
    if app is not None or find_spec(f"{package}.celery") is None:
        return app
    try:
        app = find_app_in(f"{package}.celery", imp=import_module)
    except AttributeError:  # it has another purpose
        return None
    except Exception as exc:
        raise ConfigurationError(
            f"{package}.celery can't be imported: {type(exc).__name__}: {exc}", SETTING
        ) from exc
    return app if isinstance(app, Celery) else None
