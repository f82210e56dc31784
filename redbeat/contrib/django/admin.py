"""Where Django looks for the pages of the admin: they are registered with its usual site."""

from __future__ import annotations

from django.contrib import admin

from redbeat.contrib.django.models import Entry
from redbeat.contrib.django.packages import find_missing

if not find_missing():
    from redbeat.contrib.django.entry_admin import EntryAdmin as EntryAdmin

    admin.site.register(Entry, EntryAdmin)
