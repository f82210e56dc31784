"""``doctor --fix``: what can be repaired without losing a definition."""

from __future__ import annotations

from collections.abc import Sequence

from redbeat.access import Right
from redbeat.diagnostics.findings import Finding
from redbeat.diagnostics.fixes import repair
from redbeat.operations.actor import Actor


def fix(actor: Actor, findings: Sequence[Finding], *, dry_run: bool) -> list[str]:
    """Repair what the doctor has found, as far as it can be; return a sentence for each.

    Each is looked at once more before it is repaired: what has changed meanwhile is left alone.
    """
    actor.require(Right.ADMIN)
    about = [finding.target for finding in findings if finding.is_fixable]
    if dry_run or not about:
        return list(repair(actor.app, findings, dry_run))
    with actor.doing("doctor --fix", about):
        return list(repair(actor.app, findings))
