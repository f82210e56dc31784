"""Who leads and who stands by; the work is in ``redbeat.leadership.status``."""

from redbeat.leadership.status import Leader as Leader
from redbeat.leadership.status import Standby as Standby

__all__ = ["Leader", "Standby"]
