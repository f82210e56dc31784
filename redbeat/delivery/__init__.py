"""From a run to its queue: message templates, and the guard that decides whether they may be used.

Must not import ``beat``, ``entries`` or ``telemetry``.
"""
