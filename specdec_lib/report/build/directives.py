"""What Sphinx has to know for the pages.

The role ``{num}`` puts a number of a chapter into prose, ``{published}`` one of a paper. ``{methods}`` is a table of methods,
``{method-picture}`` the picture and the viewer of one. ``{opening} fig-name`` stands at the top of a chapter, holds the sentences
that say what the main figure shows, which a notebook computes far down the page, and receives a copy of the picture, which links
to the original. What is missing is an error of the page, and errors end the build.
"""

from __future__ import annotations

import pkgutil
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.errors import SphinxError
from sphinx.transforms import SphinxTransform
from sphinx.util.docutils import SphinxDirective, SphinxRole

import specdec_lib
from specdec_lib import files, paths
from specdec_lib.experiments.data.published_numbers import ClaimError, printed_numbers, published_text
from specdec_lib.methods import METHODS
from specdec_lib.report import numbers, plots
from specdec_lib.report.appearance import APPEARANCES
from specdec_lib.report.build import sources
from specdec_lib.report.claims import pictures, rules
from specdec_lib.report.display import mechanisms, method_picker, method_pictures, worked_example


def current_claims() -> tuple[dict[str, dict[str, numbers.Number]], pd.DataFrame]:
    """The published numbers, with those of verdicts as chapter ``claims``, and the judged claims."""
    read = [paths.CLAIMS, *numbers.table_files().values()]
    return _current_claims(tuple((path, path.stat().st_mtime_ns) for path in read))


@lru_cache(maxsize=1)
def _current_claims(read: tuple[tuple[Path, int], ...]) -> tuple[dict[str, dict[str, numbers.Number]], pd.DataFrame]:
    """``read`` names the files and when they were written: dozens of roles ask, and a change is seen."""
    tables = numbers.tables()
    frame = rules.judge(rules.load_claims(), tables)
    return {**tables, "claims": rules.counts(frame)}, frame


class Published(SphinxRole):
    """``{published}``: a published number, or what follows from several."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return the text, or the error."""
        try:
            return [nodes.Text(published_text(self.text, printed_numbers()))], []
        except (ClaimError, ZeroDivisionError) as error:
            message = self.inliner.reporter.error(str(error), line=self.lineno)
            return [nodes.problematic(self.rawtext, self.rawtext)], [message]


class Num(SphinxRole):
    """``{num}`04/h10_over_pld10:.2f```: a number of a chapter's table, with its interval, which ``.value`` leaves out.

    A reader who points at it sees its key and how many prompts count in it, and gets to the cell that makes it.
    """

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return the text, or the error."""
        key, _, spec = self.text.partition(":")
        alone = key.endswith(".value")
        try:
            key = key.removesuffix(".value")
            number = numbers.look_up(key, current_claims()[0])
            shown = format(number._replace(low=None) if alone else number, spec)
            pages = {page: Path(self.env.doc2path(page)) for page in self.env.found_docs if "notebooks/" in page}
            target = sources.address(key, self.env.docname, pages)
            return [sources.node(shown, key, number, target)], []
        except ValueError as error:
            message = self.inliner.reporter.error(str(error), line=self.lineno)
            return [nodes.problematic(self.rawtext, self.rawtext)], [message]


_EXACT = {"exact": "that of plain decoding", "in distribution": "of the same distribution", "lossy": "another"}


def method_lines() -> list[str]:
    """Lines of a list table: every method with its page, what it drafts, and what it keeps of the text."""
    lines = ["* - Method", "  - What it drafts", "  - Sampled output", "  - Paper"]
    for name, row in APPEARANCES.items():
        method = METHODS[name]
        lines += [f"* - [{name}](/methods/{row.page}.md)", f"  - {method.about}"]
        lines += [f"  - {_EXACT[method.exact]}", f"  - {{cite:t}}`{row.paper}`"]
    return lines


def parse_lines(directive: SphinxDirective, lines: list[str]) -> list[nodes.Node]:
    """The nodes of lines that a directive writes."""
    text = StringList(lines, source=directive.state.document.current_source)
    holder = nodes.Element()
    directive.state.nested_parse(text, directive.content_offset, holder)
    return holder.children


class Methods(SphinxDirective):
    """``{methods}``: every method with its page, what it drafts, and what it keeps of the text; options as a list table's."""

    option_spec = {"name": directives.unchanged, "caption": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """Return the nodes."""
        fence = [f":::{{list-table}} {self.options.get('caption', '')}", ":header-rows: 1"]
        fence += [f":name: {self.options['name']}"] if "name" in self.options else []
        return parse_lines(self, [*fence, "", *method_lines(), ":::"])


class MethodPicture(SphinxDirective):
    """``{method-picture}``: one pass of the page's method with this caption, and below it the viewer of a whole generation."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the nodes."""
        page = Path(self.env.docname).name
        picture = f"../pictures/{page}"
        drawn = [f":::{{figure}} {picture}.svg", f":alt: {method_pictures.description(page)}", "", *self.content, ":::"]
        return parse_lines(self, [*drawn, "", "```{raw} html", f":file: {picture}.html", "```"])


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


def draw_methods(folder: Path) -> None:
    """Draw the pictures of the methods' pages as ``<page>.svg``, and write their viewers as ``<page>.html``; and the papers'
    mechanisms as ``<page>-mechanism.svg``."""
    for page, draw in mechanisms.MECHANISMS.items():
        draw().savefig(folder / f"{page}-mechanism.svg", metadata={"Date": None})
    for page, draw in method_pictures.PICTURES.items():
        draw().savefig(folder / f"{page}.svg", metadata={"Date": None})
        files.write_atomic(folder / f"{page}.html", method_pictures.read(page)[1].to_html())


def _draw_pictures(app: Sphinx) -> None:
    """Draw the figures that are no chapter's: methods, the worked example, and what reproduces."""
    folder = Path(app.srcdir) / "pictures"
    if folder.is_dir():
        tables, frame = current_claims()
        plots.use_style()
        draw_methods(folder)
        files.write_atomic(folder / "which-method.html", method_picker.figure())
        worked = worked_example.figure(
            worked_example.load(), *(tables["01"][key] for key in ("wide_ratio", "cost_ratio"))
        )
        files.write_atomic(folder / "worked-example.html", worked)
        turned = rules.turned(list(frame.claim), numbers.both_runs()).id
        drawing = pictures.reproduces(rules.headlines(frame, tables), turned)
        drawing.savefig(folder / "what-reproduces.svg", metadata={"Date": None})


def _name_packages(app: Sphinx, config: Config) -> None:
    """Tell the template of the library's pages which modules are folders: those get a page of their own."""
    modules = pkgutil.walk_packages(specdec_lib.__path__, "specdec_lib.")
    config.autosummary_context = {"packages": [module.name for module in modules if module.ispkg]}


def _share_among_processes(app: Sphinx, config: Config) -> None:
    """Let Sphinx read pages in several processes: two extensions do not say whether they can be shared, for which it warns.
    They work before the first page is read and after the last.
    """
    for name in {"sphinx_jupyterbook_latex", "sphinx_multitoc_numbering"} & app.extensions.keys():
        app.extensions[name].parallel_read_safe = True


def _skip_undescribed_field(app: Sphinx, what: str, name: str, member: Any, skip: bool, options: Any) -> bool | None:
    """Leave a field of a named tuple out whose only description is the one that Python gives it; the signature has it."""
    return True if (getattr(member, "__doc__", None) or "").startswith("Alias for field number") else None


def _keep_colons(app: Sphinx, what: str, name: str, member: Any, options: Any, lines: list[str]) -> None:
    """Napoleon takes what stands before the first colon of an attribute's description for its type; an empty one keeps the text."""
    if what in ("attribute", "data", "property") and lines:
        lines[0] = f": {lines[0]}"


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives and the roles with Sphinx."""
    app.add_directive("methods", Methods)
    app.add_directive("method-picture", MethodPicture)
    app.add_directive("opening", Opening)
    app.add_transform(PutPictures)
    app.add_role("published", Published())
    app.add_role("num", Num())
    sources.setup(app)
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-skip-member", _skip_undescribed_field)
    app.connect("autodoc-process-docstring", _keep_colons, priority=400)  # before napoleon's
    app.connect("builder-inited", _draw_pictures)
    app.connect("config-inited", _name_packages)
    app.connect("config-inited", _share_among_processes)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
