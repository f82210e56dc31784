"""A file is applied, exported and imported in a cluster, too: all keys are in one slot."""

from __future__ import annotations

from redbeat.calendars import Calendar
from redbeat.manifest.format import read_file, write_file
from redbeat.manifest.plan import apply_plan, commit, make_plan
from redbeat.manifest.transfer import export_entries, plan_import
from redbeat.store.store import Store
from tests.support.ticks import memory_app
from tests.support.topologies import ClusterTopology

FILE = """
entries:
  one: {task: echo, schedule: {every: 1h}, exclude: holidays}
  two: {task: echo, schedule: {cron: "0 9 * * *"}}
calendars:
  holidays: {days: [2090-12-25]}
"""


def test_a_cluster_takes_files_too(cluster: ClusterTopology) -> None:
    host, port = cluster.startup_nodes[0]
    app = memory_app(redbeat_redis_url=f"redis-cluster://{host}:{port}")
    apply_plan(lambda: make_plan(app, read_file(FILE), "billing"))
    store = Store(app)
    assert store.client.zcard(store.keys.schedule) == 2
    text = write_file(export_entries(app).declared)
    apply_plan(lambda: make_plan(app, read_file("entries: {}"), "billing", prune=True))
    Calendar("holidays", app=app).delete()
    assert store.client.zcard(store.keys.schedule) == 0
    commit(plan_import(app, read_file(text)))
    assert write_file(export_entries(app).declared) == text
    assert store.client.smembers(store.keys.owner("billing")) == {"one", "two"}
