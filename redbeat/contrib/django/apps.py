"""The application, as Django loads it."""

from __future__ import annotations

from django.apps import AppConfig


class RedBeat(AppConfig):
    """``redbeat.contrib.django``. Its label is that of its permissions, ``redbeat.view_entry`` and so on."""

    name = "redbeat.contrib.django"
    label = "redbeat"
    verbose_name = "RedBeat"

    def ready(self) -> None:
        """Register the system checks."""
        from redbeat.contrib.django import checks as checks
