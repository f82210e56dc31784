"""What programs that run in an event loop need besides the methods of entries; the work is in
``redbeat.connection.async_client``.
"""

from redbeat.connection.async_client import aclose as aclose
from redbeat.connection.async_client import get_async_redis as get_redis
from redbeat.connection.async_client import run as run

__all__ = ["aclose", "get_redis", "run"]
