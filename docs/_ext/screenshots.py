"""``.. screenshot:: timeline``: a page of the dashboard as `make screenshots` has taken it.

It is there twice, and the reader sees the one in the theme that they read in. What the directive holds says
what is on it, for those who don't see it.
"""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

THEMES = ("light", "dark")


class Screenshot(SphinxDirective):
    """One picture in both themes."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return both pictures; classes of the theme hide one."""
        alt = " ".join(self.content)
        if not alt:
            raise self.error("It must say what is on the picture.")
        return [
            nodes.image(
                uri=f"_static/web-{self.arguments[0]}-{theme}.webp",
                alt=alt,
                width="100%",
                classes=[f"only-{theme}", "screenshot"],
            )
            for theme in THEMES
        ]


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("screenshot", Screenshot)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
