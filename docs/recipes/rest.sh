#!/bin/sh
# The entry "report" over REST, with curl: made, changed as it was seen, paused, run once, removed.
#   URL=http://127.0.0.1:8555/api/v1 TOKEN=rb_... sh rest.sh
set -eu

# the token goes by a file, as anybody on this machine can read the arguments of a command
secret=$(mktemp)
answer=$(mktemp)
trap 'rm -f "$secret" "$answer"' EXIT
echo "header = \"Authorization: Bearer $TOKEN\"" > "$secret"

ask() { # METHOD PATH [CURL'S OPTIONS]: print the answer; end the script if it is an error
    method=$1 path=$2
    shift 2
    curl --config "$secret" --silent --show-error --fail-with-body --request "$method" "$@" "$URL$path" || {
        echo >&2
        exit 1
    }
}

ask PUT /entries/report --header 'If-None-Match: *' --json '{
    "task": "proj.tasks.report",
    "schedule": {"__type__": "crontab", "minute": "30", "hour": "6"}
}' --dump-header "$answer"
etag=$(sed -n 's/^etag: //Ip' "$answer" | tr -d '\r')

# 412 if somebody else has changed it meanwhile
ask PATCH /entries/report --header "If-Match: $etag" --header 'Content-Type: application/merge-patch+json' \
    --data '{"timezone": "Europe/Berlin", "kwargs": {"kind": "weekly"}}'

ask PUT /entries/report/pause --json '{"note": "release", "until": "2h"}'
ask DELETE /entries/report/pause

# with the same key it can be tried again, and one run is sent
ask PUT /entries/report/trigger --header "Idempotency-Key: $(date +%s)-$$" --retry 3 --retry-connrefused

ask GET '/entries?match=rep*&state=scheduled'
ask DELETE /entries/report
