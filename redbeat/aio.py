"""What programs with an event loop need besides the methods of entries; the work is in
``redbeat.connection.async_client`` and ``redbeat.entries.async_management``.
"""

from redbeat.connection.async_client import aclose as aclose
from redbeat.connection.async_client import get_async_redis as get_redis
from redbeat.connection.async_client import run as run
from redbeat.entries.async_management import Listing as Listing

__all__ = ["Listing", "aclose", "get_redis", "run"]
