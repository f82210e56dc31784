"""``Entry``, which has permissions, and no table."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    """The first step."""

    initial = True
    dependencies = ()
    operations = (
        migrations.CreateModel(
            name="Entry",
            fields=[("name", models.TextField(primary_key=True, serialize=False))],
            options={
                "verbose_name": "entry",
                "verbose_name_plural": "entries",
                "permissions": (
                    ("pause_entry", "Can pause and resume entry"),
                    ("run_entry", "Can run entry now"),
                ),
                "managed": False,
                "base_manager_name": "objects",
            },
        ),
    )
