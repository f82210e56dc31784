"""The wheel, which is what users install: it is whole, holds nothing else, and runs far from the checkout."""

from __future__ import annotations

import email
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
import redis

from tests.support.apps import celery_beat, celery_command, write_app
from tests.support.polling import eventually
from tests.support.schedule import sent_names
from tests.support.servers import Server

ROOT = Path(__file__).parents[2]
SOURCES = ("redbeat", "pyproject.toml", "setup.py", "README.rst", "LICENSE")


def run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built of a copy: building leaves its traces in the source directory."""
    directory = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, directory)
    (directory / "tests").mkdir()
    (directory / "tests" / "__init__.py").touch()
    run(sys.executable, "-m", "build", "--wheel", *isolation(), "--outdir", "dist", cwd=directory)
    (built,) = (directory / "dist").glob("*.whl")
    return built


def isolation() -> list[str]:
    """Whether what pyproject.toml asks for to build is here already: quicker, and needs no network."""
    import setuptools

    is_new = int(setuptools.__version__.split(".")[0]) >= 77
    return ["--no-isolation"] if is_new and importlib.util.find_spec("wheel") else []


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment: RedBeat from the wheel, all else from the environment of the tests."""
    directory = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", "--without-pip", directory, cwd=directory)
    python = directory / "bin" / "python"
    site_packages = Path(
        run(python, "-c", "import site; print(site.getsitepackages()[0])", cwd=directory).strip()
    )
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    run(*install, "--no-compile", "--target", site_packages, wheel, cwd=directory)
    # Its own directory comes first; an editable RedBeat there is a .pth file, which isn't read from here.
    (site_packages / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    return python


def test_the_wheel_holds_the_package_its_scripts_and_its_types_only(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata_name,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(metadata_name))
    expected = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "redbeat").rglob("*")
        if path.suffix in (".py", ".lua") or path.name == "py.typed"
    }
    assert "redbeat/py.typed" in expected
    assert "redbeat/store/scripts/claim_due.lua" in expected
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert metadata["Name"] == "celery-redbeat"
    assert metadata["License-Expression"] == "Apache-2.0"
    required = {line.split(";")[0].split(">")[0].strip() for line in metadata.get_all("Requires-Dist", [])}
    assert {"celery", "redis", "python-dateutil", "tenacity"} <= required


def test_the_installed_package_is_the_wheels(python: Path, tmp_path: Path) -> None:
    script = (
        "import redbeat.schedulers, redbeat.store.scripts as lua;"
        " print(redbeat.__file__, len(lua._CLAIM_DUE.source))"
    )
    path, length = run(python, "-c", script, cwd=tmp_path).split()
    assert Path(path).is_relative_to(python.parents[1])
    assert int(length) > 1_000


def test_celery_beat_runs_from_the_wheel_by_its_short_name(
    python: Path, valkey: Server, tmp_path: Path
) -> None:
    write_app(
        tmp_path,
        "shop",
        valkey.url(0),
        redbeat_redis_url=valkey.url(1),
        beat_schedule={"often": {"task": "echo", "schedule": 0.2}},
    )
    with (
        celery_beat(tmp_path, "shop", python=python, scheduler="redbeat") as beat,
        redis.Redis.from_url(valkey.url(0)) as broker,
    ):
        eventually(lambda: broker.llen("celery") >= 3 or not beat.is_running)
        assert beat.is_running, beat.output()
        assert set(sent_names(broker)) == {"often"}
    assert beat.returncode == 0, beat.output()


def test_celery_redbeat_status_is_there_once_the_wheel_is_installed(
    python: Path, valkey: Server, tmp_path: Path
) -> None:
    write_app(tmp_path, "shop", valkey.url(0), redbeat_redis_url=valkey.url(1))
    with celery_command(tmp_path, "shop", "redbeat", "status", python=python) as status:
        assert status.wait(60) == 1, status.output()
        assert "No beat holds the lock" in status.output()


def test_a_singleton_runs_from_the_wheel(python: Path, valkey: Server, tmp_path: Path) -> None:
    find = (
        "from importlib.metadata import entry_points as found\n"
        "print(*found(group='console_scripts', name='redbeat-singleton'))"
    )
    assert "redbeat.singleton:main" in run(python, "-c", find, cwd=tmp_path)
    singleton = [python, "-m", "redbeat.singleton", "--url", valkey.url(), "--lock", "nightly"]
    assert run(*singleton, "--", "echo", "at work", cwd=tmp_path) == "at work\n"
