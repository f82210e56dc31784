"""RedBeat at work, on a server, a worker and a beat of its own: `make demo`, or `python -m demo`."""
