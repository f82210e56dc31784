"""A warning for a beat that runs another scheduler although RedBeat is configured.

Importing ``redbeat`` connects it to the start of every beat of the process. Celery's command line imports
``redbeat`` through the entry point of ``celery redbeat``, so ``celery beat`` and ``celery worker -B`` have it
wherever the package is installed.
"""

from __future__ import annotations

from typing import Any

from celery import signals


@signals.beat_init.connect
def warn_of_other_scheduler(sender: Any = None, **_kwargs: Any) -> None:
    """Log a warning if the beat that starts does not run RedBeat, and a ``redbeat_*`` setting is given.

    Arguments:
        sender: the :class:`celery.beat.Service` that starts.
    """
    from redbeat.config.config import given_settings, spelled
    from redbeat.log.logger import logger
    from redbeat.schedulers import RedBeatScheduler

    scheduler, app = getattr(sender, "scheduler", None), getattr(sender, "app", None)
    if scheduler is None or app is None or isinstance(scheduler, RedBeatScheduler):
        return
    names = [name for name, value in given_settings(app).items() if value not in (None, "")]
    if not names:
        return
    name = "redbeat_redis_url" if "redbeat_redis_url" in names else names[0]
    logger.warning(
        "beat: RedBeat is not running, so no entry in Redis runs: %s is set, but the scheduler is %s. "
        "Start beat with -S redbeat.RedBeatScheduler, or set %s to 'redbeat.RedBeatScheduler'.",
        spelled(app, name),
        f"{type(scheduler).__module__}.{type(scheduler).__qualname__}",
        spelled(app, "beat_scheduler"),
    )
