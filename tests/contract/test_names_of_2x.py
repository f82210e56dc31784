"""What programs import from celery-redbeat 2.4.2 can be imported from this package, and called likewise."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import redis

from redbeat.checks import RedBeatKeyExpiryError, check_key_expiry
from redbeat.errors import ConfigurationError
from redbeat.legacy import LUA_EXTEND_TO_SCRIPT
from tests.contract.names import surface_of
from tests.support.servers import Server

MODULES = ["redbeat", "redbeat.schedulers", "redbeat.decoder", "redbeat.schedules"]
SCRIPT = Path(__file__).with_name("names.py")


def ask(python: Path, *words: str) -> Any:
    environment = {"PATH": "/usr/bin:/bin"}  # an inherited PYTHONPATH would lead to our own redbeat
    done = subprocess.run(
        [python, *words], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def find_parameter_problem(theirs: list[list[Any]] | None, ours: list[list[Any]] | None) -> str:
    """Return which call of theirs ours would refuse, '' for none."""
    if theirs is None or ours is None:
        return ""
    positional = [name for name, kind, _ in ours if kind == "POSITIONAL_OR_KEYWORD"]
    kinds = {kind for _, kind, _ in ours}
    takes_any, takes_any_position = "VAR_KEYWORD" in kinds, "VAR_POSITIONAL" in kinds
    for place, (name, kind, _) in enumerate(theirs):
        if kind == "VAR_KEYWORD" and not takes_any:
            return f"**{name}"
        if kind == "VAR_POSITIONAL" and not takes_any_position:
            return f"*{name}"
        if kind != "POSITIONAL_OR_KEYWORD":
            continue
        if name not in positional and not takes_any:
            return f"{name}="
        if positional[place : place + 1] != [name] and not takes_any_position:
            return f"{name} at place {place}"
    known = {name for name, _, _ in theirs}
    needed = [name for name, kind, has_default in ours if not has_default and "VAR" not in kind]
    return ", ".join(f"{name} is required" for name in needed if name not in known)


def test_import_of_redbeat_loads_the_scheduler_on_first_use() -> None:
    program = """
import sys, redbeat
print(sorted({"celery.beat", "redbeat.schedulers", "redis"} & sys.modules.keys()))
print(redbeat.schedulers.RedBeatScheduler is redbeat.RedBeatScheduler)
print(redbeat.later.install.__name__, redbeat.errors.LockLost.__name__, hasattr(redbeat, "unknown"))
"""
    printed = subprocess.check_output([sys.executable, "-c", program], text=True, timeout=300)
    assert printed.splitlines() == ["[]", "True", "install LockLost False"]


def test_every_name_of_2x_can_be_imported_and_takes_the_same_arguments(redbeat2_python: Path) -> None:
    theirs, ours = ask(redbeat2_python, str(SCRIPT), *MODULES), surface_of(MODULES)
    assert len(theirs["redbeat.schedulers"]) > 40
    problems = []
    for module, names in theirs.items():
        for name, (kind, parameters, value) in names.items():
            if name not in ours[module]:
                problems.append(f"{module}.{name} is missing")
                continue
            if not kind:
                continue
            our_kind, our_parameters, our_value = json.loads(json.dumps(ours[module][name]))
            problem = find_parameter_problem(parameters, our_parameters)
            if problem:
                problems.append(f"{module}.{name}: {problem}")
            if our_kind != kind and value is not None:
                problems.append(f"{module}.{name} is a {our_kind}, not a {kind}")
            if kind == "class" and isinstance(value, dict):
                missing = value.keys() - our_value.keys()
                problems += [f"{module}.{name}.{member} is missing" for member in missing]
                for member in value.keys() & our_value.keys():
                    problem = find_parameter_problem(value[member], our_value[member])
                    problems += [f"{module}.{name}.{member}: {problem}"] if problem else []
            elif name not in TEXTS and value != our_value and not name.startswith("redbeat"):
                problems.append(f"{module}.{name} is {our_value!r}, not {value!r}")
    assert problems == []


#: constants whose text is this package's own
TEXTS = ("LUA_EXTEND_TO_SCRIPT", "ADD_ENTRY_ERROR")


def test_old_names_warn_when_they_are_used_and_not_before() -> None:
    imports = "; ".join(f"import {module}" for module in MODULES)
    program = f"{imports}; from redbeat.schedulers import RedBeatScheduler, get_redis, logger, ensure_conf"
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    module = importlib.import_module("redbeat.schedulers")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        encoder = module.RedBeatJSONEncoder
        with pytest.raises(AttributeError, match="never_there"):
            _ = module.never_there
    assert encoder is importlib.import_module("redbeat.decoder").RedBeatJSONEncoder
    (warning,) = told
    assert warning.category is DeprecationWarning
    assert "redbeat.decoder.RedBeatJSONEncoder" in str(warning.message)
    assert warning.filename == __file__


LOCKS = {
    "held": ("mine", 5_000, ["mine", "20000"]),
    "held by another": ("theirs", 5_000, ["mine", "20000"]),
    "missing": (None, None, ["mine", "20000"]),
    "without an end": ("mine", None, ["mine", "20000"]),
    "ended by it": ("mine", 5_000, ["mine", "0"]),
}


def test_the_script_that_extends_locks_does_what_that_of_2x_does(
    redbeat2_python: Path, server: Server
) -> None:
    program = "import json; from redbeat.schedulers import LUA_EXTEND_TO_SCRIPT as s; print(json.dumps(s))"
    scripts = [LUA_EXTEND_TO_SCRIPT, ask(redbeat2_python, "-c", program)]
    with redis.Redis.from_url(server.url(), decode_responses=True) as client:
        for case, (token, lives_ms, arguments) in LOCKS.items():
            results = []
            for script in scripts:
                client.delete("lock")
                if token is not None:
                    client.set("lock", token, px=lives_ms)
                done = client.register_script(script)(keys=["lock"], args=arguments)
                left_ms = client.pttl("lock")
                results.append((done, client.get("lock"), left_ms if left_ms < 0 else left_ms // 5_100))
            assert results[0] == results[1], case


EVICTS = {"maxmemory": "100000", "maxmemory-policy": "allkeys-lru"}
KEEPS = {"maxmemory": "100000", "maxmemory-policy": "volatile-lru"}


@pytest.mark.parametrize(
    ("config", "count"),
    [
        ({b"maxmemory": b"1", b"maxmemory-policy": b"allkeys-lfu"}, 1),
        (KEEPS, 0),
        ({**EVICTS, "maxmemory": "0"}, 0),
        ({"one": EVICTS, "two": KEEPS, "three": {**EVICTS, "maxmemory-policy": "allkeys-random"}}, 2),
    ],
)
def test_key_expiry_check_reports_each_policy_that_evicts(
    config: dict[Any, Any], count: int, caplog: pytest.LogCaptureFixture
) -> None:
    client = Mock(config_get=Mock(return_value=config))
    assert check_key_expiry(client, "ignore") == []
    client.config_get.assert_not_called()
    assert len(check_key_expiry(client)) == count
    assert [record.levelname for record in caplog.records] == ["ERROR"] * count
    with pytest.raises(RedBeatKeyExpiryError) if count else nullcontext():
        check_key_expiry(client, "raise")


def test_key_expiry_check_goes_on_when_config_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    refusing = Mock(config_get=Mock(side_effect=redis.exceptions.ResponseError("unknown command")))
    assert check_key_expiry(refusing) == check_key_expiry(refusing, "raise") == []
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]
    with pytest.raises(ConfigurationError, match="mode"):
        check_key_expiry(refusing, "maybe")
