"""The check whether Redis may evict the schedule, for programs that call it with a client of their own.

Equal to the check of celery-redbeat 2.4.3. Beat makes it when it starts: see ``redbeat_key_expiry_check``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from redbeat.connection.retry import CONNECTION_ERRORS
from redbeat.errors import ConfigurationError, RedBeatKeyExpiryError
from redbeat.log.events import REDIS_EVICTS
from redbeat.log.logger import logger
from redbeat.log.text import joined

__all__ = ["RedBeatKeyExpiryError", "check_key_expiry"]

#: the modes, as in ``redbeat_key_expiry_check``, and the level of the log for each
_LEVELS = {"ignore": logging.NOTSET, "warn": logging.WARNING, "error": logging.ERROR, "raise": logging.ERROR}


def check_key_expiry(client: Any, mode: str = "error") -> list[str]:
    """Return a sentence for each ``maxmemory-policy`` that may evict the schedule, and log them.

    A server without a memory limit evicts nothing. The policies ``volatile-*`` evict only keys that expire.

    Arguments:
        client: a redis client; of a cluster, all nodes are asked.
        mode: ``ignore`` asks nothing; ``warn`` and ``error`` log at that level; ``raise`` raises.

    Raises:
        RedBeatKeyExpiryError: with ``raise``, if there is such a policy.
        ConfigurationError: there is no such mode.
        redis.exceptions.ConnectionError, TimeoutError: the server can't be reached.
    """
    if mode not in _LEVELS:
        raise ConfigurationError(f"mode: must be one of {', '.join(_LEVELS)}, got {mode!r}.")
    if mode == "ignore":
        return []
    try:
        answer = client.config_get("maxmemory*")
    except CONNECTION_ERRORS:
        raise
    except Exception as exc:  # noqa: BLE001 - whatever the caller's client raises: managed servers refuse CONFIG
        level = logging.ERROR if mode == "raise" else logging.WARNING
        logger.log(
            level, "beat: Whether Redis may evict the schedule is unknown, its CONFIG can't be read: %s", exc
        )
        return []
    nodes_by_policy: dict[str, list[str]] = {}
    is_cluster = any(isinstance(value, Mapping) for value in answer.values())
    for node, settings in answer.items() if is_cluster else [("", answer)]:
        policy = _evicting_policy(settings)
        if policy:
            nodes_by_policy.setdefault(policy, []).append(str(node))
    findings = [_finding(policy, nodes) for policy, nodes in nodes_by_policy.items()]
    if findings and mode == "raise":
        raise RedBeatKeyExpiryError(joined(*findings), "redbeat_key_expiry_check")
    for finding in findings:
        logger.log(_LEVELS[mode], "beat: %s", finding, extra=REDIS_EVICTS.of(reason=finding))
    return findings


def _evicting_policy(settings: Mapping[Any, Any]) -> str:
    """Return the policy in a reply of CONFIG GET if it may evict the schedule, else ''."""
    texts = {_text(name): _text(value) for name, value in settings.items()}
    policy, limit = texts.get("maxmemory-policy", ""), texts.get("maxmemory", "")
    is_limited = limit.isdigit() and int(limit) > 0
    return policy if is_limited and policy.startswith("allkeys") else ""


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _finding(policy: str, nodes: list[str]) -> str:
    named = [node for node in nodes if node]
    where = f" on node{'s' if len(named) > 1 else ''} {', '.join(named)}" if named else ""
    return (
        f"Redis may evict the schedule: the maxmemory-policy is {policy}{where}. Use noeviction (or one of "
        "volatile-*), or a server of its own."
    )
