"""RedBeat as an application of a Django project: ``INSTALLED_APPS += ["redbeat.contrib.django"]``.

Owns pages in Django's admin, the management command ``redbeat``, and system checks. Invariant: it has no
table; what the pages show is read from Redis, by the same fields, checks and verbs as in the dashboard.
"""
