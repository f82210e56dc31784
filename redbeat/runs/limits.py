"""How an entry's policy limits its runs, as the record of a run in progress has it. Pure."""

from __future__ import annotations

import json
from typing import Any

from redbeat.policy.policy import Policy


def limits_of(policy: Policy) -> str:
    """Return the limits as members of a JSON object, each after a comma; what is a default is left out."""
    limits: dict[str, Any] = {
        "overlap": None if policy.overlap == "allow" else policy.overlap,
        "queue": policy.queue_seconds,
        "max": policy.max_runtime,
        "revoke": int(policy.revoke_overdue),
        "pause": policy.pause_after_failures,
        "workflow": int(policy.tracks == "workflow"),
    }
    return "".join(f",{json.dumps(name)}:{json.dumps(value)}" for name, value in limits.items() if value)
