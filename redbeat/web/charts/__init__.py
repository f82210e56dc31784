"""Charts: the shapes of an SVG, computed from values. Pure; ``templates/charts.html`` draws them.

Invariant: shapes have classes, no styles, and each chart has its values as text besides.
"""
