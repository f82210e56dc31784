"""What ``save_many`` returns; the work is in ``redbeat.entries.bulk``."""

from redbeat.entries.bulk import SaveResult as SaveResult

__all__ = ["SaveResult"]
