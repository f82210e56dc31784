"""Without Django, and without what the pages in its admin need, nothing else misses it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.command_line import run

pytest.importorskip("django")


def test_without_django_nothing_else_misses_it() -> None:
    script = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "django":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
import redbeat, redbeat.cli, redbeat.web, redbeat.web.django, redbeat.schedulers
"""
    done = run([sys.executable, "-c", script], Path.cwd(), {})
    assert done.returncode == 0, done.stderr


def test_without_the_packages_of_the_dashboard_the_site_works_and_a_check_says_what_to_install() -> None:
    script = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("starlette", "uvicorn"):
            raise ModuleNotFoundError(name)
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in ("starlette", "uvicorn") else find(name)
sys.meta_path.insert(0, Missing())
"""
    script += PROJECT
    done = run([sys.executable, "-c", script], Path.cwd(), {})
    assert done.stdout.splitlines() == ["['redbeat.E001', 'redbeat.E004']", "False"], done.stderr


def test_workers_and_beat_load_the_admin_without_the_pages() -> None:
    script = PROJECT + "import sys; print('starlette' in sys.modules, 'redbeat.web' in sys.modules)"
    done = run([sys.executable, "-c", script], Path.cwd(), {})
    assert done.stdout.splitlines() == ["['redbeat.E001']", "True", "False False"], done.stderr


PROJECT = """
from django.conf import settings
settings.configure(INSTALLED_APPS=[
    "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions",
    "django.contrib.messages", "redbeat.contrib.django",
])
import django
django.setup()
from django.core import checks
print(sorted(str(one.id) for one in checks.run_checks(tags=["redbeat"])))
from django.contrib import admin
from redbeat.contrib.django.models import Entry
print(admin.site.is_registered(Entry))
"""
