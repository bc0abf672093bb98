"""A picture of one generation: every token coloured by who proposed it and marked by what became of it."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from specdec_lib.report.display import figures

Fate = Literal["accepted", "rejected", "target"]

_LEGEND: dict[str, str] = {
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


@dataclass(frozen=True)
class Token:
    """One token of the picture.

    Parameters
    ----------
    text : str
        As the tokenizer decodes it.
    fate : {"accepted", "rejected", "target"}
        Drafted and accepted, drafted and rejected, or the target's own (a correction, the bonus token, or a
        token of the prefill).
    step : int
        Number of the target forward that verified or emitted it, counted from 0.
    proposer : str
        Name of the method that drafted it; empty for the target's own.
    note : str
        Added to the text shown on hovering, such as where the draft was found.
    """

    text: str
    fate: Fate
    step: int
    proposer: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if self.fate not in _LEGEND:
            raise ValueError(f"fate {self.fate!r}: one of {', '.join(_LEGEND)} is expected")
        if (self.fate == "target") == bool(self.proposer):
            raise ValueError(f"token {self.text!r}: a drafted token names its proposer, the target's own names none")


class TokenView:
    """One generation as coloured text, for Jupyter and for the book.

    Parameters
    ----------
    tokens : sequence of Token
        In reading order; rejected ones may stand behind the accepted ones of their step, or be left out.
    caption : str
        One sentence under the text.
    prompt : str
        Shown greyed before the tokens.

    Raises
    ------
    ValueError
        The steps go backwards.
    """

    def __init__(self, tokens: Sequence[Token], caption: str = "", prompt: str = ""):
        steps = [token.step for token in tokens]
        if any(later < earlier for earlier, later in zip(steps, steps[1:], strict=False)):
            raise ValueError("the steps of the tokens go backwards: give the tokens in the order of their steps")
        self.tokens, self.caption, self.prompt = list(tokens), caption, prompt

    def to_html(self) -> str:
        """Return the picture; every text in it is escaped, steps are divided by a thin bar."""
        parts = []
        step = self.tokens[0].step if self.tokens else 0
        for token in self.tokens:
            if token.step != step:
                parts.append('<span class="specdec-step" aria-hidden="true">&#x2009;&#x258F;</span>')
                step = token.step
            parts.append(self._span(token))
        prompt = (
            f'<span class="specdec-prompt" style="opacity:.55">{html.escape(self.prompt)}</span>' if self.prompt else ""
        )
        caption = f'<div class="specdec-caption">{html.escape(self.caption)}</div>' if self.caption else ""
        return (
            f"<style>{_CSS}</style>{self._legend()}"
            f'<div class="specdec-tokens notranslate">{prompt}{"".join(parts)}</div>{caption}'
        )

    def _span(self, token: Token) -> str:
        title = f"step {token.step}: {_LEGEND[token.fate]}"
        if token.proposer:
            title += f", proposed by {token.proposer}"
        if token.note:
            title += f"; {token.note}"
        # A token that is a line break needs something to be seen by. A rejected one is no part of the text:
        # it takes no line, and little room for its indentation.
        if token.fate == "rejected":
            text = html.escape(re.sub(r"[ \t]{2,}", "⇥", token.text)).replace("\n", "↵")
        else:
            text = html.escape(token.text).replace("\n", "↵\n")
        style = f' style="--specdec-color:{figures.color(token.proposer)}"' if token.proposer else ""
        title = html.escape(title, quote=True)
        return f'<span class="specdec-{token.fate}"{style} title="{title}">{text}</span>'

    def _legend(self) -> str:
        seen = dict.fromkeys((token.fate, token.proposer) for token in self.tokens)
        items = []
        for fate, proposer in sorted(seen):
            style = f' style="--specdec-color:{figures.color(proposer)}"' if proposer else ""
            sample = html.escape(proposer or "target")
            items.append(f'<span><b class="specdec-{fate}"{style}>{sample}</b> {_LEGEND[fate]}</span>')
        items.append("<span>▏ next step of the target</span>")
        return f'<div class="specdec-legend">{"".join(items)}</div>'

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        plain = "".join(token.text for token in self.tokens if token.fate != "rejected")
        return {"text/plain": plain, "text/html": self.to_html()}
