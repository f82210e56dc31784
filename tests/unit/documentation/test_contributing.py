"""What contributors read, and what checks their work: all that is named there exists."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
CONTRIBUTING = (ROOT / "CONTRIBUTING.rst").read_text("utf-8")
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
RUN = ROOT / ".ci" / "run"
WORKFLOW = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))

#: a literal that is a file or a folder of the tree
PATH = re.compile(r"\.?[\w./-]*/[\w./-]*|[\w.-]+\.(?:rst|toml|yaml)")
#: one that is a name in Python
NAME = re.compile(r"[A-Z]\w+")


def steps() -> list[str]:
    """The steps of all four kinds of change."""
    return re.findall(r"^#\. ((?:.+\n(?:   .+\n)*))", CONTRIBUTING.partition("Step by step")[2], re.MULTILINE)


def literals_of(text: str) -> list[str]:
    return [" ".join(found.split()) for found in re.findall(r"``(.+?)``", text, re.DOTALL)]


def test_four_kinds_of_change_have_steps() -> None:
    titles = re.findall(r"^(.+)\n~~~+$", CONTRIBUTING, re.MULTILINE)
    subjects = ("check of the doctor", "field of the policy", "script", "command of the command line")
    assert titles == [f"A {subject}" for subject in subjects]
    assert len(steps()) >= 4 * len(titles)


@pytest.mark.parametrize("document", ["CONTRIBUTING.rst", "SECURITY.rst"])
def test_each_path_exists(document: str) -> None:
    paths = [one for one in literals_of((ROOT / document).read_text("utf-8")) if PATH.fullmatch(one)]
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_a_name_is_in_a_file_that_its_step_names() -> None:
    for step in steps():
        literals = literals_of(step)
        files = [ROOT / one for one in literals if PATH.fullmatch(one) and (ROOT / one).is_file()]
        texts = "\n".join(path.read_text("utf-8") for path in files)
        for name in filter(NAME.fullmatch, literals):
            assert re.search(rf"^(?:class |def )?{name}\b", texts, re.MULTILINE), f"{name} in {step}"


def test_each_command_of_make_exists() -> None:
    named = re.findall(r"(?:``|^    )make ([a-z-]+)", CONTRIBUTING, re.MULTILINE)
    assert {"check", "test", "demo"} <= set(named) <= TARGETS


def test_the_hooks_are_the_commands_of_make_check() -> None:
    recipe = re.search(r"^check:.*\n((?:\t.+\n)+)", MAKEFILE, re.MULTILINE)
    assert recipe
    commands = [line.strip().lstrip("@").replace("$(BIN)", ".venv/bin") for line in recipe[1].splitlines()]
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"][0]["hooks"]
    assert [hook["entry"] for hook in hooks] == commands
    for hook in hooks:
        assert (hook["language"], hook["pass_filenames"], hook["always_run"]) == ("system", False, True)


def test_ci_tests_each_version_that_the_package_is_said_to_support() -> None:
    [job] = yaml.safe_load(WORKFLOW)["jobs"].values()
    rows = job["strategy"]["matrix"]["include"]
    classifiers = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text("utf-8"))
    required = {row["python"] for row in rows if not row.get("may_fail") and row["versions"] == "newest"}
    assert required == set(classifiers)
    assert {row["versions"] for row in rows} == {"newest", "oldest"}
    servers = {(row["server"].split("/")[1], row["branch"].split(".")[0]) for row in rows if "server" in row}
    assert servers >= {("redis", "6"), ("redis", "7"), ("redis", "8"), ("valkey", "8")}


def test_ci_calls_the_front_door_with_settings_that_it_has() -> None:
    [job] = yaml.safe_load(WORKFLOW)["jobs"].values()
    last = job["steps"][-1]
    assert last["run"] == ".ci/run"
    assert os.access(ROOT / last["run"], os.X_OK)
    script = RUN.read_text("utf-8")
    described = set(re.findall(r"^# ([A-Z_]+) +\w", script, re.MULTILINE))
    given = {*last["env"], *re.findall(r'echo "([A-Z_]+)=', WORKFLOW)}
    assert given == described == {"PYTHON", "VERSIONS", "REDIS_BIN"}


def run_ci(tmp_path: Path, **settings: str) -> tuple[int, list[str], str]:
    """Call .ci/run where all programs do nothing; return its code, calls of make, and errors."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("redis-server", "rabbitmq-server", "node", "npm", "cc", "prometheus", "chromium"):
        (programs / name).write_text("#!/bin/sh\n")
    make = 'echo "make $* $PYTHON $(command -v redis-server)"\ntest "$1" != check\n'
    (programs / "make").write_text(f"#!/bin/sh\n{make}")
    for program in programs.iterdir():
        program.chmod(0o755)
    environment = {"PATH": f"{programs}:/usr/bin:/bin", **settings}
    done = subprocess.run([RUN], env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines(), done.stderr


def test_ci_checks_and_tests_by_default_and_goes_on_after_a_failure(tmp_path: Path) -> None:
    server = tmp_path / "programs" / "redis-server"
    assert run_ci(tmp_path) == (1, [f"make check  {server}", f"make test  {server}"], "")


def test_ci_tests_the_oldest_versions_with_the_python_that_is_named(tmp_path: Path) -> None:
    code, calls, _ = run_ci(tmp_path, VERSIONS="oldest", PYTHON="python3.10")
    assert code == 0
    assert calls == [f"make test-oldest python3.10 {tmp_path / 'programs' / 'redis-server'}"]
    assert "test-oldest" in TARGETS


def test_ci_takes_the_server_of_the_folder_that_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    (folder / "redis-server").symlink_to("/bin/true")
    _, calls, _ = run_ci(tmp_path, REDIS_BIN=str(folder))
    assert calls == [f"make {target}  {folder / 'redis-server'}" for target in ("check", "test")]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"VERSIONS": "olden"}, "ci: VERSIONS is newest or oldest, not olden"),
        ({"REDIS_BIN": "/nowhere"}, "ci: REDIS_BIN: there is no program redis-server in /nowhere"),
    ],
)
def test_ci_refuses_a_setting_it_doesn_t_know(tmp_path: Path, settings: dict[str, str], words: str) -> None:
    assert run_ci(tmp_path, **settings) == (64, [], f"{words}\n")


def test_what_contributors_need_is_linked_from_where_people_look() -> None:
    readme, index = ((ROOT / name).read_text("utf-8") for name in ("README.rst", "docs/index.rst"))
    assert all(f"<{name}>`_" in readme for name in ("CONTRIBUTING.rst", "SECURITY.rst"))
    assert all(f"\n   {page}\n" in index for page in ("contributing", "security"))
    assert {".pre-commit-config.yaml", ".github/workflows/ci.yml"} <= set(literals_of(CONTRIBUTING))


def test_the_picture_of_the_rooms_has_each_room_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    import layout

    named = re.findall(r'class="rooms-name"[^>]*>(\w+)<', layout.picture())
    rooms = {path.parent.name for path in (ROOT / "redbeat").glob("*/__init__.py")}
    modules = {path.stem for path in (ROOT / "redbeat").glob("*.py")} - {"__init__"}
    assert sorted(named) == sorted(rooms | modules)
    assert ".. rooms-picture::" in (ROOT / "docs" / "index.rst").read_text("utf-8")
