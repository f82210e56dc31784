"""Tasks of Django's own framework, ``django.tasks``, whose backend is Celery.

Owns what is known of such backends: with which options they send a task. Without Django nothing of this is
used, and nothing is imported from it.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from dataclasses import fields
from typing import Any

#: ``django.tasks`` of Django 6, and the package that brings it to older ones
_PACKAGES = {"django", "django_tasks"}
#: Django's priorities are -100 to 100, those of messages 0 to 255
_MOST, _STEPS = 100, 255


def is_django_task(task: Any) -> bool:
    """Return True if ``task`` was made by Django's ``@task``."""
    return any(
        base.__name__ == "Task" and base.__module__.partition(".")[0] in _PACKAGES
        for base in type(task).__mro__
    ) and hasattr(task, "get_backend")


def without_function(task: Any) -> Any:
    """Return a task like ``task`` that doesn't keep its function in memory."""
    alike = object.__new__(type(task))
    for field in fields(task):
        object.__setattr__(alike, field.name, getattr(task, field.name))
    object.__setattr__(alike, "func", weakref.proxy(task.func))
    return alike


def options_of(task: Any) -> dict[str, Any]:
    """Return the options with which its backend sends the message of ``task``."""
    backend = task.get_backend()
    own: Callable[[Any], dict[str, Any]] | None = getattr(backend, "_build_send_options", None)
    if own is not None:  # that of django-tasks-celery
        return dict(own(task))
    options: dict[str, Any] = {}
    if task.queue_name:
        options["queue"] = task.queue_name
    if task.priority:
        options["priority"] = _priority_mapper(backend)(task.priority)
    return options


def _priority_mapper(backend: Any) -> Callable[[int], int]:
    module = sys.modules.get(type(backend).__module__)
    for name in ("map_priority", "_map_priority"):
        mapper: Callable[[int], int] | None = getattr(module, name, None)
        if mapper is not None:
            return mapper
    return lambda priority: round((priority + _MOST) * _STEPS / (2 * _MOST))
