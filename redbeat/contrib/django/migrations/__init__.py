"""The steps of ``migrate``: they make permissions, and no table."""
