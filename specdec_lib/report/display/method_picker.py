"""Which method for what a reader has, and how other programs switch it on: a figure of HTML and style sheets, without a script."""

from __future__ import annotations

import html

from specdec_lib.experiments.other_engines import ENGINE_OPTIONS, PROGRAMS
from specdec_lib.methods import METHODS
from specdec_lib.report.appearance import APPEARANCES

#: What a reader may have besides the model, by what a row of the table of methods needs.
HAVE = {
    "nothing": "only the model",
    "text": "text like the answers",
    "draft": "a small model of the same tokenizer",
    "training": "heads trained for the model",
    "several": "several of these",
}

_STYLE = """
.specdec-choose{border:1px solid rgba(128,128,128,.5);border-radius:6px;padding:.6em .8em;margin:.5em 0 1em}
.specdec-choose fieldset{border:0;margin:0 0 .5em;padding:0}
.specdec-choose legend{font-size:1em;font-weight:600;margin:0 0 .2em;padding:0}
.specdec-choose label{display:inline-block;margin:0 1.2em .2em 0}
.specdec-choose details{border-top:1px solid rgba(128,128,128,.35);padding:.35em 0;margin:0}
.specdec-choose summary{cursor:pointer}
.specdec-choose dl{margin:.4em 0 .2em 1em}
.specdec-choose dt{font-weight:600}
.specdec-choose dd{margin:0 0 .3em}
.specdec-choose code{overflow-wrap:anywhere;white-space:normal}
"""


#: What transformers takes where it lacks a method itself.
OURS = "model.generate(..., custom_generate=specdec_lib.custom_generate(DRAFTER))"


def figure() -> str:
    """The figure: one row per method, which unfolds, and a choice that leaves out what the reader lacks."""
    hidden = [
        f".specdec-choose:has(input[value={have}]:checked) details:not(.{have}):not(.nothing){{display:none}}"
        for have in HAVE
        if have != "several"
    ]
    radios = "".join(
        f'<label><input type="radio" name="have" value="{have}"{" checked" if have == "several" else ""}> {text}</label>'
        for have, text in HAVE.items()
    )
    rows = "".join(_row(name) for name in APPEARANCES)
    return (
        f"<style>{_STYLE}{''.join(hidden)}</style>"
        '<form class="specdec-choose tex2jax_ignore mathjax_ignore notranslate">'
        f"<fieldset><legend>What do you have?</legend>{radios}</fieldset>{rows}</form>"
    )


def _row(name: str) -> str:
    """One method: what it does, and below that how each program switches it on."""
    method, known = METHODS[name], {"transformers": OURS, **ENGINE_OPTIONS.get(name, {})}
    places = [
        f"<dt>{program}</dt><dd>{f'<code>{html.escape(known[program])}</code>' if program in known else 'not available'}</dd>"
        for program in PROGRAMS
    ]
    page = f"methods/{APPEARANCES[name].page}.html"
    return (
        f'<details class="{method.needs}"><summary><b>{name}</b> {html.escape(method.about)}</summary><dl>'
        f'{"".join(places)}<dt>this library</dt><dd><a href="{page}">how to use it</a></dd></dl></details>'
    )
