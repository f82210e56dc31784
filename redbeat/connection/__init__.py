"""Clients of Redis: how they are made for each topology, one for each app, and which errors are tried again.

Never: the keys of the schedule.
"""

from redbeat.connection.client import get_redis as get_redis
from redbeat.connection.retry import RetryingConnection as RetryingConnection
