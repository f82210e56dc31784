"""Which tests of a run by several processes go to the same process, and which begin first."""

from __future__ import annotations

from zlib import crc32

from xdist.scheduler import LoadFileScheduling

#: by its name each of these would begin late, and it is among the slowest: others would wait for its end
_LONG = (
    *("tests/integration/reshard/test_resharding.py", "tests/integration/reshard/test_reshard_processes.py"),
    *("tests/integration/documentation/", "tests/integration/diagnostics/test_doctor_of_shards.py"),
    *("tests/integration/contrib/test_django_projects.py", "tests/integration/leadership/test_leader.py"),
    *("tests/integration/singleton/test_singleton.py", "tests/integration/runs/test_worker_"),
    *("tests/integration/web/test_mounting.py", "tests/integration/telemetry/test_endpoint_of_a_beat.py"),
    *("tests/unit/schedules/test_transitions.py", "tests/unit/schedules/test_next_run_properties.py"),
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
