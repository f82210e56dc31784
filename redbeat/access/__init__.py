"""Who may do what, for the dashboard and the command line: rights, and the tokens that carry them. Pure.

Never: Redis, an application, a request.
"""

from __future__ import annotations

from redbeat.access.rights import Right as Right
from redbeat.access.rights import rights_of as rights_of
