"""Which Celery app Django's part uses: the setting's, else the one that ``celery -A`` would find."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from redbeat.errors import ConfigurationError

APP = "from celery import Celery\napp = Celery('mine', set_as_current=False)\n"
Project = Callable[..., Any]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """Write modules, and let Django's settings be in one of them."""
    from django.conf import settings
    from django.test import override_settings

    from redbeat.contrib.django.celery_app import find_app

    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def find(settings_module: str | None, given: Any = None, /, **modules: str) -> Any:
        for name, text in modules.items():
            path = tmp_path.joinpath(*name.replace("INIT", "*").split("__")).with_suffix(".py")
            path = path.with_name(path.name.replace("*", "__init__"))
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
def test_it_is_found_in_the_package_of_the_settings(
    project: Project, settings_module: str, modules: dict[str, str]
) -> None:
    found = project(settings_module, proj__settings__INIT="", **modules)
    assert found.main == "mine"


def test_it_is_the_same_in_each_thread(project: Project) -> None:
    project("proj.settings", proj__INIT="", proj__celery=APP)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(project("proj.settings")))
    thread.start()
    thread.join()
    assert found == [project("proj.settings")]


def test_the_setting_goes_first(project: Project) -> None:
    modules = {"proj__INIT": "", "proj__celery": APP, "elsewhere": APP.replace("mine", "other")}
    for given in ("elsewhere:app", "elsewhere.app", "elsewhere"):
        assert project("proj.settings", given, **modules).main == "other"
    mine = Celery("by hand", set_as_current=False)
    assert project("proj.settings", mine) is mine


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("no.such:app", "REDBEAT_CELERY_APP: 'no.such:app' can't be used: ModuleNotFoundError: "),
        ("elsewhere:nothing", "REDBEAT_CELERY_APP: 'elsewhere:nothing' can't be used: AttributeError: "),
        ("elsewhere:Celery", "REDBEAT_CELERY_APP: 'elsewhere:Celery' is no Celery app, but <class "),
        (5, "REDBEAT_CELERY_APP: 5 is no Celery app. Set "),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_wrong(project: Project, given: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        project("proj.settings", given, proj__INIT="", elsewhere=APP)
    assert str(caught.value).startswith(sentence)


def test_an_error_in_the_projects_own_module_is_told(project: Project) -> None:
    with pytest.raises(ConfigurationError) as caught:
        project("proj.settings", proj__INIT="", proj__celery="1 / 0")
    assert str(caught.value) == "proj.celery can't be imported: ZeroDivisionError: division by zero"


@pytest.mark.parametrize("settings_module", ["settings", None, "proj.settings"])
def test_without_any_it_says_how_to_name_one(project: Project, settings_module: str | None) -> None:
    with pytest.raises(
        ConfigurationError, match="Set REDBEAT_CELERY_APP in Django's settings to where it is"
    ):
        project(settings_module, proj__INIT="", proj__celery="")
