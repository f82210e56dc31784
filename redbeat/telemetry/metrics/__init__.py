"""What is counted and measured, under which labels, and how Prometheus reads it.

Never: counts what becomes of a run; the script that records it does that.
"""
