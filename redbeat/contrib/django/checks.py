"""System checks. Those of settings ask no server; the doctor does, and only with ``check --deploy``.

Invariant: each has an id that stays, for ``SILENCED_SYSTEM_CHECKS``; the documentation lists them. What the
doctor finds has the id ``redbeat.doctor.`` and the kind of the finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Info, Warning, register  # noqa: A004 - Django's names

from redbeat.config.config import RedBeatConfig, ensure_conf
from redbeat.contrib.django.celery_app import SETTING, find_app
from redbeat.contrib.django.packages import find_missing
from redbeat.declared.collection import collect_declared
from redbeat.declared.modules import load_tasks_once
from redbeat.diagnostics.checks.finding import Finding, Severity
from redbeat.diagnostics.hints import hint_at_task
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.validation import find_name_problem, find_unwritable
from redbeat.entries.wording import label_of
from redbeat.errors import ConfigurationError, DeclarationError, EntryError, RedBeatError
from redbeat.log.text import printable

#: the tag of all of them: ``manage.py check --tag redbeat``
TAG = "redbeat"
#: the ids, and what each says
IDS = {
    "redbeat.E001": "No Celery app was found, or importing it fails.",
    "redbeat.E002": "A setting can't be used.",
    "redbeat.E003": "An entry of ``beat_schedule`` can't be used, so it won't run.",
    "redbeat.E004": "Packages that the pages in the admin need aren't installed.",
    "redbeat.E005": "A ``@scheduled`` can't be used, or the modules with tasks can't be imported.",
    "redbeat.W001": "RedBeat has no such setting: it may be misspelt.",
    "redbeat.W002": "Beat is told to use another scheduler than RedBeat's.",
    "redbeat.W003": "Celery's time zone isn't Django's.",
    "redbeat.W004": "An entry of ``beat_schedule`` runs a task that the app doesn't have.",
    "redbeat.W005": "No Redis is given for the schedule, as in settings for tests.",
    "redbeat.W006": "The doctor couldn't look at the schedule: Redis is away, or refuses.",
    "redbeat.W007": "A ``@scheduled`` belongs to no task, so it won't run.",
}
_HOW_TO_INSTALL = "Install them: pip install 'celery-redbeat[django]'."
_KINDS = {Severity.ERROR: Error, Severity.WARNING: Warning, Severity.NOTE: Info}


@register(TAG)
def check_settings(**_options: Any) -> list[CheckMessage]:
    """Look at the settings; no server is asked."""
    return [*_look_at_packages(), *_look_at_app()]


@register(TAG, deploy=True)
def ask_doctor(**_options: Any) -> list[CheckMessage]:
    """Return what ``celery redbeat doctor`` finds. Redis is asked."""
    try:
        app = find_app()
        ensure_conf(app).require_redis()
    except Exception:  # noqa: BLE001 - ``check_settings`` tells it
        return []
    from redbeat.diagnostics.checks import examine

    try:
        return [_message_of(finding) for finding in examine(app).findings]
    except RedBeatError as exc:
        return [Warning(printable(str(exc)), id="redbeat.W006")]


def _look_at_packages() -> Iterator[CheckMessage]:
    if missing := find_missing():
        words = f"The pages in the admin need packages that aren't installed: {', '.join(missing)}."
        yield Error(words, hint=_HOW_TO_INSTALL, id="redbeat.E004")


def _look_at_app() -> Iterator[CheckMessage]:
    try:
        app = find_app()
        config, zone = ensure_conf(app), app.timezone
        schedule = dict(app.conf.beat_schedule)
    except ConfigurationError as exc:
        yield Error(str(exc), id="redbeat.E001" if exc.setting == SETTING else "redbeat.E002")
        return
    except Exception as exc:  # noqa: BLE001 - whatever is wrong with the user's own configuration
        words = f"The Celery app's configuration can't be used: {type(exc).__name__}: {exc}"
        yield Error(printable(words), id="redbeat.E002")
        return
    yield from _no_redis(config)
    yield from _unknown_settings(app, config)
    yield from _other_scheduler(app)
    if settings.TIME_ZONE and label_of(zone) != settings.TIME_ZONE:
        yield Warning(
            f"Times in schedules go by Celery's time zone, {label_of(zone)}, and Django's is "
            f"{settings.TIME_ZONE}.",
            hint=f"Set {_written(app, 'timezone')} = TIME_ZONE, or give each entry a time zone of its own.",
            id="redbeat.W003",
        )
    for name, fields in schedule.items():
        yield from _look_at_entry(app, config, name, fields)
    yield from _look_at_declared(app)


def _look_at_declared(app: Any) -> Iterator[CheckMessage]:
    try:
        load_tasks_once(app)
        found = collect_declared(app)
    except DeclarationError as exc:
        yield Error(printable(str(exc)), id="redbeat.E005")
        return
    except Exception as exc:  # noqa: BLE001 - the application's own code
        words = f"The modules with tasks can't be imported, so nobody knows what they declare: {exc!r}"
        yield Error(printable(words), id="redbeat.E005")
        return
    for declaration, why in found.strays.items():
        yield Warning(printable(f"{declaration.place}: @scheduled: {why}"), id="redbeat.W007")


def _no_redis(config: RedBeatConfig) -> Iterator[CheckMessage]:
    try:
        config.require_redis()
    except ConfigurationError as exc:
        yield Warning(str(exc), id="redbeat.W005")


def _unknown_settings(app: Any, config: RedBeatConfig) -> Iterator[CheckMessage]:
    for name, hint in config.unknown_settings().items():
        words = f"{_written(app, name)} isn't one of RedBeat's settings, and is ignored; {hint}"
        yield Warning(words, id="redbeat.W001")


def _other_scheduler(app: Any) -> Iterator[CheckMessage]:
    given = app.conf.beat_scheduler
    if given and "celery.beat" not in str(given) and "redbeat" not in str(given).lower():
        yield Warning(
            f"{_written(app, 'beat_scheduler')} is {str(given)!r}, so beat doesn't run what is in Redis.",
            hint=f"Set {_written(app, 'beat_scheduler')} = 'redbeat.RedBeatScheduler'.",
            id="redbeat.W002",
        )


def _look_at_entry(app: Any, config: RedBeatConfig, name: Any, fields: Any) -> Iterator[CheckMessage]:
    problem, task = find_name_problem(name, config.reserved_names), None
    try:
        if not isinstance(fields, Mapping) and not hasattr(fields, "schedule"):
            raise EntryError(f"{name}: It must be a dict with task and schedule, not {fields!r}.", str(name))
        given = dict(fields) if isinstance(fields, Mapping) else dict(fields.__dict__)
        made = RedBeatSchedulerEntry(**{**given, "name": name, "app": app})
        problem, task = problem or find_unwritable(made), made.task
    except Exception as exc:  # noqa: BLE001 - whatever stands there
        said = str(exc) if isinstance(exc, RedBeatError) else f"{type(exc).__name__}: {exc}"
        problem = problem or said.removeprefix(f"{name}: ")
    if problem:
        words = printable(f"{_written(app, 'beat_schedule')}: {name!r} can't be used: {problem}")
        yield Error(words, id="redbeat.E003")
    elif hint := hint_at_task(app, str(task)):
        words = printable(f"{_written(app, 'beat_schedule')}: {name!r}: {hint}")
        yield Warning(words, id="redbeat.W004")


def _written(app: Any, name: str) -> str:
    """Return the name of a setting of Celery's as it stands in Django's settings."""
    prefix = app.conf.prefix
    return f"{prefix}{name}".upper() if prefix else name


def _message_of(finding: Finding) -> CheckMessage:
    words = printable(f"{finding.about}: {finding.problem}")
    return _KINDS[finding.severity](
        words, hint=printable(finding.advice), id=f"redbeat.doctor.{finding.kind}"
    )
