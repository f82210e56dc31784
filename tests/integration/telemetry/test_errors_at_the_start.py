"""What a beat that can't start logs: one record, in the format that is set, whatever else is wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.faults.rounds import some_of
from tests.support.apps import celery_beat, write_app

#: what isn't allowed, and the setting that the log names
ALL_WRONG: list[tuple[dict[str, Any], str]] = [
    ({"redbeat_ping_url": "nowhere"}, "redbeat_ping_url"),
    ({"redbeat_http": "nowhere"}, "redbeat_http"),
    ({"redbeat_ping_hosts": ["/"]}, "redbeat_ping_hosts"),
    ({"redbeat_lock_timeout": -1}, "redbeat_lock_timeout"),
    ({"redbeat_delivery": "twice"}, "redbeat_delivery"),
    ({"redbeat_redis_url": "http://127.0.0.1/"}, "redbeat_redis_url"),
    ({"redbeat_redis_options": {"retry_period": "x"}}, "redbeat_redis_options"),
    ({"redbeat_redis_options": {"sentinelz": 1}}, "redbeat_redis_options"),
]
WRONG = some_of(ALL_WRONG, 3)

#: starts beats one after another: forks of a process that has imported all, so that each starts quickly
STARTS = """
import json, os, sys
import celery.beat, celery.bin.celery, celery.apps.beat, redis.cluster, kombu.transport.redis
from celery.__main__ import main
import redbeat.schedulers

def embedded():
    from wrong import app
    app.log.setup("INFO", redirect_stdouts=True)
    beat = celery.beat.EmbeddedService(app, scheduler_cls="redbeat.RedBeatScheduler")
    beat.start()
    beat.join()
    sys.exit(beat.exitcode)

ends = []
for number, (settings, arguments) in enumerate(json.load(sys.stdin)):
    pid = os.fork()
    if not pid:
        os.dup2(os.open(f"stderr-{number}", os.O_CREAT | os.O_WRONLY), 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.environ["SETTINGS"] = json.dumps(settings)
        if arguments is None:
            embedded()
        sys.argv[:] = ["celery", *arguments]
        main()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with open(f"stderr-{number}") as printed:
        ends.append((code, printed.read()))
print(json.dumps(ends))
"""

#: ``celery beat`` with its banner, without it, and inside a worker
BEAT = ("-A", "wrong", "beat", "-S", "redbeat.RedBeatScheduler", "-l", "INFO")
WAYS: dict[str, tuple[str, ...] | None] = {"banner": BEAT, "quiet": ("-q", *BEAT), "embedded": None}


#: how a beat ended: its exit code, and the lines on stderr
End = tuple[int, list[str]]

FORMAT = {"redbeat_http": "nowhere", "redbeat_log_format": "yaml"}
NO_REDIS = {"redbeat_redis_url": "redis://127.0.0.1:1"}


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[End]]:
    """How beats end, by the way they were started: with each of WRONG, with FORMAT, and with NO_REDIS."""
    directory = tmp_path_factory.mktemp("wrong")
    extra = "import os\napp.conf.update(json.loads(os.environ['SETTINGS']))"
    write_app(directory, "wrong", "redis://127.0.0.1:1", extra=extra)
    settings = [*({"redbeat_log_format": "json", **wrong} for wrong, _ in WRONG), FORMAT, NO_REDIS]
    done = subprocess.run(
        [sys.executable, "-c", STARTS],
        input=json.dumps([(each, way) for way in WAYS.values() for each in settings]),
        cwd=directory,
        text=True,
        stdout=subprocess.PIPE,
        check=True,
    )
    found = iter(json.loads(done.stdout))
    return {
        way: [(code, printed.splitlines()) for code, printed in islice(found, len(settings))] for way in WAYS
    }


@pytest.mark.parametrize("way", WAYS)
def test_a_setting_that_ends_beat_at_its_start_is_one_record_with_its_event(
    ends: dict[str, list[End]], way: str
) -> None:
    for (settings, name), (code, lines) in zip(WRONG, ends[way][:-2], strict=True):
        assert code == 78, (settings, lines)
        [line] = [line for line in lines if "beat: Starting..." not in line]
        record = json.loads(line)
        assert (record["level"], record["event"]) == ("CRITICAL", "redbeat.beat.misconfigured")
        assert record["setting"] == name
        assert record["message"] == f"beat: {record['reason']}"


def test_a_log_format_that_is_wrong_is_told_plainly_whatever_else_is(ends: dict[str, list[End]]) -> None:
    sentence = "redbeat_log_format: 'yaml' isn't allowed; use 'celery' or 'json'."
    assert ends["banner"][-2] == (78, [f"Error: {sentence}"])
    for way in ("quiet", "embedded"):
        code, lines = ends[way][-2]
        [line] = [line for line in lines if "beat: Starting..." not in line]
        assert code == 78
        assert re.fullmatch(rf"\[.*CRITICAL/\w+] beat: {re.escape(sentence)}", line)


@pytest.mark.parametrize("way", ["banner", "quiet"])
def test_without_json_the_traceback_of_the_error_that_ends_beat_is_told_once(
    ends: dict[str, list[End]], way: str
) -> None:
    code, lines = ends[way][-1]
    assert code == 1
    assert lines.count("Traceback (most recent call last):") == 1
    assert sum("StoreUnavailable(" in line for line in lines) == 1
    assert not [line for line in lines if "WARNING" in line]


def test_a_setting_that_ends_beat_is_told_in_the_log_file(tmp_path: Path) -> None:
    write_app(tmp_path, "wrong", "redis://127.0.0.1:1", redbeat_log_format="json", redbeat_http="nowhere")
    with celery_beat(tmp_path, "wrong", "-f", "beat.log") as beat:
        assert beat.wait() == 78
    [record] = map(json.loads, (tmp_path / "beat.log").read_text().splitlines())
    assert (record["event"], record["setting"]) == ("redbeat.beat.misconfigured", "redbeat_http")
