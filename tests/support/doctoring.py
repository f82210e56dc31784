"""Everything that a schedule has in Redis, to compare it."""

from __future__ import annotations

from typing import Any

import redis


def everything(client: redis.Redis) -> dict[str, Any]:
    return {key: client.dump(key) for key in client.scan_iter()}
