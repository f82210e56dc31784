"""How Sphinx builds the documentation: ``make docs``, or ``sphinx-build -n -W docs build/docs``."""

import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]

project = "RedBeat"
author = "The RedBeat authors"
copyright = "The RedBeat authors"
PYPROJECT = (HERE.parent / "pyproject.toml").read_text("utf-8")  # Python 3.10 has no tomllib
release = version = re.findall(r'^version = "(.+)"$', PYPROJECT, re.MULTILINE)[0]

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "events",
    "fields",
    "layout",
    "metrics",
    "operations",
    "performance",
    "scale",
    "screenshots",
    "settings",
]
exclude_patterns = ["_build"]
default_role = "code"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
# What follows from Celery's classes alone is documented there.
autodoc_default_options = {"show-inheritance": True}
napoleon_use_ivar = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False

# Names of other projects, and of parts of RedBeat that are no interface. No inventories are fetched: the
# documentation must build without a network.
nitpick_ignore_regex = [
    (r"py:.*", r"(celery|kombu|redis|datetime|dateutil|json|collections|enum)\..*"),
    (r"py:.*", r"redbeat\.(lock|lua|store|keys|pauses)\..*"),
    (
        r"py:.*",
        r"redbeat\.(schedules\.occurrences\.(Excluded|Bounds)|policy\.policy\.PolicyHolder|entries\.management\..*)",
    ),
    (r"py:.*", r"redbeat\.entries\.async_management\.(AsyncManaged|EntryT|Item|Result)"),
    (r"py:.*", r"(.*\.)?(EntryArguments|Changes|PauseResult)"),
    (r"py:.*", r"(Stored|Write|Store|LeaderLock|Keys|EntryT|AsyncResult|PastRun)"),
    (r"py:.*", r"(datetime|timedelta|schedstate|optional)"),
]

html_theme = "furo"
html_title = f"RedBeat {release}"
html_show_sphinx = False
html_static_path = ["_static"]
html_css_files = ["examples.css"]
html_theme_options = {"navigation_with_keys": True}


def escape_asterisks(_app: object, _ctx: object, lines: list[str]) -> None:
    """A cron expression in a help text is no emphasis."""
    lines[:] = [line.replace("*", "\\*") for line in lines]


def setup(app: Any) -> None:
    for part in ("description", "options", "arguments", "epilog"):
        app.connect(f"sphinx-click-process-{part}", escape_asterisks)
