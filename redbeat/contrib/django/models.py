"""What Django needs a model for: names of permissions and pages, and the admin's log of changes.

Invariant: there is no table. Queries find nothing, so ``dumpdata`` and whatever else goes through all models
passes it by.
"""

from __future__ import annotations

from typing import Any

from django.db import models

from redbeat.entries.wording import one_line


class NoEntries(models.Manager):
    """A manager that finds nothing, and asks no database."""

    def get_queryset(self) -> Any:
        """Return no entries."""
        return super().get_queryset().none()


class Entry(models.Model):
    """An entry of the schedule, by its name. Its fields are in Redis."""

    name = models.TextField(primary_key=True)

    objects = NoEntries()

    class Meta:
        """There is no table. ``change_entry`` includes the last two permissions."""

        managed = False
        base_manager_name = "objects"
        verbose_name = "entry"
        verbose_name_plural = "entries"
        permissions = (
            ("pause_entry", "Can pause and resume entry"),
            ("run_entry", "Can run entry now"),
        )

    def __str__(self) -> str:
        return one_line(self.name, 200)
