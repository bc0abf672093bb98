"""``{opening} fig-name``: the chapter's main figure on its first screen, before the cells that draw it.

A notebook computes a figure where the reader can follow it, far down the page. The directive stands at the top, holds the
sentences that say what the figure shows, and receives a copy of the picture, which links to the original.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import SphinxError
from sphinx.transforms import SphinxTransform
from sphinx.util.docutils import SphinxDirective


class Opening(SphinxDirective):
    """Holds the place of the picture, and its sentences."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Put a container on the page that :class:`PutPictures` fills."""
        place = nodes.container("", classes=["opening"])
        place["opening"] = self.arguments[0].strip()
        place.source, place.line = self.get_source_info()
        self.state.nested_parse(self.content, self.content_offset, place)
        return [place]


class PutPictures(SphinxTransform):
    """Copies each figure that is asked for into its place; a name that no figure of the page has is an error."""

    default_priority = 800  # before the images of the page are collected

    def apply(self, **_: Any) -> None:
        """Fill the places of one page."""
        figures = {name: figure for figure in self.document.findall(nodes.figure) for name in figure["names"]}
        for place in self.document.findall(lambda node: isinstance(node, nodes.container) and "opening" in node):
            name = place["opening"]
            if name not in figures:
                raise SphinxError(
                    f"{self.env.docname}: no figure is named {name!r} for its opening; expected one of "
                    + ", ".join(sorted(figures))
                )
            figure = figures[name]
            pictures = [child.deepcopy() for child in figure.children if not isinstance(child, nodes.caption)]
            for node in (node for picture in pictures for node in picture.findall(nodes.Element)):
                node["ids"], node["names"] = [], []
            words = [part.deepcopy() for each in figure.findall(nodes.caption) for part in each.children]
            link = nodes.reference("", "How it is made.", refid=figure["ids"][0], internal=True)
            caption = nodes.paragraph("", "", *words, nodes.Text(" "), link, classes=["opening-caption"])
            place[:0] = [*pictures, caption]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive and its transform with Sphinx."""
    app.add_directive("opening", Opening)
    app.add_transform(PutPictures)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
