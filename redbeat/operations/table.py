"""The table of all operations: the modules that define them are imported here."""

from __future__ import annotations

from redbeat.operations import calendars as calendars
from redbeat.operations import editing as editing
from redbeat.operations import files as files
from redbeat.operations import later as later
from redbeat.operations import operating as operating
from redbeat.operations import pausing as pausing
from redbeat.operations import reading as reading
from redbeat.operations import running as running
from redbeat.operations import tokens as tokens
from redbeat.operations.operation import OPERATIONS as FOUND

#: all operations, in an order that doesn't depend on which module was imported first
OPERATIONS = sorted(FOUND.values(), key=lambda one: one.function.__module__)
