"""The wheel and the source distribution: both are whole, and run where nothing else is installed."""

from __future__ import annotations

import email.message
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from html import unescape
from pathlib import Path

import httpx
import pytest
import redis

from redbeat.process import exit_codes
from tests.support import venv
from tests.support.apps import celery_beat, celery_command, celery_worker, runs, write_app
from tests.support.deadlines import patience
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.servers import Server

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

SCHEMAS = Path("docs", "schema")  # redbeat/schema, once it is built
SOURCES = ("redbeat", str(SCHEMAS), "pyproject.toml", "setup.py", "README.rst", "LICENSE")


def run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel and the source distribution, built of a copy: building leaves its traces in the directory."""
    directory = tmp_path_factory.mktemp("packages")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, directory)
    (directory / "tests").mkdir()
    (directory / "tests" / "__init__.py").touch()
    build = [sys.executable, "-m", "build", "--wheel", "--sdist", "--no-isolation"]
    run(*build, "--outdir", "dist", cwd=directory)
    (wheel,), (sdist,) = (directory / "dist").glob("*.whl"), (directory / "dist").glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


@pytest.fixture(scope="module")
def metadata(packages: dict[str, Path]) -> email.message.Message:
    with zipfile.ZipFile(packages["wheel"]) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def required(metadata: email.message.Message, extra: str = "") -> list[str]:
    """What is installed with RedBeat without its extras, or what an extra adds."""
    lines: list[str] = metadata.get_all("Requires-Dist", [])
    of_extra = re.compile(rf"""extra == ["']{extra}["']""" if extra else r"^(?!.*extra ==)")
    return [line.partition(";")[0].strip() if extra else line for line in lines if of_extra.search(line)]


@pytest.fixture(scope="module")
def python(
    packages: dict[str, Path], metadata: email.message.Message, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The Python of a new environment with the wheel, and nothing besides but what it says it needs."""
    directory = tmp_path_factory.mktemp("installed")
    python = venv.make(directory)
    site_packages = venv.site_packages_of(python)
    install(packages["wheel"], site_packages)
    venv.lend(site_packages, required(metadata))
    return python


def install(package: Path, site_packages: Path) -> None:
    """Install it alone, as pip does, of what is here."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-cache-dir", "install"]
    alone = ["--no-index", "--no-deps", "--no-build-isolation", "--no-compile"]
    run(*pip, *alone, "--target", site_packages, package, cwd=package.parent)


def files_in(folder: str | Path) -> set[str]:
    return {
        str(path.relative_to(ROOT))
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_wheel_and_source_distribution_install_the_package_its_scripts_types_and_schemas_only(
    packages: dict[str, Path], tmp_path: Path
) -> None:
    for kind, package in packages.items():
        install(package, tmp_path / kind)
    installed = {kind: contents_of(tmp_path / kind) for kind in packages}
    assert installed["sdist"] == installed["wheel"]
    names = {name for name in installed["wheel"] if ".dist-info/" not in name} - {"bin/redbeat-singleton"}
    schemas = {f"redbeat/schema/{Path(name).name}" for name in files_in(SCHEMAS)}
    assert len(schemas) > 5
    assert names == files_in("redbeat") | schemas


def contents_of(site_packages: Path) -> dict[str, bytes]:
    """Its files, but those in which pip says what it did."""
    return {
        str(path.relative_to(site_packages)): path.read_bytes()
        for path in site_packages.rglob("*")
        if path.is_file() and path.name not in ("RECORD", "direct_url.json")
    }


def test_beat_a_worker_and_the_command_line_run_once_it_is_installed(
    python: Path, valkey: Server, tmp_path: Path
) -> None:
    often = {"often": {"task": "echo", "schedule": 0.2}}
    write_app(tmp_path, "shop", valkey.url(0), redbeat_redis_url=valkey.url(1), beat_schedule=often)
    with redis.Redis.from_url(valkey.url(0)) as broker:
        with (
            celery_worker(tmp_path, "shop", python=python) as worker,
            celery_beat(tmp_path, "shop", python=python, scheduler="redbeat") as beat,
        ):
            eventually(lambda: len(runs(broker)) >= 3 or not (beat.is_running and worker.is_running))
            assert beat.is_running, beat.output()
            assert worker.is_running, worker.output()
        assert {run.headers["redbeat_entry"] for run in runs(broker)} == {"often"}
    assert beat.returncode == 0, beat.output()
    listed = run(python, "-m", "celery", "-A", "shop", "redbeat", "list", "--json", cwd=tmp_path)
    assert json.loads(listed)["name"] == "often"
    with celery_command(tmp_path, "shop", "redbeat", "status", python=python) as status:
        assert status.wait(60) == 1, status.output()
        assert "No beat holds the lock" in status.output()


def test_installed_package_is_imported_and_runs_a_singleton(
    python: Path, valkey: Server, tmp_path: Path
) -> None:
    script = (
        "import redbeat.schedulers, celery; from importlib.metadata import entry_points as found;"
        " print(redbeat.__file__, celery.__file__, *found(group='console_scripts', name='redbeat-singleton'))"
    )
    path, celery_path, *command = run(python, "-c", script, cwd=tmp_path).split()
    assert Path(path).is_relative_to(python.parents[1])
    assert not Path(celery_path).is_relative_to(sys.prefix)
    assert "redbeat.singleton:main" in " ".join(command)
    singleton = [python, "-m", "redbeat.singleton", "--url", valkey.url(), "--lock", "nightly"]
    assert run(*singleton, "--", "echo", "at work", cwd=tmp_path) == "at work\n"


def test_the_dashboard_needs_its_extra_and_runs_with_it(
    python: Path, metadata: email.message.Message, valkey: Server, tmp_path: Path
) -> None:
    write_app(tmp_path, "shop", valkey.url(0), redbeat_redis_url=valkey.url(1))
    with celery_command(tmp_path, "shop", "redbeat", "web", "--port=0", python=python) as refused:
        assert refused.wait(60) == exit_codes.UNAVAILABLE, refused.output()
        assert "pip install 'celery-redbeat[web]'" in refused.output()
        assert not has_traceback(refused.output())
    (tmp_path / "extra").mkdir()
    venv.lend(tmp_path / "extra", required(metadata, "web"))
    path = {"PYTHONPATH": str(tmp_path / "extra")}
    with celery_command(tmp_path, "shop", "redbeat", "web", "--port=0", python=python, env=path) as web:
        link = web.wait_for(re.compile(r"(http://127\.0\.0\.1:\d+)/login\?token=[\w-]+"))
        with httpx.Client(timeout=patience(), follow_redirects=True) as browser:
            assert "<h1>Overview</h1>" in browser.get(link[0]).text
            assert browser.get(f"{link[1]}/static/vendor/htmx.min.js").status_code == 200
            [token] = re.findall(
                r'"X-CSRF-Token": "([\w-]{43})"', unescape(browser.get(f"{link[1]}/files").text)
            )
            upload = {"csrf_token": (None, token), "file": ("a.yaml", b"owner: nobody")}
            assert "<h1>Log in</h1>" in browser.post(f"{link[1]}/logout", files=upload).text
