"""Pictures for the documentation, taken by `make screenshots`."""
