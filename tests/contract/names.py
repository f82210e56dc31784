"""Prints the public surface of the redbeat that is installed, as JSON, for a comparison of two packages:

python names.py MODULE...

{module: {name: [kind, parameters, value or names of the class]}}, and "module *" with the names that a star
import brings. Parameters are listed for functions and
classes of redbeat itself. The environment of 2.4.2 runs it, and that of the tests.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import warnings
from typing import Any

SIMPLE = (str, int, tuple)


def parameters_of(value: Any) -> list[list[Any]] | None:
    module = getattr(value, "__module__", None) or ""
    if not callable(value) or module.partition(".")[0] != "redbeat":
        return None
    found = inspect.signature(value).parameters.values()
    return [[one.name, one.kind.name, one.default is not one.empty] for one in found]


def described(value: Any) -> list[Any]:
    if isinstance(value, type) and value.__module__.partition(".")[0] == "redbeat":
        members = {name: parameters_of(getattr(value, name, None)) for name in dir(value) if name[:2] != "__"}
        return ["class", parameters_of(value), members]
    if isinstance(value, type):
        return ["class", None, f"{value.__module__}.{value.__name__}"]
    if inspect.ismodule(value):
        return ["module", None, value.__name__]
    return [type(value).__name__, parameters_of(value), value if isinstance(value, SIMPLE) else None]


def surface_of(modules: list[str]) -> dict[str, dict[str, list[Any]]]:
    warnings.simplefilter("ignore", DeprecationWarning)
    found = {}
    for name in modules:
        module = importlib.import_module(name)
        names = [one for one in dir(module) if one[:2] != "__"]
        found[name] = {one: described(getattr(module, one)) for one in names}
        brought: dict[str, Any] = {}
        exec(f"from {name} import *", brought)
        own = {one for one, value in brought.items() if getattr(value, "__package__", None) == "redbeat"}
        found[f"{name} *"] = {one: ["", None, None] for one in brought.keys() - own}
    return found


if __name__ == "__main__":
    print(json.dumps(surface_of(sys.argv[1:])))
