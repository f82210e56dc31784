"""The logger, the events of the log, and how text from elsewhere is shown there and on a terminal.

Never: what is logged, and when.
"""

from redbeat.log.formatter import JsonFormatter as JsonFormatter
