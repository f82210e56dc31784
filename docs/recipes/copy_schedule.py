"""Copy a schedule to a cluster, from OLD_URL to NEW_URL (both redis://)."""

import os

import redis

OLD, NEW = "redbeat:", "{redbeat}:"

old = redis.Redis.from_url(os.environ["OLD_URL"], decode_responses=True)
new = redis.RedisCluster.from_url(os.environ["NEW_URL"], decode_responses=True)

for key, score in old.zrange(f"{OLD}:schedule", 0, -1, withscores=True):
    fields = old.hgetall(key)
    if fields:
        name = key.removeprefix(OLD)
        new.hset(NEW + name, mapping=fields)
        new.zadd(f"{NEW}:schedule", {NEW + name: score})

statics = old.smembers(f"{OLD}:statics")
if statics:
    new.sadd(f"{NEW}:statics", *statics)
