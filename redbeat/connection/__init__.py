"""Clients of Redis: one builder for each topology, one client for each app; what is tried again.

Never: a key.
"""

from redbeat.connection.client import get_redis as get_redis
from redbeat.connection.retry import RetryingConnection as RetryingConnection
