"""What the first visit of a page would wait for, done before anybody comes: templates, imports, zones.

Invariant: it is done once in a process and asks nobody; a process that forks waits for it first, as a thread
and the locks that it holds aren't inherited.
"""

from __future__ import annotations

import functools
import importlib
import os
import threading

from redbeat.web.pages.rendering import environment
from redbeat.web.visit import known_zones

#: imported where they are first needed, as a beat needs none of them
_MODULES = ("cron_descriptor", "anyio._backends._asyncio", "_strptime")
#: how long a fork waits at the most
_PATIENCE_SECONDS = 10.0


@functools.cache
def warm_up() -> threading.Thread:
    """Begin, unless this process has begun; return the thread that does it."""
    thread = threading.Thread(target=_warm_up, name="redbeat-web-warm-up", daemon=True)
    os.register_at_fork(before=lambda: thread.join(_PATIENCE_SECONDS))
    thread.start()
    return thread


def _warm_up() -> None:
    made = environment()
    for name in made.list_templates(["html"]):
        made.get_template(name)
    for module in _MODULES:
        try:
            importlib.import_module(module)
        except ImportError:  # another version of its package has it elsewhere
            continue
    known_zones()
