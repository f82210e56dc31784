"""Which entries' services beat doesn't call, as their hosts aren't in ``redbeat_ping_hosts``."""

from __future__ import annotations

from collections.abc import Iterator

from redbeat.config.ping_urls import is_allowed, parse_ping_url
from redbeat.diagnostics.checks.context import Context, Row
from redbeat.diagnostics.checks.finding import Finding, Severity
from redbeat.log.text import counted, printable

#: how many entries are named
MAX_NAMED = 5


class Pings:
    """The entries with a ``ping_url`` that isn't called."""

    def __init__(self) -> None:
        self._count = 0
        self._named: list[str] = []

    def note_entry(self, context: Context, row: Row) -> Iterator[Finding]:
        """Note an entry whose ``ping_url`` these settings don't allow."""
        entry = row.entry
        if entry is not None and entry.policy.ping_url is not None and entry.is_enabled_at(context.now):
            url = parse_ping_url(entry.policy.ping_url)
            if not is_allowed(url, context.config.ping_hosts):
                self._count += 1
                if len(self._named) < MAX_NAMED:
                    self._named.append(f"{printable(context.name_of(row.key))} ({url.authority})")
        yield from ()

    def tell(self, context: Context) -> Iterator[Finding]:
        """Say how many there are, and name some of them with their hosts."""
        if not self._count:
            return
        more = self._count - len(self._named)
        named = ", ".join(self._named) + (f" and {more} more" if more else "")
        yield Finding(
            # without the application its settings aren't known
            Severity.WARNING if context.has_tasks else Severity.NOTE,
            "ping-hosts",
            "redbeat_ping_hosts",
            f"It doesn't have the hosts of {counted(self._count, 'ping_url', 'ping_urls')}, so nobody is "
            f"told of the runs of {named}.",
            "Add those that you trust, and restart beat; if beat's own settings have them, nothing is wrong.",
        )
