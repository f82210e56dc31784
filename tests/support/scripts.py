"""All Lua scripts of the package by name, without the fragments that are put in front of them."""

from __future__ import annotations

from pathlib import Path

from redbeat.store import scripts
from redbeat.store.scripts.script import Script

_FOLDER = Path(scripts.__file__).parent
_ALL = {path.stem: Script(path.stem) for path in _FOLDER.glob("*.lua")}
SCRIPTS = {name: script for name, script in _ALL.items() if script.header.names}
