"""Who leads; the work is in ``redbeat.leadership.status``."""

from redbeat.leadership.status import Leader as Leader

__all__ = ["Leader"]
