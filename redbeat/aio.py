"""What programs with an event loop need besides the methods of entries."""

from redbeat.entries.async_management import Listing as Listing
from redbeat.entries.async_management import run as run

__all__ = ["Listing", "run"]
