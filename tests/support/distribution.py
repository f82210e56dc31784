"""Which tests of a run by several processes go to the same process, and which begin first."""

from __future__ import annotations

from zlib import crc32

from xdist.scheduler import LoadFileScheduling

#: by its name each of these would begin late, and it takes half a minute or more: others wait for its end
_LONG = (
    "tests/integration/documentation/test_pages_that_run.py",
    *("tests/integration/runs/test_worker_endings.py", "tests/integration/runs/test_worker_runs.py"),
    *("tests/integration/singleton/test_singleton.py", "tests/integration/telemetry/test_prometheus.py"),
    *("tests/integration/reshard/test_resharding.py", "tests/unit/schedules/test_transitions.py"),
    "tests/integration/web/test_browser.py",
    *("tests/unit/schedules/test_rrule.py", "tests/unit/schedules/test_walltimes.py"),
)


def is_long(nodeid: str) -> bool:
    """Whether a test's file is to begin before others."""
    return nodeid.startswith(_LONG)


#: how many processes have a RabbitMQ node: its start takes ten seconds of processor time
RABBITMQ_NODES = 2


class Distribution(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types in older versions
    """Those of one file go to one process, but those that need RabbitMQ to a few for all files."""

    def _split_scope(self, nodeid: str) -> str:  # xdist's own schedulers differ in this method alone
        file: str = super()._split_scope(nodeid)
        if "rabbitmq" not in nodeid.casefold():
            return file
        return f"rabbitmq {crc32(file.encode()) % RABBITMQ_NODES}"
