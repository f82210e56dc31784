"""What a user may do: each operation a typed function with a right, an audit record and a result.

Surfaces (Python, command line, REST, dashboard) call these and own presentation only.
"""
