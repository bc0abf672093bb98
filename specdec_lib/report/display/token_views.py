"""One generation as coloured text: every token marked by who proposed it and by what became of it."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

from specdec_lib.report import plots

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specdec_lib import Generation

_LEGEND = {
    "accepted": "drafted and accepted",
    "rejected": "drafted and rejected (no part of the text)",
    "target": "the target's own token",
}

# The colour of a method is mixed into the page's own background, so that it stays legible in light and dark
# mode.
_CSS = """
.specdec-tokens{font-family:var(--pst-font-family-monospace,monospace);font-size:.86em;line-height:1.75;
 white-space:pre-wrap;overflow-wrap:anywhere;border:1px solid
 rgba(128,128,128,.45);border-radius:4px;padding:.6em .8em}
.specdec-tokens span[title]{border-radius:3px;padding:.1em 0}
.specdec-tokens .specdec-accepted,.specdec-legend .specdec-accepted{
 background:color-mix(in srgb,var(--specdec-color) 30%,transparent);box-shadow:inset 0 -2px 0
 var(--specdec-color)}
.specdec-tokens .specdec-rejected,.specdec-legend .specdec-rejected{
 text-decoration:line-through;opacity:.62;border:1px dotted var(--specdec-color)}
.specdec-tokens .specdec-target{font-weight:600}
.specdec-tokens .specdec-step{color:rgba(128,128,128,.9);font-weight:400;user-select:none}
.specdec-legend{font-size:.86em;margin:.3em 0 .5em;display:flex;flex-wrap:wrap;gap:.2em 1.2em}
.specdec-legend b{border-radius:3px;padding:0 .35em;font-weight:600}
.specdec-caption{font-size:.92em;margin:.5em 0 1em;text-align:center}
""".strip()


def token_view(
    run: Generation,
    tokenizer: PreTrainedTokenizerBase,
    method: str,
    caption: str = "",
    prompt: str = "",
    rejected: int = 3,
) -> str:
    """Return a run as HTML, in which every text is escaped, in the colour of its method; steps are divided by a thin bar.

    ``caption`` is one sentence under the text, ``prompt`` is shown greyed before it. At most ``rejected`` rejected tokens are
    shown a step; none of a draft that branches, which is not read in one line.
    """
    parts = [_span(tokenizer.decode(run.tokens[:1]), "target", "step 0", "from the pass over the prompt")]
    fates = {"target"}
    for number, step in enumerate(run.steps, start=1):
        parts.append('<span class="specdec-step" aria-hidden="true">&#x2009;&#x258F;</span>')
        own = step.tokens[step.accepted :]
        lost = step.tree.tokens[step.accepted :][:rejected] if step.tree.is_chain else []
        note = f"proposed by {method}; {step.accepted} of {step.drafted} accepted"
        for fate, tokens in (("accepted", step.tokens[: step.accepted]), ("rejected", lost), ("target", own)):
            fates.update([fate] if tokens else [])
            for token in tokens:
                text = tokenizer.decode([token])
                parts.append(_span(text, fate, f"step {number}", "" if fate == "target" else note))
    samples = "".join(
        f'<span><b class="specdec-{fate}">{html.escape("target" if fate == "target" else method)}</b> {words}</span>'
        for fate, words in _LEGEND.items()
        if fate in fates
    )
    return (
        f'<style>{_CSS}</style><div style="--specdec-color:{plots.color(method)}">'
        f'<div class="specdec-legend">{samples}<span>▏ next step of the target</span></div>'
        f'<div class="specdec-tokens notranslate"><span class="specdec-prompt" style="opacity:.55">{html.escape(prompt)}</span>'
        f'{"".join(parts)}</div><div class="specdec-caption">{html.escape(caption)}</div></div>'
    )


def _span(text: str, fate: str, step: str, note: str) -> str:
    title = html.escape(f"{step}: {_LEGEND[fate]}" + (f", {note}" if note else ""), quote=True)
    # A token that is a line break needs something to be seen by. A rejected one is no part of the text: it takes no line, and
    # little room for its indentation.
    if fate == "rejected":
        text = html.escape(re.sub(r"[ \t]{2,}", "⇥", text)).replace("\n", "↵")
    else:
        text = html.escape(text).replace("\n", "↵\n")
    return f'<span class="specdec-{fate}" title="{title}">{text}</span>'
