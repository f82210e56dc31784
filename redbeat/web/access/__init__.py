"""Who may see and do what, and what every request must be like before anybody looks at it.

Invariant: what isn't allowed explicitly is refused, before a page or a verb is called.
"""
