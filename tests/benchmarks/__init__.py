"""What RedBeat costs, beside celery-redbeat 2.4.2, a bare `apply_async` loop and the raw floor.

`make bench`, or `python -m tests.benchmarks`. Each figure is taken in a process of its own (`subjects`), by
the Python that has the package in question, on one embedded Valkey. The subjects take turns, so that a noisy
moment of the machine hits all of them; what counts is the ratio between two of one run.
"""
