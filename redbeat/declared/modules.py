"""The modules with an application's tasks: imported as a beat and a worker do."""

from __future__ import annotations

from typing import Any


def load_tasks(app: Any) -> None:
    """Import the modules with the tasks of ``app``, as a beat and a worker do; raise what they raise."""
    app.loader.import_default_modules()
    app.finalize(auto=True)


def load_tasks_once(app: Any) -> None:
    """The same, but not once more where this is a beat or a worker, which has imported them already."""
    if not getattr(app.loader, "worker_initialized", False):
        app.loader.import_default_modules()
    app.finalize()
