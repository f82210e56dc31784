"""Virtual environments besides that of the tests, made of what is installed there: nothing is downloaded."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path
from venv import EnvBuilder

from packaging.requirements import Requirement

from .machine import require_redbeat2

# kombu's Redis transport imports packaging without declaring it; ephem is for solar schedules.
_BESIDES_REDBEAT2 = ("packaging", "ephem")


def make_redbeat2(directory: Path) -> Path:
    """Make an environment with celery-redbeat 2.4.2, which `make` keeps apart; return its Python."""
    package = require_redbeat2()
    [redbeat2] = distributions(path=[str(package)])
    python = make(directory)
    site_packages = site_packages_of(python)
    lend(site_packages, [*(redbeat2.requires or ()), *_BESIDES_REDBEAT2])
    (site_packages / "redbeat2.pth").write_text(str(package))
    return python


def make(directory: Path) -> Path:
    """Make an environment without packages; return its Python."""
    EnvBuilder(clear=True, symlinks=True).create(directory)
    return directory / "bin" / "python"


def site_packages_of(python: Path) -> Path:
    find = "import site; print(site.getsitepackages()[0])"
    return Path(subprocess.check_output([python, "-c", find], text=True).strip())


def lend(site_packages: Path, requirements: Iterable[str]) -> None:
    """Link these packages, and all that they require, from the environment of the tests."""
    for package in _closure(requirements, {}).values():
        for path in package.files or ():
            top = path.parts[0]
            link = site_packages / top
            if top not in ("..", "__pycache__") and not link.exists():
                link.symlink_to(Path(str(package.locate_file(top))))


def _closure(requirements: Iterable[str], found: dict[str, Distribution]) -> dict[str, Distribution]:
    """Add the distributions that are required, directly or not; the names have their extras."""
    for requirement in map(Requirement, requirements):
        for extra in ("", *requirement.extras):
            name = f"{requirement.name}[{extra}]"
            if name not in found:
                found[name] = distribution(requirement.name)
                _closure(_required(found[name], extra), found)
    return found


def _required(package: Distribution, extra: str) -> Iterator[str]:
    for line in package.requires or ():
        marker = Requirement(line).marker
        if marker is None or marker.evaluate({"extra": extra}):
            yield line
