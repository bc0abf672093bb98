"""Boxes that a notebook puts on its page."""

from __future__ import annotations

from typing import Any


class Notice:
    """A warning on a page, with a title and a text of one line each."""

    def __init__(self, title: str, text: str):
        self.title, self.text = title, text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {
            "text/plain": f"{self.title}: {self.text}",
            "text/html": f"<p><b>{self.title}.</b> {self.text}</p>",
            "text/markdown": f":::{{admonition}} {self.title}\n:class: warning\n{self.text}\n:::\n",
        }


def notice(profile: str) -> Notice | None:
    """Return the box that a page of this profile carries, or None for a profile whose numbers are results."""
    words = "This page was made with the smallest parameters, to check that everything runs. "
    words += "Its numbers are not results: build the book with the default profile for those."
    return Notice("Smoke run", words) if profile == "smoke" else None
