"""``manage.py redbeat`` is ``celery redbeat`` of the project's app: output, options, exit codes."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.process import exit_codes as exits
from tests.support.command_line import installed, run
from tests.support.servers import Server

pytest.importorskip("django")

PROJECT = {
    "proj/__init__.py": "from .celery import app as celery_app\n",
    "proj/celery.py": """\
import os
from celery import Celery
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "proj.settings")
app = Celery("proj")
app.config_from_object("django.conf:settings", namespace="CELERY")
""",
    "proj/settings.py": """\
SECRET_KEY = "x"
INSTALLED_APPS = ["django.contrib.contenttypes", "redbeat.contrib.django"]
CELERY_BROKER_URL = {url!r}
""",
    "proj/other.py": "from proj.settings import *\nCELERY_REDBEAT_KEY_PREFIX = 'other:'\n",
    "manage.py": """\
import os, sys
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "proj.settings")
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
""",
}


@pytest.fixture
def project(server: Server, tmp_path: Path) -> Path:
    for name, text in PROJECT.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace("{url!r}", repr(server.url(0))))
    return tmp_path


def call(*words: str, **options: Any) -> str:
    """What the command prints."""
    from django.core.management import call_command

    out = io.StringIO()
    call_command("redbeat", *words, stdout=out, **options)
    return out.getvalue()


def test_it_says_and_ends_as_celery_redbeat_does(project: Path) -> None:
    env = installed(project)
    add = ["add", "report", "echo", "--cron", "0 9 * * *"]
    added = run([sys.executable, "manage.py", "redbeat", *add], project, env)
    assert added.returncode == 0, added.stderr
    for words in (["list"], ["show", "gone"], ["list", "--nonsense"]):
        ours = run([sys.executable, "manage.py", "redbeat", *words], project, env)
        theirs = run([sys.executable, "-m", "celery", "-A", "proj", "redbeat", *words], project, env)
        assert ours.returncode == theirs.returncode
        assert ours.stdout == theirs.stdout
        assert ours.stderr.replace("manage.py redbeat", "celery redbeat") == theirs.stderr


def test_options_of_django_may_stand_anywhere(project: Path) -> None:
    env = installed(project)
    for words in (["--settings=proj.other", "count"], ["count", "--settings", "proj.other", "--no-color"]):
        added = run([sys.executable, "manage.py", "redbeat", *words], project, env)
        assert (added.returncode, added.stdout.strip()) == (0, "0"), added.stderr
    shown = run([sys.executable, "manage.py", "help", "redbeat"], project, env)
    assert "See the schedule:" in shown.stdout
    assert "Usage: manage.py redbeat [OPTIONS]" in shown.stdout


def test_a_broker_in_the_environment_does_not_hide_the_settings_of_the_namespace(project: Path) -> None:
    settings = (project / "proj" / "settings.py").read_text()
    (project / "proj" / "settings.py").write_text(
        settings + "CELERY_REDBEAT_REDIS_URL = CELERY_BROKER_URL\nCELERY_REDBEAT_KEY_PREFIX = 'mine:'\n"
    )
    env = installed(project) | {"CELERY_BROKER_URL": "redis://127.0.0.1:1/0"}
    shown = run([sys.executable, "manage.py", "redbeat", "show", "gone"], project, env)
    assert "in mine::schedule at redis://" in shown.stderr
    found = run([sys.executable, "manage.py", "redbeat", "doctor"], project, env)
    assert "Set CELERY_REDBEAT_REDIS_OPTIONS = {'retry_period': 60}" in found.stdout, found.stderr


def test_call_command_returns_what_it_prints(app: Celery) -> None:
    Entry("report", "echo", 60, app=app).save()
    assert call("count") == "1\n"
    assert '"name": "report"' in call("list", "--json")
    assert call("count", no_color=True) == "1\n"
    assert "Usage: manage.py redbeat list" in call("list", "--help")


def test_call_command_raises_the_sentence_and_the_exit_code(app: Celery) -> None:
    from django.core.management import CommandError

    with pytest.raises(CommandError, match="There is no entry 'gone' in redbeat::schedule") as caught:
        call("show", "gone")
    assert caught.value.returncode == exits.NO_INPUT
    with pytest.raises(CommandError, match=r"No such command 'lisst'\. Did you mean 'list'") as caught:
        call("lisst")
    assert caught.value.returncode == exits.USAGE


def test_without_an_app_it_says_how_to_name_one(project: Path) -> None:
    for name in ("proj/__init__.py", "proj/celery.py"):
        (project / name).write_text("")
    done = run([sys.executable, "manage.py", "redbeat", "list"], project, installed(project))
    assert done.returncode == exits.CONFIG
    assert done.stderr == (
        "Error: REDBEAT_CELERY_APP: no Celery app was found. Set REDBEAT_CELERY_APP in Django's settings to "
        "where it is, such as 'proj.celery:app'.\n"
    )
