"""A real Prometheus, and promtool beside it: Debian's package `prometheus` has both."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from .daemons import Daemon
from .deadlines import patience
from .machine import require_program
from .processes import Process


def promtool(arguments: Sequence[str | Path], given: bytes = b"") -> str:
    """What `promtool` says; AssertionError with that when it finds something wrong."""
    command = [require_program("promtool"), *map(str, arguments)]
    done = subprocess.run(command, input=given, capture_output=True, check=False)
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


class Prometheus(Daemon):
    """It scrapes what `configuration` says each second, and evaluates `rules`, the text of a file."""

    _name = "prometheus"
    _port_taken = re.compile(r"address already in use")

    def __init__(self, configuration: Mapping[str, Any], rules: str) -> None:
        self._program = require_program("prometheus")
        self._given, self._rules = configuration, rules
        super().__init__()

    def ask(self, expr: str, **parameters: str) -> list[dict[str, Any]]:
        """The series that an expression returns now; with `start`, `end` and `step`: those of a range."""
        kind = "query_range" if "start" in parameters else "query"
        result: list[dict[str, Any]] = self._get(kind, query=expr, **parameters)["result"]
        return result

    def value(self, expr: str) -> float | None:
        """The one value that an expression returns now; None: it returns none."""
        found = self.ask(expr)
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else None

    def firing(self) -> dict[str, dict[str, str]]:
        """The alerts that fire now, by their names, with their labels and annotations."""
        alerts = self._get("alerts")["alerts"]
        return {
            one["labels"]["alertname"]: {**one["labels"], **one["annotations"]}
            for one in alerts
            if one["state"] == "firing"
        }

    def _get(self, path: str, **parameters: str) -> Any:
        data = urllib.parse.urlencode(parameters).encode() or None
        url = f"http://{self.host}:{self.port}/api/v1/{path}"
        try:
            with urllib.request.urlopen(url, data, timeout=patience()) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as exc:
            raise AssertionError(f"{parameters}: {exc.read().decode()}") from exc

    def _configure(self) -> None:
        (self.directory / "redbeat.yml").write_text(self._rules, "utf-8")
        every_second = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        configuration = {"global": every_second, "rule_files": ["redbeat.yml"], **self._given}
        (self.directory / "prometheus.yml").write_text(yaml.safe_dump(configuration), "utf-8")

    def _launch(self) -> Process:
        command = [
            self._program,
            f"--config.file={self.directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.directory / 'data'}",
            f"--web.listen-address={self.host}:{self.port}",
        ]
        process = Process(command, cwd=self.directory)
        try:
            process.wait_for("Server is ready to receive web requests")
        except BaseException:
            process.kill()
            raise
        return process
