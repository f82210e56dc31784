"""What `redbeat-singleton` says to wrong input: one line, no password, a code of sysexits.h."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from redbeat.singleton.command import main
from redbeat.singleton.runner import Times

URL = "redis://:secret@127.0.0.1:1/0"


def run(*arguments: str, **variables: str) -> Result:
    return CliRunner().invoke(main, list(arguments), env={"REDBEAT_REDIS_URL": None, **variables})


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--", "true"], os.EX_USAGE, "No Redis server: give --url, or set REDBEAT_REDIS_URL."),
        (["--url", URL], os.EX_USAGE, "No command: give it after the options, as -- COMMAND ARG..."),
        (["--url", URL, "--timeout", "soon", "true"], os.EX_USAGE, "soon is no number of seconds"),
        (["--url", URL, "--timeout", "0.5", "true"], os.EX_USAGE, "0.5 is not in the range"),
        (["--url", URL, "--timeout", "nan", "true"], os.EX_USAGE, "nan"),
        (["--url", URL, "--lock", "", "true"], os.EX_USAGE, "'--lock': it is empty"),
        (["--url", "", "true"], os.EX_USAGE, "'--url': it is empty"),
        (["--url", URL, "--timeout", "1e300", "true"], os.EX_USAGE, "1e300 is no number of seconds"),
        (["--url", URL, "--timeout", "inf", "true"], os.EX_USAGE, "inf is no number of seconds"),
        (["--url", URL, "--grace", "-1", "true"], os.EX_USAGE, "-1.0 is not in the range"),
        (["--url", URL, "--grace", "8", "true"], os.EX_USAGE, "Use --timeout 13 or more."),
        (["--url", URL, "--nonsense", "true"], os.EX_USAGE, "No such option"),
        (["--url", URL, "--lock-lost", "cry", "true"], os.EX_USAGE, "'cry' is not one of"),
        (["--url", URL, "--redis-options", "{]", "true"], os.EX_USAGE, "line 1 column 2"),
        (["--url", URL, "--redis-options", "[1]", "true"], os.EX_USAGE, "no JSON object"),
        (["--url", URL, "--redis-options", '{"retry_period": "x"}', "true"], os.EX_CONFIG, "retry_period"),
        (["--url", "http://:secret@h", "true"], os.EX_CONFIG, "http://:**@h"),
        (["--url", URL, "no-such-program-here"], os.EX_UNAVAILABLE, "there is no such program"),
        (["--config", "no-such-file", "true"], os.EX_NOINPUT, "no-such-file can't be read"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_input_is_told_in_one_line_with_its_code(arguments: list[str], code: int, words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert words in result.output
    assert "secret" not in result.output
    assert len(result.output.splitlines()) == 1


def test_a_bad_config_file_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "beatcop.ini").write_text("[redis]\nhost = h\nport = x\npassword = secret\n")
    result = run("--config", str(tmp_path / "beatcop.ini"))
    assert result.exit_code == os.EX_CONFIG
    assert "[redis] port: 'x' is no whole number." in result.output
    assert "secret" not in result.output


def test_the_help_names_every_exit_code() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for code in ("64", "66", "69", "75", "77", "78", "128"):
        assert code in result.output


@pytest.mark.parametrize("grace", [0, 0.5, 1, 2.4, 2.5, 2.6, 3, 5, 5.5, 5.6, 8, 60])
def test_the_smallest_timeout_lets_one_renewal_fail_and_leaves_the_grace(grace: float) -> None:
    smallest = Times(1, grace).smallest_timeout()
    times = Times(smallest, grace)
    assert times.timeout >= times.margin + times.grace + 2 * times.renewal - 1e-9
    shorter = Times(smallest * 0.99, grace)
    assert shorter.timeout <= shorter.margin + shorter.grace + 2 * shorter.renewal


@pytest.mark.parametrize("timeout", [1, 2, 4.9, 5, 7, 9.9, 10, 60, 1500])
def test_the_default_grace_suits_every_timeout(timeout: float) -> None:
    assert Times(timeout, min(5, timeout / 2)).is_sound
