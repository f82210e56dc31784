"""The modules with an application's tasks: imported once, as a worker and a beat do.

Celery's import runs the system checks of a Django project, so a check that called :func:`load_tasks` would
run itself.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

_loaded = WeakSet[Any]()


def load_tasks(app: Any) -> None:
    """Import the modules with the tasks of ``app`` if this process has not; raise what they raise."""
    if not is_worker_or_beat(app) and app.loader not in _loaded:
        app.loader.import_default_modules()
        _loaded.add(app.loader)
    app.finalize()


def is_worker_or_beat(app: Any) -> bool:
    """Return True if Celery imports, or has imported, the modules for a worker or beat of ``app``."""
    return bool(getattr(app.loader, "worker_initialized", False))
