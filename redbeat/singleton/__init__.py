"""``redbeat-singleton``: any command, on one machine at a time.

Never: an entry.
"""

from redbeat.singleton.command import main as main
