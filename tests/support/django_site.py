"""A Django project in this process, with RedBeat's application and its admin site; its URLs are here, too.

Django can be set up once in a process, so all tests in it share this project and its database, in memory.
Invariant: no environment variable names its settings, as each Celery app in this process would follow them.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

import django
from django.conf import settings

# while a browser is there, playwright has an event loop in the thread of the tests
os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
_MIDDLEWARE = (
    "middleware.security.SecurityMiddleware", "contrib.sessions.middleware.SessionMiddleware",
    "middleware.locale.LocaleMiddleware", "middleware.common.CommonMiddleware",
    "middleware.csrf.CsrfViewMiddleware", "contrib.auth.middleware.AuthenticationMiddleware",
    "contrib.messages.middleware.MessageMiddleware", "middleware.clickjacking.XFrameOptionsMiddleware",
)  # fmt: skip
_APPS = ("admin", "auth", "contenttypes", "sessions", "messages", "staticfiles")
_PROCESSORS = (
    "template.context_processors.request", "contrib.auth.context_processors.auth",
    "contrib.messages.context_processors.messages",
)  # fmt: skip
settings.configure(
    SECRET_KEY="tests",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=[*(f"django.contrib.{one}" for one in _APPS), "redbeat.contrib.django"],
    MIDDLEWARE=[f"django.{one}" for one in _MIDDLEWARE],
    TEMPLATES=[{
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {"context_processors": [f"django.{one}" for one in _PROCESSORS]},
    }],
    DATABASES={
        "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "file:site?mode=memory&cache=shared"}
    },
    PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
    STATIC_URL="/static/",
    USE_TZ=True,
    TIME_ZONE="Europe/Berlin",
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
)  # fmt: skip
django.setup()

from django.contrib import admin  # noqa: E402 - only now
from django.contrib.auth.models import Permission, User  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.test import Client  # noqa: E402
from django.test.utils import setup_test_environment  # noqa: E402
from django.urls import path  # noqa: E402

from redbeat.contrib.django.admin import EntryAdmin as EntryAdmin  # noqa: E402

setup_test_environment(debug=False)
call_command("migrate", verbosity=0)

urlpatterns = [path("admin/", admin.site.urls)]

#: where the dashboard is in the usual site
DASHBOARD = "/admin/redbeat/entry/"
_NUMBERS = itertools.count(1)


def visitor(*permissions: str, is_superuser: bool = False, name: str = "", **options: Any) -> Client:
    """A browser in which one of the staff has logged in, who has these permissions for entries.

    ``options``: of Django's test client.
    """
    user = User.objects.create(
        username=name or f"user {next(_NUMBERS)}", is_staff=True, is_superuser=is_superuser
    )
    codenames = [f"{one}_entry" for one in permissions]
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    assert user.user_permissions.count() == len(permissions)
    client = Client(**options)
    client.force_login(user)
    client.user = user
    return client
