"""The entry "report", from Python without RedBeat. Needs: pip install redis

REDIS_URL is what redbeat_redis_url is in your configuration.
    REDIS_URL=redis://127.0.0.1:6379/0 python entries.py add|change|pause|resume|run|history|delete
"""

import json
import os
import sys
from binascii import crc_hqx  # CRC-16 (XMODEM)

import redis

NAME = "report"
BASE = "redbeat:"  # in a cluster "{redbeat}:", and redis.RedisCluster
COMMANDS = ("add", "change", "pause", "resume", "run", "history", "delete")

command = sys.argv[1] if len(sys.argv) > 1 else ""
if command not in COMMANDS:
    sys.exit(f"usage: REDIS_URL=... python {sys.argv[0]} {'|'.join(COMMANDS)}")
client = redis.Redis.from_url(os.environ["REDIS_URL"], decode_responses=True)


def prefix_in(shards):
    """Return what the entry's keys begin with in so many shards; None or "0": the schedule isn't divided."""
    return f"{{redbeat:{crc_hqx(NAME.encode(), 0) % int(shards)}}}:" if int(shards or 0) else BASE


shards, state, former = client.hmget(f"{BASE}:layout", "shards", "state", "former")
prefix = prefix_in(shards)
if state == "moving" and client.exists(prefix_in(former) + NAME):
    prefix = prefix_in(former)  # the number of shards is being changed, and the entry is where it was before
key, schedule = f"{prefix}{NAME}", f"{prefix}:schedule"
history, backfilled = f"{prefix}:history:{NAME}", f"{prefix}:backfilled:{NAME}"

with client.pipeline(transaction=True) as together:
    if command == "add":
        definition = {
            "name": NAME,
            "task": os.environ.get("TASK", "proj.tasks.report"),
            "schedule": {"__type__": "interval", "every": 60, "relative": False},
            "args": ["weekly"],
            "enabled": True,
        }
        together.hset(key, "definition", json.dumps(definition))
        together.zadd(schedule, {key: 0})  # due at once; or UNIX seconds
    elif command in ("change", "pause", "resume"):
        stored, policy = client.hmget(key, "definition", "policy")
        if stored is None:
            sys.exit(f"{key}: there is no such entry")
        definition, policy = json.loads(stored), json.loads(policy or "{}")
        if command == "change":
            definition |= {"args": ["daily"], "schedule": {**definition["schedule"], "every": 30}}
        else:  # enabled is for celery-redbeat 2.x, too
            definition["enabled"] = command == "resume"
            for field in ("paused", "pause_note", "paused_by", "paused_until"):
                policy.pop(field, None)
        if command == "pause":
            policy |= {"paused": True, "pause_note": "the numbers are wrong"}
        together.hset(key, mapping={"definition": json.dumps(definition), "policy": json.dumps(policy)})
    if command in ("change", "resume", "run"):
        together.zadd(schedule, {key: 0}, xx=True)  # due at once; never bring back what was deleted
    if command == "delete":
        together.zrem(schedule, key)
        together.delete(key, history, backfilled)
    if command == "history":
        print(*client.lrange(history, 0, -1), sep="\n")  # JSON, the newest run first
    else:
        # optional: beat looks at once, and not only within a second
        together.publish(f"{prefix}:wake", command)
        together.execute()
