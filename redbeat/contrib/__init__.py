"""RedBeat inside frameworks, as an application of theirs.

Owns how a framework's commands and checks look and are named, and where it has the dashboard. Nothing outside
this room imports it.

Never: decides anything about the schedule, or talks to Redis in its own words.
"""
