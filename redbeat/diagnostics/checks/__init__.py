"""The checks of ``doctor``, by their subjects: ``redbeat.diagnostics.doctor`` has the table of them."""
