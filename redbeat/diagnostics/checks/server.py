"""Checks of the settings, and of the server: whether it keeps the schedule, and lets beat work on it."""

from __future__ import annotations

import time
from collections.abc import Iterator

from redbeat.config.config import spelled
from redbeat.connection.client import find_given
from redbeat.diagnostics.checks.context import Context
from redbeat.diagnostics.checks.finding import Finding, Severity
from redbeat.errors import StoreRefused
from redbeat.store.rights import find_missing_rights
from redbeat.store.server import Server

#: clocks that differ by less than this do no harm
MAX_SKEW_SECONDS = 2.0

_ACL_DOCS = "See 'Users with limited rights' in the documentation's page on configuration."


def check_settings(context: Context) -> Iterator[Finding]:
    """Find settings that RedBeat doesn't know."""
    for name, hint in context.config.unknown_settings().items():
        yield Finding(
            Severity.WARNING,
            "unknown-setting",
            name,
            f"There is no such setting, so it does nothing: {hint}",
            "Correct its name, or remove it.",
        )


def check_retries(context: Context) -> Iterator[Finding]:
    """Find a beat that ends as soon as Redis is away."""
    is_known = context.has_tasks and not context.is_dashboard  # else these aren't beat's settings
    is_known = is_known and find_given(context.config.app) is None
    if is_known and not context.config.waits_for_redis:
        name = spelled(context.config.app, "redbeat_redis_options")
        yield Finding(
            Severity.NOTE,
            "retry-period",
            "redbeat_redis_options",
            "retry_period isn't set, so beat ends as soon as Redis can't be reached, and waits for whatever "
            "starts it again.",
            f"Set {name} = {{'retry_period': 60}}, in seconds; -1 is for ever.",
        )


def check_eviction(context: Context) -> Iterator[Finding]:
    """Find a server that may evict the schedule."""
    for which, store in context.nodes():
        try:
            policy = Server(store).eviction_policy()
        except StoreRefused as exc:
            yield _unknown("eviction", "Whether the server may evict the schedule", exc)
            return
        if policy is not None:
            yield Finding(
                Severity.ERROR,
                "eviction",
                "maxmemory-policy",
                f"Redis may evict the schedule: its maxmemory-policy is {policy}.{which}",
                "Set maxmemory-policy to noeviction or one of volatile-*, or use a server of its own.",
            )


def check_persistence(context: Context) -> Iterator[Finding]:
    """Find a server that loses the schedule when it is started again, or can't write it."""
    for which, store in context.nodes():
        server = Server(store)
        try:
            info = server.info("persistence")
            has_file = bool(info.get("aof_enabled")) or bool(server.setting("save").strip())
        except StoreRefused as exc:
            yield _unknown("persistence", "Whether the server keeps the schedule on disk", exc)
            return
        if not has_file:
            yield Finding(
                Severity.WARNING,
                "persistence",
                "appendonly, save",
                "The server keeps nothing on disk, so a restart of it loses all entries that aren't in "
                f"beat_schedule.{which}",
                "Switch appendonly on.",
            )
        for field in ("aof_last_write_status", "rdb_last_bgsave_status"):
            if info.get(field, "ok") != "ok":
                yield Finding(
                    Severity.WARNING,
                    "persistence",
                    field,
                    f"The server's last attempt to write to its disk has failed ({field} is {info[field]})."
                    f"{which}",
                    "Look into the server's log, and at its disk.",
                )


def check_clock(context: Context) -> Iterator[Finding]:
    """Find a machine whose clock differs from the server's."""
    before = time.time()
    server = context.server.now().timestamp()
    after = time.time()
    skew = (before + after) / 2 - server
    if abs(skew) - (after - before) / 2 < MAX_SKEW_SECONDS:
        return
    which = "ahead of" if skew > 0 else "behind"
    yield Finding(
        Severity.WARNING,
        "clock",
        "clock",
        f"This machine's clock is {abs(skew):.1f} s {which} the server's.",
        "Let both follow one time server (NTP): beat goes by the server's clock, but workers drop messages "
        "that have expired by their own.",
    )


def check_topology(context: Context) -> Iterator[Finding]:
    """Find a cluster that is used as if it were a single server."""
    if context.config.is_cluster:
        return
    if context.server.about().is_in_cluster:
        yield Finding(
            Severity.WARNING,
            "cluster",
            "redbeat_redis_options",
            "The server is a node of a Redis Cluster, and the settings don't say so. That works only while "
            "the cluster has one node.",
            f"Set {spelled(context.config.app, 'redbeat_redis_options')} = {{'cluster': True}}.",
        )


def check_role(context: Context) -> Iterator[Finding]:
    """Find a replica that is used as if it were the master."""
    if context.config.is_cluster:
        return
    try:
        replication = context.server.info("replication")
    except StoreRefused:
        return
    if replication.get("role") == "slave":
        yield Finding(
            Severity.ERROR,
            "replica",
            "redbeat_redis_url",
            f"The server is a replica of {replication.get('master_host')}:{replication.get('master_port')}, "
            "which beat can't write to.",
            "Name the master, or the sentinels that know which one it is.",
        )


def check_rights(context: Context) -> Iterator[Finding]:
    """Find rights that beat needs, and that the user of the schedule lacks."""
    user, missing = context.server.user(), find_missing_rights(context.store)
    if missing is None:
        if user != "default":
            yield Finding(
                Severity.NOTE,
                "rights",
                f"user {user}",
                "Whether it has all rights that beat needs isn't known: the server doesn't tell.",
                f"Compare its rule with the documented one. {_ACL_DOCS}",
            )
    elif missing and context.is_dashboard:
        yield Finding(
            Severity.NOTE,
            "rights",
            f"user {user}",
            "It may do less than beat's user has to, as a dashboard's should. So whether beat's has all the "
            "rights that it needs isn't known here.",
            "celery redbeat doctor, called with beat's settings, looks at them.",
        )
    elif missing:
        yield Finding(
            Severity.ERROR,
            "rights",
            f"user {user}",
            f"The doctor was called as this user. It lacks rights that beat needs: {' '.join(missing)}.",
            "If beat uses it, add the rights to its ACL rule; if beat has another one, call the doctor with "
            f"beat's settings. {_ACL_DOCS}",
        )


def _unknown(kind: str, what: str, exc: StoreRefused) -> Finding:
    said = str(exc.__cause__ or exc).rstrip(".")
    return Finding(
        Severity.NOTE,
        kind,
        "server",
        f"{what} isn't known: {said}.",
        "Look at its configuration yourself, or let the user of the schedule read it (CONFIG GET, INFO).",
    )


SERVER_CHECKS = (
    check_settings,
    check_retries,
    check_topology,
    check_role,
    check_eviction,
    check_persistence,
    check_clock,
    check_rights,
)
