"""The examples of docs/managing.rst do what the page says, on a real server."""

from __future__ import annotations

import doctest
from pathlib import Path

from celery import Celery

PAGE = Path(__file__).parents[3] / "docs" / "managing.rst"


def test_each_example_prints_what_the_page_shows(app: Celery) -> None:
    failed, tried = doctest.testfile(str(PAGE), module_relative=False, globs={"app": app})
    assert tried > 25
    assert not failed
