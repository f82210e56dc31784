"""The examples of docs/time.rst do what the page says."""

from __future__ import annotations

import doctest
from pathlib import Path

from celery import Celery

PAGE = Path(__file__).parents[3] / "docs" / "time.rst"


def test_each_example_prints_what_the_page_shows() -> None:
    app = Celery("docs", broker="redis://", set_as_current=False)
    failed, tried = doctest.testfile(str(PAGE), module_relative=False, globs={"app": app})
    assert tried > 15
    assert not failed
