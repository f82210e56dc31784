"""Who leads; the work is in :mod:`redbeat.leadership.status`."""

from redbeat.leadership.status import Leader as Leader

__all__ = ["Leader"]
