"""System checks of the settings. What needs the tasks or Redis is a check of ``manage.py redbeat doctor``.

Celery runs all system checks of a project whenever it imports the modules with tasks, so these import no
tasks and connect to nothing, and a starting worker or beat skips them.
Invariant: each has an id that stays, for ``SILENCED_SYSTEM_CHECKS``; the documentation lists them.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from celery._state import _get_active_apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register  # noqa: A004 - Django's names

from redbeat.config.config import ensure_conf, spelled
from redbeat.contrib.django.celery_app import SETTING, find_app
from redbeat.declared.collection import is_worker_or_beat, read_static_entries
from redbeat.entries.wording import label_of
from redbeat.errors import ConfigurationError
from redbeat.log.text import printable

#: the tag of all of them: ``manage.py check --tag redbeat``
TAG = "redbeat"


@register(TAG)
def check_settings(**_options: Any) -> list[CheckMessage]:
    """Check the settings, and the values of ``beat_schedule``."""
    if any(is_worker_or_beat(app) for app in list(_get_active_apps())):
        return []  # Celery ignores the messages
    return [*_check_packages(), *_check_app()]


def _check_packages() -> Iterator[CheckMessage]:
    if missing := [name for name in ("a2wsgi", "jinja2", "starlette", "uvicorn") if find_spec(name) is None]:
        yield Error(
            f"The dashboard needs packages that are not installed: {', '.join(missing)}.",
            hint="Install them: pip install 'celery-redbeat[django]'.",
            id="redbeat.E004",
        )


def _check_app() -> Iterator[CheckMessage]:
    try:
        app = find_app()
        config, zone = ensure_conf(app), app.timezone
        statics = read_static_entries(app)
    except ConfigurationError as exc:
        yield Error(str(exc), id="redbeat.E001" if exc.setting == SETTING else "redbeat.E002")
        return
    except Exception as exc:  # noqa: BLE001 - whatever is wrong with the user's own configuration
        words = f"The Celery app's configuration is invalid: {type(exc).__name__}: {exc}"
        yield Error(printable(words), id="redbeat.E002")
        return
    try:
        config.require_redis()
    except ConfigurationError as exc:
        yield Warning(str(exc), id="redbeat.W005")
    for name, hint in config.unknown_settings().items():
        yield Warning(f"Unknown setting {spelled(app, name)} is ignored; {hint}", id="redbeat.W001")
    scheduler = str(app.conf.beat_scheduler or "")
    if scheduler and "celery.beat" not in scheduler and "redbeat" not in scheduler.lower():
        name = spelled(app, "beat_scheduler")
        yield Warning(
            f"{name} is {scheduler!r}, so beat doesn't run what is in Redis.",
            hint=f"Set {name} = 'redbeat.RedBeatScheduler'.",
            id="redbeat.W002",
        )
    if settings.TIME_ZONE and label_of(zone) != settings.TIME_ZONE:
        yield Warning(
            f"Schedules use Celery's time zone, {label_of(zone)}, and Django's is {settings.TIME_ZONE}.",
            hint=f"Set {spelled(app, 'timezone')} = TIME_ZONE, or give each entry its own time zone.",
            id="redbeat.W003",
        )
    for static in statics:
        if static.problem:
            words = f"{spelled(app, 'beat_schedule')}: {static.name!r} is invalid: {static.problem}"
            yield Error(printable(words), id="redbeat.E003")
