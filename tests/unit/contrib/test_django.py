"""Django's part without a server: which app it uses, and its system checks; it is optional."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from unittest.mock import Mock
from weakref import WeakSet

import pytest
from celery import Celery, _state
from django.conf import settings
from django.core import checks
from django.test import override_settings

from redbeat.contrib.django.celery_app import find_app
from redbeat.contrib.django.checks import TAG
from redbeat.errors import ConfigurationError
from tests.support import django_site as django_site  # sets Django up
from tests.support.command_line import run

APP = "from celery import Celery\napp = Celery('mine', set_as_current=False)\n"


Project = Callable[..., Any]


REDIS = "redis://127.0.0.1:1/0"


PROJECT = """
from django.conf import settings
settings.configure(INSTALLED_APPS=[
    "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions",
    "django.contrib.messages", "redbeat.contrib.django",
])
import django
django.setup()
from django.core import checks
print(sorted(str(one.id) for one in checks.run_checks(tags=["redbeat"])))
from django.contrib import admin
from redbeat.contrib.django.models import Entry
print(admin.site.is_registered(Entry))
"""


@pytest.fixture(autouse=True)
def process_without_other_apps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the apps of other tests: one of them may be that of a worker."""
    monkeypatch.setattr(_state, "_apps", WeakSet())


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """Write modules, and let Django's settings be in one of them."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def find(settings_module: str | None, given: Any = None, /, **modules: str) -> Any:
        for name, text in modules.items():
            path = tmp_path / f"{name.replace('__', '/').replace('INIT', '__init__')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        with override_settings(REDBEAT_CELERY_APP=given):
            settings.SETTINGS_MODULE = settings_module
            return find_app()

    yield find
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("proj", "elsewhere"):
            del sys.modules[name]


@pytest.mark.parametrize(
    "modules",
    [
        {"proj__INIT": "", "proj__celery": APP},
        {"proj__INIT": "from .celery import app as celery_app", "proj__celery": APP},
        {"proj__INIT": "from .tasks import app as celery_app", "proj__tasks": APP},
        {"proj__INIT": "", "proj__celery": APP.replace("app =", "celery =")},
    ],
    ids=["celery.py", "celery.py, imported", "another module, imported", "another name"],
)
@pytest.mark.parametrize("settings_module", ["proj.settings", "proj.settings.production"])
def test_app_is_found_in_the_package_of_the_settings(
    project: Project, settings_module: str, modules: dict[str, str]
) -> None:
    found = project(settings_module, proj__settings__INIT="", **modules)
    assert found.main == "mine"


def test_setting_goes_first(project: Project) -> None:
    modules = {"proj__INIT": "", "proj__celery": APP, "elsewhere": APP.replace("mine", "other")}
    for setting in ("elsewhere:app", "elsewhere.app", "elsewhere"):
        assert project("proj.settings", setting, **modules).main == "other"
    mine = Celery("by hand", set_as_current=False)
    assert project("proj.settings", mine) is mine


@pytest.mark.parametrize(
    ("settings_module", "setting", "celery"),
    [
        ("proj.settings", "no.such:app", APP),
        ("proj.settings", 5, APP),
        ("proj.settings", None, "1 / 0"),
        (None, None, ""),
    ],
)
def test_missing_or_invalid_app_is_a_configuration_error(
    project: Project, settings_module: str | None, setting: Any, celery: str
) -> None:
    with pytest.raises(ConfigurationError, match=r"REDBEAT_CELERY_APP|proj\.celery"):
        project(settings_module, setting, proj__INIT="", proj__celery=celery, elsewhere=APP)


def found(app: Celery) -> list[tuple[str, str]]:
    """Return the ids and sentences of what the checks find with this app."""
    with override_settings(REDBEAT_CELERY_APP=app):
        messages = checks.run_checks(tags=[TAG], include_deployment_checks=True)
        return [(str(one.id), one.msg) for one in messages]


@pytest.mark.parametrize(
    ("settings", "number", "named"),
    [
        ({"beat_schedule": {"report": {"task": "echo", "schedule": 60, "args": [1]}}}, "", ""),
        ({"redbeat_lock_timeout": "long"}, "E002", "redbeat_lock_timeout"),
        ({"broker_url": "memory://"}, "W005", "redbeat_redis_url"),
        ({"timezone": "Mars/Base"}, "E002", "configuration"),
        ({"beat_schedule": {"report": {"task": "echo", "schedule": "61 * * * *"}}}, "E003", "'61'"),
        ({"redbeat_lock_timeot": 60}, "W001", "redbeat_lock_timeout"),
        ({"beat_scheduler": "django_celery_beat.schedulers:DatabaseScheduler"}, "W002", "DatabaseScheduler"),
        ({"timezone": "UTC"}, "W003", "Europe/Berlin"),
    ],
)
def test_check_finds_each_fault_without_a_server(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], number: str, named: str
) -> None:
    monkeypatch.setattr(socket.socket, "connect", Mock(side_effect=AssertionError("a server was asked")))
    given = {"broker_url": REDIS, "timezone": "Europe/Berlin", **settings}
    app = Celery("proj", set_as_current=False, changes=given)

    @app.task(name="echo", shared=False)
    def echo() -> None: ...

    messages = found(app)
    assert [one for one, _ in messages] == ([f"redbeat.{number}"] if number else [])
    assert all(named in sentence for _, sentence in messages)


def test_check_names_settings_as_they_stand_in_django() -> None:
    class Settings:
        CELERY_BROKER_URL = REDIS
        CELERY_REDBEAT_BACH_SIZE = 5
        CELERY_TIMEZONE = "Europe/Berlin"

    app = Celery("proj", set_as_current=False)
    app.config_from_object(Settings, namespace="CELERY")
    [(_, sentence)] = found(app)
    assert sentence.startswith("Unknown setting CELERY_REDBEAT_BACH_SIZE is ignored")


def test_starting_worker_skips_the_checks() -> None:
    app = Celery("proj", set_as_current=False, changes={"broker_url": "memory://"})
    assert [number for number, _ in found(app)] == ["redbeat.W005", "redbeat.W003"]
    app.loader.init_worker()
    assert found(app) == []


def run_without(*packages: str, script: str) -> CompletedProcess[str]:
    """Run a script in a process that cannot import these packages."""
    missing = f"""
import importlib.util, sys
find, missing = importlib.util.find_spec, {packages}
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(name)
importlib.util.find_spec = lambda name, package=None: None if name in missing else find(name)
sys.meta_path.insert(0, Missing())
"""
    return run([sys.executable, "-c", missing + script], Path.cwd(), {})


def test_other_modules_do_not_need_django() -> None:
    imports = "import redbeat, redbeat.cli, redbeat.web, redbeat.web.django, redbeat.schedulers"
    done = run_without("django", script=imports)
    assert done.returncode == 0, done.stderr


def test_site_loads_without_the_packages_of_the_dashboard_and_a_check_names_them() -> None:
    done = run_without("starlette", "uvicorn", script=PROJECT)
    assert done.stdout.splitlines() == ["['redbeat.E001', 'redbeat.E004']", "True"], done.stderr
