"""BeatCop's file means what it means there."""

from __future__ import annotations

from pathlib import Path

import pytest

from redbeat.errors import ConfigurationError
from redbeat.singleton.beatcop import BeatCopSettings, read_beatcop


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


def test_what_is_missing_is_what_beatcop_takes(tmp_path: Path) -> None:
    settings = read(tmp_path, "[redis]\nhost = ::1\n[beatcop]\ncommand = ping  localhost\n")
    url, lock, command = "redis://[::1]:6379/0", "beatcop:ping  localhost", ["ping", "localhost"]
    assert settings == BeatCopSettings(url=url, lock=lock, timeout_seconds=1, command=command)


def test_a_shell_gets_the_command_as_it_stands(tmp_path: Path) -> None:
    settings = read(tmp_path, "[redis]\nhost = h\n[beatcop]\ncommand = a 'b c' | d\nshell = yes\n")
    assert settings.command == ["/bin/sh", "-c", "a 'b c' | d"]


def test_the_nodes_of_a_cluster(tmp_path: Path) -> None:
    settings = read(tmp_path, "[redis]\nstartup_nodes = one:7000\n  two:7001\npassword = secret\n")
    assert settings.url == "redis-cluster://one:7000"
    assert settings.redis_options == {
        "startup_nodes": [{"host": "one", "port": 7000}, {"host": "two", "port": 7001}],
        "password": "secret",
    }


def test_a_percent_sign_is_written_twice(tmp_path: Path) -> None:
    settings = read(tmp_path, "[redis]\nhost = h\n[beatcop]\ncommand = date +%%s\n")
    assert settings.command == ["date", "+%s"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "[redis] host: give either host or startup_nodes"),
        ("[redis]\nhost=h\nstartup_nodes=h:1", "not both"),
        ("[redis]\nstartup_nodes=h", "'h' isn't host:port"),
        ("[redis]\nhost=h\nport=many", "[redis] port: 'many' is no whole number"),
        ("[redis]\nhost=h\n[beatcop]\ntimeout=1.5", "[beatcop] timeout: '1.5' is no whole number"),
        ("[redis]\nhost=h\n[beatcop]\ncommand=a\nshell=perhaps", "[beatcop] shell: 'perhaps' is neither"),
        ("[redis]\nhost=h\n[beatcop]\ncommand=a 'b", "[beatcop] command: No closing quotation"),
        ("[redis]\nhost=h\n[beatcop]\ntimeout=0", "[beatcop] timeout: must be 1 millisecond or more"),
        ("[redis]\nhost=h\n[beatcop]\nlokname=a", "lokname: there is no such option; did you mean lock"),
        ("host = h", "is no beatcop.ini: line 1 can't be understood"),
        ("[redis]\nhost=h\nhost=i", "is no beatcop.ini: line 3 can't be understood"),
        ("[redis]\nhost=h\nnonsense", "is no beatcop.ini: line 3 can't be understood"),
        ("[redis]\nhost=h\n[beatcop]\ncommand=date +%s", "[beatcop] command: a % is written %% there."),
    ],
)
def test_a_fault_names_the_file_and_the_option(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, text)
    assert words in str(caught.value)
    assert "beatcop.ini" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("line", ["password=%secret", "password secret", "password=x\npassword=secret"])
def test_no_password_is_told(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, f"[redis]\nhost=h\n{line}\n")
    assert "secret" not in str(caught.value)


def test_bytes_that_are_no_text_are_a_fault_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "beatcop.ini").write_bytes(b"[redis]\nhost=\xff\n")
    with pytest.raises(ConfigurationError, match="it isn't UTF-8"):
        read_beatcop(str(tmp_path / "beatcop.ini"))
