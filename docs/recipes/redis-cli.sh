#!/bin/sh
# The entry "report", by redis-cli alone. REDIS_URL is what redbeat_redis_url is in your configuration.
#   REDIS_URL=redis://127.0.0.1:6379/0 sh redis-cli.sh add|change|pause|resume|run|history|delete
set -eu
: "${REDIS_URL:?is not set; use the value of redbeat_redis_url}"

key=redbeat:report
task=${TASK:-proj.tasks.report}

# definition EVERY-SECONDS ARGUMENT ENABLED
definition() {
    printf '{"name": "report", "task": "%s", "schedule": {"__type__": "interval", "every": %s, "relative": false}, "args": ["%s"], "kwargs": {}, "options": {}, "enabled": %s}' \
        "$task" "$1" "$2" "$3"
}

redis() {
    redis-cli --no-auth-warning -u "$REDIS_URL" "$@"
}

case ${1:-} in
add) # due at once (score 0), then every minute
    redis HSET "$key" definition "$(definition 60 weekly true)"
    redis ZADD redbeat::schedule 0 "$key"
    ;;
change) # another argument and another interval; XX: never bring back what was deleted
    redis HSET "$key" definition "$(definition 30 daily true)"
    redis ZADD redbeat::schedule XX 0 "$key"
    ;;
pause) # kept, and not run; this writes the whole of both: redis-cli can't change a part of JSON
    redis HSET "$key" definition "$(definition 30 daily false)" \
        policy '{"paused": true, "pause_note": "the numbers are wrong"}'
    ;;
resume) # due at once, then every 30 seconds
    redis HSET "$key" definition "$(definition 30 daily true)"
    redis HDEL "$key" policy
    redis ZADD redbeat::schedule XX 0 "$key"
    ;;
run) # now, and then as its schedule says
    redis ZADD redbeat::schedule XX 0 "$key"
    ;;
history) # its last runs in JSON, the newest first
    redis LRANGE redbeat::history:report 0 -1
    exit
    ;;
delete) # out of the schedule first
    redis ZREM redbeat::schedule "$key"
    redis DEL "$key" redbeat::history:report redbeat::backfilled:report
    ;;
*)
    echo "usage: REDIS_URL=... sh $0 add|change|pause|resume|run|history|delete" >&2
    exit 2
    ;;
esac

# Optional: a beat that waits looks at once, and not only within a second.
redis PUBLISH redbeat::wake "$1"
