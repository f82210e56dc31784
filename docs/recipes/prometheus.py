"""celery -A proj redbeat status --json | python prometheus.py: the status as Prometheus reads it."""

import json
import sys

STATES = ("healthy", "no_leader", "late", "unreachable")


def lines(status):
    yield "# TYPE beat_state gauge"
    for state in STATES:
        yield f'beat_state{{state="{state}"}} {int(status["state"] == state)}'
    leader = status.get("leader")
    figures = {
        "beat_leader": int(leader is not None),
        "beat_lock_ttl_seconds": leader and leader["ttl_seconds"],
        "beat_backlog_entries": status["backlog"],
        "beat_oldest_due_age_seconds": status["oldest_due_age_seconds"],
        "beat_last_tick_age_seconds": status["last_tick_age_seconds"],
    }
    for name, value in figures.items():
        if value is not None:  # what isn't known has no line
            yield f"# TYPE {name} gauge"
            yield f"{name} {value}"


if __name__ == "__main__":
    print("\n".join(lines(json.load(sys.stdin))))
