"""OpenTelemetry's spans of runs, from their due time to their queue.

Never: imports OpenTelemetry in a process that has no provider of it.
"""
