"""Django, set up once in a process."""

from __future__ import annotations

import pytest

pytest.importorskip("django")

from tests.support import django_site as django_site  # sets Django up
