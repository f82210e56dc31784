"""Give a prefix to a schedule that celery-redbeat 2.x has kept without one; the old keys stay."""

import os

import redis

NEW = os.environ.get("PREFIX", "redbeat:")

client = redis.Redis.from_url(os.environ["URL"], decode_responses=True)

for name, score in client.zrange(":schedule", 0, -1, withscores=True):
    fields = client.hgetall(name)
    if fields:
        client.hset(NEW + name, mapping=fields)
        client.zadd(f"{NEW}:schedule", {NEW + name: score})

statics = client.smembers(":statics")
if statics:
    client.sadd(f"{NEW}:statics", *statics)
