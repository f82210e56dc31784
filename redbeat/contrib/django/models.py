"""The model that gives the dashboard its permissions and its place in the admin. It has no table."""

from __future__ import annotations

from typing import Any

from django.db import models


class NoEntries(models.Manager):
    """A manager that finds nothing and asks no database: ``dumpdata`` and others go through all models."""

    def get_queryset(self) -> Any:
        """Return no entries."""
        return super().get_queryset().none()


class Entry(models.Model):
    """An entry of the schedule. Its fields are in Redis."""

    name = models.TextField(primary_key=True)

    objects = NoEntries()

    class Meta:
        """``change_entry`` includes the last two permissions."""

        managed = False
        base_manager_name = "objects"
        verbose_name_plural = "entries"
        permissions = (
            ("pause_entry", "Can pause and resume entry"),
            ("run_entry", "Can run entry now"),
        )
