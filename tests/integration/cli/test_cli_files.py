"""`celery redbeat plan, apply, export` and `import`, on a real server."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis
from celery import Celery
from click.testing import CliRunner, Result

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.cli import confirmation, files, redbeat
from tests.conftest import MakeApp
from tests.support.apps import write_app
from tests.support.command_line import Terminal, call, celery_arguments, installed
from tests.support.schedule import SCHEDULE
from tests.support.servers import Server
from tests.unit.manifest.test_files import TABLES

FILE = """\
owner: billing
entries:
  one: {task: echo, schedule: {every: 1h}}
  two: {task: echo, schedule: {cron: "0 9 * * *"}, args: [1]}
"""

Ask = Callable[..., Result]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "billing.yaml"
    path.write_text(FILE)
    return path


@pytest.fixture
def ask(app: Celery) -> Ask:
    return lambda *arguments: call(app, *map(str, arguments))


def test_plan_shows_what_apply_then_does(ask: Ask, app: Celery, file: Path, client: redis.Redis) -> None:
    shown = ask("plan", file)
    assert shown.exit_code == 2
    assert '+ one\n    task: echo\n    schedule: {"every": "1h"}\n' in shown.output
    assert "2 to add, 0 to change, 0 to remove, 0 the same." in shown.output
    assert client.keys() == []
    done = ask("apply", file, "--yes")
    assert (done.exit_code, done.output.splitlines()[-1]) == (0, "Done.")
    again = ask("plan", file)
    assert (again.exit_code, again.output) == (0, "0 to add, 0 to change, 0 to remove, 2 the same.\n")
    assert ask("apply", file).exit_code == 0  # nothing to be asked about
    file.write_text(FILE.replace("every: 1h", "every: 10m").replace("two", "three"))
    shown = ask("plan", file, "--prune")
    assert '~ one\n    schedule: {"every": "1h"} -> {"every": "10m"}\n' in shown.output
    assert "- two\n" in shown.output
    assert "Not in the file any more, and stays without --prune: two." in ask("plan", file).output
    assert ask("apply", file, "--prune", "--yes").exit_code == 0
    assert sorted(client.zrange(SCHEDULE, 0, -1)) == ["redbeat:one", "redbeat:three"]


def test_a_dry_run_changes_nothing(ask: Ask, file: Path, client: redis.Redis) -> None:
    shown = ask("apply", file, "--dry-run")
    assert (shown.exit_code, "2 to add" in shown.output) == (0, True)
    assert ask("import", file, "--dry-run").exit_code == 0
    assert client.keys() == []


def test_json_is_one_object(ask: Ask, file: Path) -> None:
    shown = json.loads(ask("plan", file, "--json").stdout)
    assert shown["added"]["two"]["args"] == [1]
    applied = json.loads(ask("apply", file, "--json", "--yes").stdout)
    assert (applied["is_applied"], sorted(applied["added"])) == (True, ["one", "two"])
    assert json.loads(ask("apply", file, "--json", "--yes").stdout)["is_applied"] is False


def test_the_owner_of_the_command_line_wins(ask: Ask, file: Path, client: redis.Redis) -> None:
    assert ask("apply", file, "--owner", "shop", "--yes").exit_code == 0
    assert client.hget("redbeat:one", "owner") == "shop"
    refused = ask("apply", file, "--yes")
    assert refused.exit_code == 64
    assert f"{file}, line 3: one: belongs to shop, and 1 more is others', too" in refused.output
    assert ask("apply", file, "--take-over", "--yes").exit_code == 0
    assert client.hget("redbeat:one", "owner") == "billing"


def test_a_file_may_come_from_stdin(app: Celery, client: redis.Redis) -> None:
    context = SimpleNamespace(app=app, no_color=True)
    done = CliRunner().invoke(redbeat, ["apply", "-", "--yes"], obj=context, input=FILE)
    assert (done.exit_code, client.zcard(SCHEDULE)) == (0, 2)
    wrong = CliRunner().invoke(redbeat, ["apply", "-", "--yes"], obj=context, input="entries: [")
    assert (wrong.exit_code, "stdin" in wrong.output) == (64, True)


def test_an_export_is_imported_again(ask: Ask, app: Celery, file: Path, client: redis.Redis) -> None:
    ask("apply", file, "--yes")
    scores = client.zrange(SCHEDULE, 0, -1, withscores=True)
    for backup in (file.with_name("backup.yaml"), file.with_name("backup.json")):
        done = ask("export", backup)
        assert (done.exit_code, done.stdout) == (0, "")
        assert "2 entries." in done.stderr
        assert (backup.read_text()[0] == "{") is (backup.suffix == ".json")
        refused = ask("import", backup)
        assert refused.exit_code == 64
        assert (
            "one: is stored already, and so is 1 more; --replace writes over what there is." in refused.output
        )
        Entry.clear(app)
        done = ask("import", backup)
        assert (done.exit_code, done.output) == (0, "Stored 2 entries.\n")
        assert client.zrange(SCHEDULE, 0, -1, withscores=True) == scores
    unasked = ask("import", backup, "--replace")
    assert (unasked.exit_code, "no terminal to ask you on: give --yes" in unasked.stderr) == (64, True)
    done = ask("import", backup, "--replace", "--yes")
    assert "Stored 2 entries, 2 of them in place of others." in done.output
    assert not list(file.parent.glob(".backup*"))


def test_who_imports_over_entries_is_asked_and_may_say_no(
    ask: Ask, file: Path, app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask("apply", file, "--yes")
    backup = file.with_name("backup.yaml")
    ask("export", backup)
    stored = [entry.to_dict() for entry in Entry.list(app)]
    asked: list[str] = []
    monkeypatch.setattr(confirmation, "is_somebody_there", lambda: True)
    monkeypatch.setattr(confirmation.click, "confirm", lambda question, **_: asked.append(question))
    done = ask("import", backup, "--replace")
    assert (done.exit_code, "Nothing was done." in done.stderr) == (1, True)
    [question] = asked
    assert question.startswith("Write over 2 entries")
    assert question.endswith(("(one, two)?", "(two, one)?"))
    assert [entry.to_dict() for entry in Entry.list(app)] == stored


def test_an_export_to_stdout_is_a_file(ask: Ask, file: Path, client: redis.Redis) -> None:
    ask("apply", file, "--yes")
    shown = ask("export", "--match", "o*", "--owner", "billing")
    assert shown.stdout.startswith(
        "owner: billing\nentries:\n  one:\n    task: echo\n    schedule: {every: 1h}\n"
    )
    file.write_text(shown.stdout)
    assert ask("plan", file).exit_code == 0
    assert json.loads(ask("export", "--json").stdout)["entries"]["two"]["owner"] == "billing"


def test_beat_schedule_is_imported(make_app: MakeApp, client: redis.Redis) -> None:
    app = make_app(beat_schedule={"hourly": {"task": "echo", "schedule": 3600}})
    done = call(app, "import", "--from-beat-schedule")
    assert (done.exit_code, "Take them out of beat_schedule" in done.output) == (0, True)
    assert client.hget("redbeat:hourly", "owner") == "imported"


def test_django_celery_beat_is_imported(ask: Ask, app: Celery, tmp_path: Path) -> None:
    path = tmp_path / "db.sqlite3"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(TABLES)
        connection.execute(
            "INSERT INTO django_celery_beat_periodictask (name, task, crontab_id, total_run_count) "
            "VALUES ('report', 'echo', 1, 5)"
        )
        connection.commit()
    done = ask("import", "--from-django-celery-beat", f"sqlite:///{path}")
    assert (done.exit_code, done.output) == (0, "Stored 1 entry.\n")
    entry = Entry.get("report", app)
    assert (entry.timezone, entry.total_run_count) == ("Europe/Berlin", 5)


WRONG: list[tuple[list[str], int, str]] = [
    (["plan"], 64, "Missing argument"),
    (["plan", ""], 64, "it is empty"),
    (["plan", "/nowhere"], 66, "/nowhere: can't be read: No such file or directory."),
    (["plan", "."], 66, "can't be read: Is a directory."),
    (["plan", "FILE", "--owner", ""], 64, "must be a name without control characters"),
    (["apply", "NO-OWNER"], 64, "the entries have no owner: give --owner"),
    (["apply", "LATIN", "--yes"], 64, "line 2: is no UTF-8."),
    (["apply", "FILE"], 64, "give --yes"),
    (["export", "/nowhere/file.yaml"], 73, "can't be written: No such file or directory."),
    (["import"], 64, "Give one of FILE"),
    (["import", "FILE", "--from-beat-schedule"], 64, "Give one of FILE"),
    (["import", "--from-django-celery-beat", "db.sqlite3"], 78, "is no database URL"),
    (["import", "--from-django-celery-beat", "mysql://me:secret@db/app"], 78, "mysql://me:**@db/app"),
    (["import", "--from-django-celery-beat", "sqlite:////nowhere"], 64, "there is no such file"),
    (["--url", "redis://127.0.0.1:1", "import", "--from-beat-schedule"], 64, "needs celery -A APP"),
    (["--url", "redis://127.0.0.1:1", "plan", "FILE"], 69, "127.0.0.1:1"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_input_ends_in_one_sentence(
    ask: Ask, file: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, words: str
) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    (file.parent / "no-owner.yaml").write_text("entries: {}")
    (file.parent / "latin.yaml").write_bytes("# ok\n# für\n".encode("latin-1"))
    names = {"FILE": file, "NO-OWNER": file.parent / "no-owner.yaml", "LATIN": file.parent / "latin.yaml"}
    done = ask(*(names.get(argument, argument) for argument in arguments))
    assert (done.exit_code, words in done.output) == (code, True), done.output
    assert done.output.strip().splitlines()[-1].startswith(("Error: ", "Usage: "))
    assert "secret" not in done.output


def test_what_changes_while_it_is_asked_about_is_shown_again(
    ask: Ask, app: Celery, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask("apply", file, "--yes")
    file.write_text(FILE.replace("every: 1h", "every: 2h"))
    asked: list[str] = []

    def meddle(question: str, *, is_yes: bool) -> None:
        asked.append(question)
        if len(asked) == 1:
            Entry.get("two", app).update(task="meddled")

    monkeypatch.setattr(files, "ask", meddle)
    done = ask("apply", file)
    assert (done.exit_code, len(asked)) == (0, 2)
    assert "two has changed meanwhile; nothing was written. The plan is made again." in done.output
    assert "~ two\n    task: meddled -> echo\n" in done.output
    assert Entry.get("two", app).task == "echo"


def test_on_a_terminal_it_asks_in_colour(
    server: Server, file: Path, tmp_path: Path, client: redis.Redis
) -> None:
    write_app(tmp_path, "proj", server.url(0), redbeat_redis_url=server.url(1))
    command = celery_arguments("proj", "apply", str(file))
    for answer, count in (("n", 0), ("y", 2)):
        with Terminal(command, tmp_path, installed(tmp_path)) as terminal:
            terminal.wait_for("[y/N]")
            assert "\x1b[1;32m+ one" in terminal.shown
            terminal.type(f"{answer}\n")
            assert terminal.wait() == (1 if answer == "n" else 0)
        assert client.zcard(SCHEDULE) == count
