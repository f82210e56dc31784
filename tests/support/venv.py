"""Virtual environments besides that of the tests, built from the package index when missing.

Invariant: the stamp is written last, so an environment that has it is complete; a lock keeps two runs from
building at the same time.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

# kombu's Redis transport imports packaging without declaring it; ephem is for solar schedules.
_REQUIREMENTS = ["celery-redbeat==2.4.2", "packaging", "ephem"]
_CACHE = Path(__file__).parents[2] / ".cache"


def redbeat2_python() -> Path:
    """The Python that imports celery-redbeat 2.4.2."""
    return environment("redbeat-2.4.2", _REQUIREMENTS)


def environment(name: str, requirements: list[str]) -> Path:
    """The Python of an environment with these packages; the first call ever takes as long as pip does.

    Raises RuntimeError with pip's own words when the packages cannot be had.
    """
    _CACHE.mkdir(exist_ok=True)
    (_CACHE / ".gitignore").write_text("*\n")
    directory = _CACHE / f"venv-{name}-{sys.version_info.major}.{sys.version_info.minor}"
    python = directory / "bin" / "python"
    stamp = directory / "complete"
    wanted = "\n".join([sys.version, sys.base_prefix, *requirements])
    with Path(f"{directory}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (stamp.exists() and stamp.read_text() == wanted):
            _run(sys.executable, "-m", "venv", "--clear", str(directory))
            install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            _run(*install, *requirements)
            stamp.write_text(wanted)
    return python


def _run(*command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}")
