#!/bin/sh
# The entry "report", by redis-cli alone. REDIS_URL is what redbeat_redis_url is in your configuration.
#   REDIS_URL=redis://127.0.0.1:6379/0 sh redis-cli.sh add|change|pause|resume|run|history|delete
set -eu
: "${REDIS_URL:?is not set; use the value of redbeat_redis_url}"

name=report
base=redbeat: # in a cluster "{redbeat}:", and redis-cli -c below
task=${TASK:-proj.tasks.report}

# definition EVERY-SECONDS ARGUMENT ENABLED
definition() {
    printf '{"name": "%s", "task": "%s", "schedule": {"__type__": "interval", "every": %s, "relative": false}, "args": ["%s"], "kwargs": {}, "options": {}, "enabled": %s}' \
        "$name" "$task" "$1" "$2" "$3"
}

redis() {
    redis-cli --no-auth-warning -u "$REDIS_URL" "$@"
}

# layout FIELD: what redbeat::layout says, or nothing; a schedule that isn't in shards may have none
layout() {
    redis HGET "$base:layout" "$1"
}

# prefix SHARDS: of the entry's keys; CRC-16 (XMODEM) of the bytes of its name says which shard it is in
prefix() {
    case ${1:-0} in
    0) echo "$base" && return ;;
    *[!0-9]*) echo "$base:layout: $1" >&2 && return 1 ;;
    esac
    crc=0
    for byte in $(printf '%s' "$name" | od -An -v -tu1); do
        crc=$((crc ^ byte << 8))
        for _ in 1 2 3 4 5 6 7 8; do
            crc=$(((crc << 1 ^ (crc >> 15) * 0x1021) & 0xFFFF))
        done
    done
    echo "{redbeat:$((crc % $1))}:"
}

shards=$(layout shards)
part=$(prefix "$shards")
# while the number of shards is changed, the entry may still be where it was before
if [ "$(layout state)" = moving ]; then
    former=$(layout former)
    before=$(prefix "$former")
    if [ "$(redis EXISTS "$before$name")" = 1 ]; then part=$before; fi
fi
key=$part$name
schedule=$part:schedule

case ${1:-} in
add) # due at once (score 0), then every minute
    redis HSET "$key" definition "$(definition 60 weekly true)"
    redis ZADD "$schedule" 0 "$key"
    ;;
change) # another argument and another interval; XX: never bring back what was deleted
    redis HSET "$key" definition "$(definition 30 daily true)"
    redis ZADD "$schedule" XX 0 "$key"
    ;;
pause) # kept, and not run; this writes the whole of both: redis-cli can't change a part of JSON
    redis HSET "$key" definition "$(definition 30 daily false)" \
        policy '{"paused": true, "pause_note": "the numbers are wrong"}'
    ;;
resume) # due at once, then every 30 seconds
    redis HSET "$key" definition "$(definition 30 daily true)"
    redis HDEL "$key" policy
    redis ZADD "$schedule" XX 0 "$key"
    ;;
run) # now, and then as its schedule says
    redis ZADD "$schedule" XX 0 "$key"
    ;;
history) # its last runs in JSON, the newest first
    redis LRANGE "$part:history:$name" 0 -1
    exit
    ;;
delete) # out of the schedule first
    redis ZREM "$schedule" "$key"
    redis DEL "$key" "$part:history:$name" "$part:backfilled:$name"
    ;;
*)
    echo "usage: REDIS_URL=... sh $0 add|change|pause|resume|run|history|delete" >&2
    exit 2
    ;;
esac

# Optional: a beat that waits looks at once, and not only within a second.
redis PUBLISH "$part:wake" "$1"
