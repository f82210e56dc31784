"""Which tests of a run by several processes go to the same process."""

from __future__ import annotations

from zlib import crc32

from xdist.scheduler import LoadFileScheduling

#: how many processes have a RabbitMQ node: its start takes ten seconds of processor time
RABBITMQ_NODES = 2


class Distribution(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types in older versions
    """Those of one file go to one process, but those that need RabbitMQ to a few for all files."""

    def _split_scope(self, nodeid: str) -> str:  # xdist's own schedulers differ in this method alone
        file: str = super()._split_scope(nodeid)
        if "rabbitmq" not in nodeid.casefold():
            return file
        return f"rabbitmq {crc32(file.encode()) % RABBITMQ_NODES}"
