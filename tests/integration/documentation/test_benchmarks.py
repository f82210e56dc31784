"""The benchmarks run, and show every case that was asked for. What they measure is no test's matter."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from kombu import Producer

from tests.benchmarks import bursts, cases, metrics, pings, plot, targets, tracing, web
from tests.benchmarks.__main__ import NOT_JUDGED, OUT, PUBLISHED, parse
from tests.benchmarks.bench import QUICK, ROOT, Sizes
from tests.benchmarks.results import BATCHED, CONFIRMED, FLOOR, LOOP, NOT_YET, OLD, OURS, Cost, Results
from tests.benchmarks.table import FIGURES_HEADER, figure_rows, filled
from tests.support.command_line import run

pytestmark = pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib isn't installed")

PNG_MARK = b"\x89PNG\r\n\x1a\n"
TELEPHONE_PIXELS, LEAST_PIXELS = 380, 10


def run_benchmarks(*arguments: str) -> CompletedProcess[str]:
    return run([sys.executable, "-m", "tests.benchmarks", *arguments], ROOT, timeout=200)


def check_readable_on_a_telephone(png: bytes) -> None:
    assert png.startswith(PNG_MARK)
    width = int.from_bytes(png[16:20], "big")
    assert plot.FONT_SIZE / 72 * plot.DPI * TELEPHONE_PIXELS / width >= LEAST_PIXELS


def test_the_published_picture_is_readable_on_a_telephone() -> None:
    check_readable_on_a_telephone((PUBLISHED / "performance.png").read_bytes())


@pytest.mark.long_form
def test_the_benchmark_of_a_large_cluster_works_with_few_entries() -> None:
    small = "--entries=3000 --saved=1000 --shards=16 --due=160 --rounds=5 --page=10"
    done = run([sys.executable, "-m", "tests.benchmarks.scale", *small.split()], ROOT, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "3,000 in 16 shards; on the nodes: 7, 4, 5" in done.stdout


@pytest.mark.long_form
def test_the_benchmark_of_shards_and_beats_works_with_few_entries() -> None:
    small = "--entries=300 --shards=none,4 --beats=1,2 --every=4 --rounds=1"
    done = run([sys.executable, "-m", "tests.benchmarks.shards", *small.split()], ROOT, timeout=200)
    assert done.returncode == 0, done.stderr
    rows = [line.split()[:2] for line in done.stdout.splitlines()[2:]]
    assert rows == [["none", "1"], ["4", "1"], ["4", "2"]]


#: what each case of a quick run must have found
FOUND: dict[str, set[tuple[str, str, int]]] = {
    "burst": {
        *((bursts.BURST, subject, QUICK.bursts[0]) for subject in (OURS, OLD, LOOP, BATCHED, FLOOR)),
        (bursts.NEVER_RUN, OURS, QUICK.bursts[0]),
    },
    "variants": {
        (bursts.of_variant(bursts.BURST, variant), OURS, QUICK.due)
        for variant in (bursts.TOGETHER, bursts.RECEIVERS, bursts.EVENTS, bursts.LOGGED)
    },
    "tracked": {
        (bursts.of_variant(bursts.BURST, variant), OURS, QUICK.due)
        for variant in (bursts.TRACKED, bursts.UNTRACKED)
    },
    "traced": {
        (case, OURS, QUICK.traced)
        for found in (tracing.BURST, tracing.TRACING, tracing.ALONE, tracing.CARRIED)
        for case in found.values()
    },
    "pings": {(case, OURS, QUICK.due) for case in (*pings.PING.values(), *pings.SCRIPT.values())},
    "metrics": {
        *(
            (case, OURS, QUICK.counted)
            for found in (metrics.SCRAPE, metrics.SCRAPE_CPU, metrics.SIZE, metrics.AGAIN, metrics.SLICE)
            for case in found.values()
        ),
        *((case, OURS, QUICK.counted) for case in (metrics.STATES, metrics.STATES_COST, metrics.GATHERING)),
        *(
            (metrics.of_runs(case, words), OURS, QUICK.due)
            for case in (metrics.COUNTED, metrics.UNCOUNTED, metrics.DIFFERENCE)
            for words in metrics.RUNS
        ),
        (metrics.END_DIFFERENCE, OURS, QUICK.due),
    },
    "sharing": {
        *((case, OURS, QUICK.shared) for case in (cases.ALONE, cases.LOCKLESS, cases.SHARED)),
        *((case, LOOP, QUICK.shared) for case in (cases.ALONE, cases.SHARED)),
    },
    "trips": {(cases.BATCH_TRIPS, subject, QUICK.batch) for subject in (OURS, OLD)},
    "idle": {(cases.IDLE, subject, size) for subject in (OURS, OLD) for size in QUICK.stored},
    "saving": {
        *((cases.SAVE, subject, QUICK.saved) for subject in (OURS, OLD)),
        (cases.SAVE_MANY, OURS, QUICK.saved),
    },
    "files": {(cases.EXPORT, OURS, QUICK.exported), (cases.PLAN, OURS, QUICK.planned)},
    "memory": set(),
    "web": {
        *((web.PAGE.format(path), OURS, QUICK.listed[0]) for path in ("/", "/entry", "/timeline", "/audit")),
        *((web.case_of(view), OURS, QUICK.listed[0]) for view in ("next, first", "name, last", "state")),
        *((case, OURS, QUICK.listed[0]) for case in (web.NAMES, web.NAMES_CPU, web.MEMORY)),
    },
    "work": {
        (case, OURS, QUICK.worked)
        for case in (cases.WORK, cases.WORK_UNTRACKED, cases.WORK_OTHERS, cases.WORK_COMMANDS)
    },
}


@pytest.mark.long_form
@pytest.mark.usefixtures("redbeat2_python")  # its first making takes longer than a run may
def test_a_quick_run_puts_every_case_into_table_json_and_picture(tmp_path: Path) -> None:
    done = run_benchmarks("--quick", "--only", ",".join(FOUND), "--out", str(tmp_path))

    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "results.json").read_text())
    figures = {(figure["case"], figure["subject"], figure["size"]) for figure in found["figures"]}
    for name, expected in FOUND.items():
        assert figures >= expected, name
    for case, _, _ in figures:
        assert case in done.stdout
    # one is against the loop in Producer.batch(), which kombu has since 5.7
    assert len(found["targets"]) == 31 + hasattr(Producer, "batch")
    for target in found["targets"]:
        assert target["target"] in done.stdout
        assert target["is_reached"] is None, "sizes are too small for it"
    assert NOT_JUDGED in done.stdout
    check_readable_on_a_telephone((tmp_path / "bench.png").read_bytes())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--only", "burts"], "no such case: burts"),
        (["--publish", "--quick"], "--publish takes a whole run"),
        (["--publish", "--busy"], "--publish takes a whole run"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_measured(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(arguments)

    assert ended.value.code == 2
    assert reason in capsys.readouterr().err


def test_a_target_is_reached_missed_or_not_there_yet() -> None:
    results, sizes = Results(), Sizes()
    for subject, rate in ((OURS, 24_000), (OLD, 1_000), (LOOP, 4_000)):
        results.add(bursts.BURST, subject, sizes.due, "messages/s", rate)
    results.add(cases.SAVE_MANY, OURS, sizes.saved, "entries/s", None, NOT_YET)

    verdicts = [(one.measured, one.is_reached) for one in targets.verdicts(results, sizes)]

    assert verdicts == [("6.00 x", False), ("24.00 x", True), (NOT_YET, False)]


def test_the_processor_time_of_a_run_stands_beside_its_rate() -> None:
    results, sizes = Results(), Sizes()
    taken = {"sent": 10, "here_seconds": 38e-5, "server_seconds": 47e-5}
    results.add(bursts.BURST, OURS, sizes.due, "messages/s", 8_901, "some said", Cost.of(taken))
    results.add(bursts.BURST, LOOP, sizes.due, "messages/s", 1_000, cost=Cost(400, 66))

    [row] = figure_rows(results)
    [of_rate, of_cost] = targets.verdicts(results, sizes)

    assert row[2] == "8,901 (38 + 47 µs; some said)"
    assert (of_rate.measured, of_rate.is_reached) == ("8.90 x", True)
    assert (of_cost.measured, of_cost.is_reached) == ("0.21 x", False)


def test_a_row_has_medians_and_how_many_times_better_ours_is() -> None:
    results = Results()
    for seconds in (9.0, 1.0, 2.0):
        results.add(cases.COLD, OURS, 5_000, "s", seconds)
    results.add(cases.COLD, OLD, 5_000, "s", 30)

    assert list(figure_rows(results)) == [[cases.COLD, "5,000", "2", "30", "", "", "", "15 x"]]


def test_another_loop_has_a_row_and_no_column_is_empty() -> None:
    results = Results()
    for subject, rate in ((OURS, 4_000), (CONFIRMED, 500), (LOOP, 5_000)):
        results.add(bursts.RABBITMQ, subject, 1_000, "messages/s", rate)

    header, *rows = filled(FIGURES_HEADER, list(figure_rows(results)))

    assert header == ["case", "entries", OURS, LOOP]
    assert rows == [
        [bursts.RABBITMQ, "1,000", "4,000", "5,000"],
        ["burst to RabbitMQ, loop with confirms, messages/s", "1,000", "", "500"],
    ]


@pytest.mark.parametrize("arguments", [["--quick"], ["--only", "trips"], ["--busy"]], ids=" ".join)
def test_a_run_of_a_part_keeps_what_a_whole_run_has_found(arguments: list[str]) -> None:
    assert parse([]).out == OUT
    assert parse(arguments).out == OUT / "part"
    assert parse([*arguments, "--out", "here"]).out == Path("here")


def test_a_picture_shows_what_was_measured_and_else_there_is_none(tmp_path: Path) -> None:
    results, path = Results(), tmp_path / "bench.png"
    results.add(bursts.BURST, OURS, 1_000, "messages/s", 9_000)
    assert plot.draw(results, path)
    height = int.from_bytes(path.read_bytes()[20:24], "big")
    results.add(cases.IDLE, OURS, 1_000, "ms", 0.2)
    assert plot.draw(results, path)
    assert int.from_bytes(path.read_bytes()[20:24], "big") == pytest.approx(2 * height, abs=2)
    assert not plot.draw(Results(), path)
    assert not path.exists()
