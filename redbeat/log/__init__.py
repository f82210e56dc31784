"""The logger, and how text from elsewhere is shown in the log and on a terminal.

Never: what is logged, and when.
"""
