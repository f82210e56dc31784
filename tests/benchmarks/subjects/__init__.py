"""The programs that are measured: scripts that print one JSON object, run by either Python.

They use what both packages have, and nothing of this repository but each other. `subject` is what they
share: their argument is a JSON object, their values are in seconds, bytes and counts.
"""
