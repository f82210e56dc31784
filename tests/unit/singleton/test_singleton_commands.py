"""What `redbeat-singleton` says to wrong input: one line, no password, a code of sysexits.h."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from redbeat.errors import ConfigurationError
from redbeat.singleton.beatcop import BeatCopSettings, read_beatcop
from redbeat.singleton.command import main
from redbeat.singleton.runner import Times

URL = "redis://:secret@127.0.0.1:1/0"


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["--", "true"], os.EX_USAGE, "--url"),
        (["--url", URL], os.EX_USAGE, "COMMAND"),
        (["--url", URL, "--timeout", "soon", "true"], os.EX_USAGE, "soon"),
        (["--url", URL, "--timeout", "nan", "true"], os.EX_USAGE, "nan"),
        (["--url", URL, "--lock", "", "true"], os.EX_USAGE, "--lock"),
        (["--url", URL, "--grace", "8", "true"], os.EX_USAGE, "--timeout 13"),
        (["--url", URL, "--redis-options", "[1]", "true"], os.EX_USAGE, "--redis-options"),
        (["--url", URL, "--redis-options", '{"retry_period": "x"}', "true"], os.EX_CONFIG, "retry_period"),
        (["--url", "http://:secret@h", "true"], os.EX_CONFIG, "http://:**@h"),
        (["--url", URL, "no-such-program-here"], os.EX_UNAVAILABLE, "no-such-program-here"),
        (["--config", "no-such-file", "true"], os.EX_NOINPUT, "no-such-file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_invalid_input_exits_with_its_code_and_one_line(arguments: list[str], code: int, named: str) -> None:
    result = CliRunner().invoke(main, arguments, env={"REDBEAT_REDIS_URL": None})
    assert result.exit_code == code, result.output
    assert named in result.output
    assert "secret" not in result.output
    assert len(result.output.splitlines()) == 1


@pytest.mark.parametrize("grace", [0, 1, 2.5, 5.5, 60])
def test_the_smallest_timeout_lets_one_renewal_fail_and_leaves_the_grace(grace: float) -> None:
    smallest = Times(1, grace).smallest_timeout()
    times = Times(smallest, grace)
    assert times.timeout >= times.margin + times.grace + 2 * times.renewal - 1e-9
    shorter = Times(smallest * 0.99, grace)
    assert shorter.timeout <= shorter.margin + shorter.grace + 2 * shorter.renewal


def read(folder: Path, text: str) -> BeatCopSettings:
    file = folder / "beatcop.ini"
    file.write_text(text)
    return read_beatcop(str(file))


def test_one_server_with_everything_given(tmp_path: Path) -> None:
    assert read(
        tmp_path,
        """
        [redis]
        host = redis.internal
        port = 6380
        database = 3
        password = p@ss:w/rd

        [beatcop]
        timeout = 2500
        lockname = nightly
        command = celery beat --app "my proj"
        shell = no
        """.replace("\n        ", "\n"),
    ) == BeatCopSettings(
        url="redis://:p%40ss%3Aw%2Frd@redis.internal:6380/3",
        lock="nightly",
        has_lock=True,
        timeout_seconds=2.5,
        command=["celery", "beat", "--app", "my proj"],
    )


def test_missing_options_have_the_defaults_of_beatcop(tmp_path: Path) -> None:
    settings = read(tmp_path, "[redis]\nhost = ::1\n[beatcop]\ncommand = ping  localhost\n")
    url, lock, command = "redis://[::1]:6379/0", "beatcop:ping  localhost", ["ping", "localhost"]
    assert settings == BeatCopSettings(url=url, lock=lock, timeout_seconds=1, command=command)
    settings = read(tmp_path, "[redis]\nhost = h\n[beatcop]\ncommand = date +%%s 'b c' | d\nshell = yes\n")
    assert settings.command == ["/bin/sh", "-c", "date +%s 'b c' | d"]


def test_the_nodes_of_a_cluster(tmp_path: Path) -> None:
    settings = read(tmp_path, "[redis]\nstartup_nodes = one:7000\n  two:7001\npassword = secret\n")
    assert settings.url == "redis-cluster://one:7000"
    assert settings.redis_options == {
        "startup_nodes": [{"host": "one", "port": 7000}, {"host": "two", "port": 7001}],
        "password": "secret",
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "[redis] host"),
        ("[redis]\nhost=h\nport=many", "[redis] port: 'many'"),
        ("[redis]\nhost=h\n[beatcop]\ntimeout=1.5", "[beatcop] timeout: '1.5'"),
        ("[redis]\nhost=h\n[beatcop]\ncommand=a 'b", "[beatcop] command"),
        ("[redis]\nhost=h\n[beatcop]\nlokname=a", "lokname"),
        ("[redis]\nhost=h\nnonsense", "line 3"),
        ("[redis]\nhost=h\n[beatcop]\ncommand=date +%s", "[beatcop] command"),
        ("[redis]\nhost=h\npassword=%secret", "password"),
        ("[redis]\nhost=h\npassword secret", "line 3"),
        ("[redis]\nhost=h\npassword=x\npassword=secret", "line 4"),
    ],
)
def test_an_error_names_the_file_and_the_option_and_no_password(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, text)
    assert words in str(caught.value)
    assert "beatcop.ini" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)
