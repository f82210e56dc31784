"""``@scheduled``: the decorator."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from redbeat.declared.declaration import Declaration, Place, make_declaration
from redbeat.declared.targets import attach

if TYPE_CHECKING:
    from redbeat.declared.signatures import scheduled as scheduled
else:

    def scheduled(*misplaced, **fields):
        """Give a task a schedule, over or under ``@app.task``, ``@shared_task`` or Django's ``@task``.

        Beat stores it as an entry when it starts, as those of ``beat_schedule``, and removes it when it has
        left the code. Nothing else is done to the task. It can be used several times on one task.

        Arguments:
            cron: a cron expression, such as "30 7 * * mon-fri".
            every: a number of seconds, a timedelta, or a length of time such as "1h30m".
            relative: with ``every``, as in :class:`celery.schedules.schedule`.
            at: the one time at which it runs: a datetime, or a text such as "2026-12-24T18:00".
            rrule: a recurrence rule, such as "FREQ=WEEKLY;BYDAY=MO", with or without a DTSTART.
            schedule: instead of these, whatever an entry's ``schedule`` may be. One of the five is given.
            name: the entry's; default: the task's. Further schedules of one task need one.
            args, kwargs: for the task; JSON values, datetimes included.
            options: for ``apply_async``: ``queue``, ``priority``, ``expires`` and so on.
            enabled: False keeps the entry, but it doesn't run.
            fields: the fields of the policy by their names: ``timezone``, ``jitter`` and so on (:doc:`time`),
                ``overlap``, ``max_runtime`` and so on (:doc:`runs`).

        Raises:
            DeclarationError: at import; it names the file and the line.
        """
        place = Place.of(sys._getframe(1))  # noqa: SLF001 - the line of code that calls
        return _decorator(place, misplaced, fields)


def _decorator(place: Place, misplaced: tuple[Any, ...], fields: Mapping[str, Any]) -> Callable[[Any], Any]:
    if misplaced:
        wrong = Declaration(None, {}, place)
        raise wrong.fault("takes keywords only, such as every=60 or cron='30 7 * * mon-fri'.")
    declaration = make_declaration(fields, place)

    def decorate(task: Any) -> Any:
        attach(task, declaration)
        return task

    return decorate
