"""RedBeat inside frameworks, as an application of theirs.

Owns how a framework's own pages, commands and checks look and are named. What they show and do is decided in
the rooms below. Nothing outside this room imports it.

Never: decides anything about the schedule, or talks to Redis in its own words.
"""
