"""RedBeat as an application of a Django project: ``INSTALLED_APPS += ["redbeat.contrib.django"]``.

Owns the dashboard in Django's admin, the management command ``redbeat``, and system checks. Invariant: it has
no table.
"""
