"""All Lua scripts of the package by name, without the fragments that are put in front of them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from redbeat.store import scripts
from redbeat.store.scripts.script import Script

_FOLDER = Path(scripts.__file__).parent
_MODULES = [import_module(f"{scripts.__name__}.{path.stem}") for path in _FOLDER.glob("[a-z]*.py")]
_PLACED = [
    value for module in (scripts, *_MODULES) for value in vars(module).values() if isinstance(value, Script)
]
#: those whose headers have names, and those whose headers still have places
BOUND = {path.stem: Script(path.stem) for path in _FOLDER.glob("*.lua")}
BOUND = {name: script for name, script in BOUND.items() if script.header.names}
SCRIPTS = {**{script.name: script for script in _PLACED}, **BOUND}
