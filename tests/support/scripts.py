"""All Lua scripts of the package by name, without the fragments that are put in front of them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from redbeat.store import scripts
from redbeat.store.scripts.script import Script

_MODULES = [
    import_module(f"{scripts.__name__}.{path.stem}")
    for path in Path(scripts.__file__).parent.glob("[a-z]*.py")
]
SCRIPTS = {
    value.names[-1]: value
    for module in (scripts, *_MODULES)
    for value in vars(module).values()
    if isinstance(value, Script)
}
