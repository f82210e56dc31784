"""``redbeat-singleton``: any command, on one machine at a time.

Never: entries.
"""

from redbeat.singleton.command import main as main
