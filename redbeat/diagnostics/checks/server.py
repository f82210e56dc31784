"""Checks of the settings, and of the server: whether it keeps the schedule, and lets beat work on it."""

from __future__ import annotations

import time
from collections.abc import Iterator

from redbeat.config.config import spelled
from redbeat.connection.client import find_given
from redbeat.diagnostics.checks.context import Context
from redbeat.diagnostics.findings import Finding, found
from redbeat.errors import StoreRefused
from redbeat.store.rights import find_missing_rights

#: clocks that differ by less than this do no harm
MAX_SKEW_SECONDS = 2.0


def check_settings(context: Context) -> Iterator[Finding]:
    """Find settings that RedBeat doesn't know."""
    for name, hint in context.config.unknown_settings().items():
        yield found("unknown-setting", name, hint=hint)


def check_retries(context: Context) -> Iterator[Finding]:
    """Find a beat that ends as soon as Redis is away."""
    app = context.config.app
    is_known = context.has_tasks and not context.is_dashboard  # else these aren't beat's settings
    if is_known and find_given(app) is None and not context.config.waits_for_redis:
        yield found("retry-period", "redbeat_redis_options", setting=spelled(app, "redbeat_redis_options"))


def check_eviction(context: Context) -> Iterator[Finding]:
    """Find a server that may evict the schedule."""
    for node, server in context.nodes():
        policy = server.eviction_policy()
        if policy is not None:
            yield found("eviction", "maxmemory-policy", policy=policy, node=node)


def check_persistence(context: Context) -> Iterator[Finding]:
    """Find a server that loses the schedule when it is started again."""
    for node, server in context.nodes():
        info = server.info("persistence")
        if not info.get("aof_enabled") and not server.setting("save").strip():
            yield found("persistence", "appendonly, save", node=node)


def check_clock(context: Context) -> Iterator[Finding]:
    """Find a machine whose clock differs from the server's."""
    before = time.time()
    server = context.server.now().timestamp()
    after = time.time()
    skew = (before + after) / 2 - server
    if abs(skew) - (after - before) / 2 >= MAX_SKEW_SECONDS:
        yield found("clock", "clock", seconds=abs(skew), which="ahead of" if skew > 0 else "behind")


def check_topology(context: Context) -> Iterator[Finding]:
    """Find a cluster that is used as a single server, and a replica that is used as the master."""
    if context.config.is_cluster:
        return
    if context.server.about().is_in_cluster:
        setting = spelled(context.config.app, "redbeat_redis_options")
        yield found("cluster", "redbeat_redis_options", setting=setting)
    try:
        replication = context.server.info("replication")
    except StoreRefused:
        return
    if replication.get("role") == "slave":
        master = f"{replication.get('master_host')}:{replication.get('master_port')}"
        yield found("replica", "redbeat_redis_url", master=master)


def check_rights(context: Context) -> Iterator[Finding]:
    """Find rights that beat needs, and that the user of the schedule lacks."""
    user, missing = context.server.user(), find_missing_rights(context.store)
    if missing is None:
        if user != "default":
            yield found("rights/unknown", f"user {user}")
    elif missing:
        key = "rights/dashboard" if context.is_dashboard else "rights"
        yield found(key, f"user {user}", missing=" ".join(missing))


SERVER_CHECKS = (
    check_settings,
    check_retries,
    check_topology,
    check_eviction,
    check_persistence,
    check_clock,
    check_rights,
)
