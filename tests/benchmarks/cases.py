"""The cases besides bursts: which subjects run, on how much, and which figures come of it.

Subjects take turns inside of a repeat: ours, 2.4.2, the loop, and again.
"""

from __future__ import annotations

import statistics
from typing import Any

from .bench import Bench
from .results import LOOP, OLD, OURS, Cost
from .subjects.fill import fill

BATCH_TRIPS = "round trips for a batch due"
IDLE = "idle tick, ms"
IDLE_TRIPS = "round trips of an idle tick"
COLD, WARM = "beat_schedule stored first (cold), s", "beat_schedule stored again (warm), s"
SAVE, SAVE_MANY = "save in a loop, entries/s", "save_many, entries/s"
EXPORT, EXPORT_CPU = "export, s", "export, s of processor time"
PLAN, PLAN_CPU = "plan that changes all, s", "plan that changes all, s of processor time"
MEMORY = "peak memory, MB"
TURNED = "memory gained by sending that many in turn, MB"
ALONE, SHARED = "burst of one sender, messages/s", "burst shared by two, messages/s"
WORK = "worker, a run's task done, tasks/s"
WORK_UNTRACKED, WORK_OTHERS = "worker without tracking, tasks/s", "worker, a task of no entry, tasks/s"
WORK_COMMANDS = "commands of a worker for a run"
PASSAGES = ("plain", "jitter", "shards")
#: of a tick, each with the most that is wanted
PASSAGE_MEASURES = {"files": 22, "functions": 110, "depth": 14, "returns": 40}
LOCKLESS = "burst of one beat without a lock, messages/s"


def sharing(bench: Bench) -> None:
    """A burst for one beat, and for two that share it; two loops beside one tell what the machine can do."""
    count, limit = bench.sizes.shared, bench.sizes.limit_seconds
    for _ in range(bench.sizes.repeats):
        for case, subject, way, processes in (
            (ALONE, OURS, "leader", 1),
            (LOCKLESS, OURS, "sharer", 1),
            (SHARED, OURS, "sharer", 2),
            (ALONE, LOOP, "loop", 1),
            (SHARED, LOOP, "loop", 2),
        ):
            bench.clear()
            with bench.server.client(db=0) as broker, bench.server.client(db=1) as schedule:

                def prepare(is_loop: bool = subject == LOOP) -> None:
                    if not is_loop:
                        fill(schedule, count, is_due=True)
                    broker.delete("celery")

                options = {"way": way, "db": 1, "share": count // processes, "limit_seconds": limit}
                reports = bench.run_together(processes, subject, "share", prepare, **options)
                sent = broker.llen("celery")
            assert sent == count, f"{case}, {subject}: {sent} of {count} were sent"
            seconds = max(one["ended"] for one in reports) - min(one["started"] for one in reports)
            bench.results.add(case, subject, count, "messages/s", count / seconds)


def trips(bench: Bench) -> None:
    """What crosses the wire for one batch, until nothing more is due; pipelines count as one."""
    due = bench.sizes.batch
    for subject in (OURS, OLD):
        bench.clear()
        report = bench.run(subject, "ticks", way="due", due=due, db=1)
        bench.results.add(BATCH_TRIPS, subject, due, "round trips", report["round_trips"])


def idle(bench: Bench) -> None:
    """A tick with nothing due, at every size of schedule."""
    sizes = bench.sizes.stored
    databases = [bench.stored(count) for count in sizes]
    for _ in range(bench.sizes.repeats):
        for subject in (OURS, OLD):
            report = bench.run(subject, "ticks", way="idle", dbs=databases, rounds=bench.sizes.idle_rounds)
            for count, seconds, trips in zip(sizes, report["seconds"], report["round_trips"], strict=True):
                bench.results.add(IDLE, subject, count, "ms", seconds * 1000)
                bench.results.add(IDLE_TRIPS, subject, count, "round trips", trips)


def passage(bench: Bench) -> None:
    """How much code a warm tick with one due entry passes through."""
    for way in PASSAGES:
        bench.clear()
        report = bench.run(OURS, "passage", way=way, db=1)
        for measure in PASSAGE_MEASURES:
            bench.results.add(f"{measure} of a tick, {way}", OURS, 1, measure, report[measure])


def statics(bench: Bench) -> None:
    """From nothing to a leader with all of beat_schedule stored; then the same again."""
    count = bench.sizes.statics
    for _ in range(bench.sizes.repeats):
        for subject in (OURS, OLD):
            bench.clear()
            for case in (COLD, WARM):
                report = bench.run(subject, "saving", way="statics", count=count)
                bench.results.add(case, subject, count, "s", report["seconds"])


def saving(bench: Bench) -> None:
    """New entries, made already, are saved: one after the other, and all at once."""
    count = bench.sizes.saved
    for _ in range(bench.sizes.repeats):
        for subject, way, case in ((OURS, "save", SAVE), (OLD, "save", SAVE), (OURS, "save_many", SAVE_MANY)):
            bench.clear()
            report = bench.run(subject, "saving", way=way, count=count)
            bench.results.add(case, subject, count, "entries/s", count / report["seconds"])


def files(bench: Bench) -> None:
    """A schedule written to a file, and compared with a file that changes every entry."""
    for count, way, case, cpu_case in (
        (bench.sizes.exported, "exported", EXPORT, EXPORT_CPU),
        (bench.sizes.planned, "planned", PLAN, PLAN_CPU),
    ):
        for _ in range(bench.sizes.repeats):
            bench.clear()
            measured = bench.run(OURS, "files", count=count)[way]
            bench.results.add(case, OURS, count, "s", measured["seconds"])
            bench.results.add(cpu_case, OURS, count, "s", measured["cpu_seconds"])


def memory(bench: Bench) -> None:
    """The peak of a process that sends some of what is stored; and what it gains while it sends many more."""
    due, turned = bench.sizes.due, bench.sizes.turned
    for stored in (due, bench.sizes.stored[-1]):
        for subject in (OURS, OLD):
            bench.clear()
            report = bench.run(subject, "ticks", way="due", due=due, db=bench.stored(stored))
            assert report["sent"] == due, report
            bench.results.add(MEMORY, subject, stored, "MB", report["peak_rss_bytes"] / 1e6)
    bench.clear()
    report = bench.run(OURS, "ticks", way="due", due=turned, db=1)
    assert report["sent"] == turned, report
    bench.results.add(TURNED, OURS, turned, "MB", report["gained_bytes"] / 1e6)
    bench.clear()


def work(bench: Bench) -> None:
    """A worker that takes messages: of runs, tracked or not, and others. Its pool is solo."""
    count = bench.sizes.worked
    for _ in range(bench.sizes.repeats):
        for way, case in (("tracked", WORK), ("untracked", WORK_UNTRACKED), ("others", WORK_OTHERS)):
            bench.clear()
            report = bench.run(OURS, "work", way=way, count=count, db=1, **bench.limits())
            assert report["done"] == count, report
            cost = Cost.of({**report, "sent": count})
            bench.results.add(case, OURS, count, "tasks/s", count / report["seconds"], cost=cost)
            if way == "tracked":
                bench.results.add(WORK_COMMANDS, OURS, count, "commands", report["commands"] / count)


WEB_PAGE = "dashboard, the page {}, ms of server time"
WEB_LIST = "dashboard, page of entries by {}, ms of server time"
WEB_FIRST = "dashboard, first answer of a search by {}, ms of server time"
NAMES, NAMES_CPU = "dashboard, all names read, s", "dashboard, all names read, s of processor time"
WEB_MEMORY = "dashboard, memory gained by the names, MB"


def case_of(view: str) -> str:
    """The name of the case of a view of the list."""
    is_page = view.startswith(("next, ", "name, "))
    return (WEB_LIST if is_page else WEB_FIRST).format(view)


def web(bench: Bench) -> None:
    """One process that is the dashboard and asks itself."""
    for count in bench.sizes.listed:
        options = {"db": bench.stored(count), "count": count, "rounds": bench.sizes.looks}
        found = bench.run(OURS, "web", **options)
        for path, measured in found["pages"].items():
            _add_view(bench, WEB_PAGE.format(path.partition("?")[0]), count, measured)
        for view, measured in found["lists"].items():
            _add_view(bench, case_of(view), count, measured)
        names = found["names"]
        bench.results.add(NAMES, OURS, count, "s", names["seconds"])
        bench.results.add(NAMES_CPU, OURS, count, "s", names["cpu_seconds"])
        megabytes = names["resident_bytes"] / 1e6
        bench.results.add(WEB_MEMORY, OURS, count, "MB", names["gained_bytes"] / 1e6, f"of {megabytes:.0f}")


def _add_view(bench: Bench, case: str, count: int, measured: dict[str, Any]) -> None:
    looked = f"; looked through {measured['looked']} %" if measured["looked"] < 100 else ""
    processor = statistics.median(measured["cpu_ms"])
    note = f"{processor:.0f} ms of processor time; {measured['kilobytes']:.0f} kB{looked}"
    for value in measured["ms"]:
        bench.results.add(case, OURS, count, "ms", value, note)


def slowest(bench_results: Any, count: int, pattern: str) -> float:
    """The median of the slowest view with a case of ``pattern``; LookupError: none was measured."""
    beginning = pattern.partition("{}")[0]
    of_size = [one for one in bench_results.figures if one.size == count]
    found = [one.value for one in of_size if one.case.startswith(beginning)]
    if not found:
        raise LookupError("not run")
    return max(found)
