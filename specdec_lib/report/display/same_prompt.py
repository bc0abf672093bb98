"""The prompt of chapter 1's worked example under any drafter: what each pass drafts, what is accepted, what the target adds.

``make examples ARGS=same-prompt`` decodes it with every drafter of the table of methods and keeps it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from IPython.display import HTML

from specdec_lib import paths
from specdec_lib.decoding.tree import path_to
from specdec_lib.report.display.worked_example import STYLE, chip, name_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

QUESTION = """Rename `total` to `amount` in this function:

```python
def add(total, price):
    total = total + price
    print(total)
    return total
```"""
#: What ``make examples`` keeps: ``text`` before the first pass, and by drafter the ``passes`` after it.
FILE = paths.DATA / "results" / "same-prompt.json"
#: Branches of a tree that are shown.
BRANCHES = 4


def rename_prompt(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokens of :data:`QUESTION`, the prompt to which every chapter comes back, as a chat."""
    asked = [{"role": "user", "content": QUESTION}]
    return tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=True)["input_ids"]


def load() -> dict[str, Any]:
    """The kept passes; FileNotFoundError says how they are made."""
    if not FILE.is_file():
        raise FileNotFoundError(f"{FILE} is not there; make it with: make examples ARGS=same-prompt")
    return json.loads(FILE.read_text(encoding="utf-8"))


def same_prompt(*names: str, passes: int = 2) -> HTML:
    """The first passes after the place where chapter 1's worked example begins, under each of these drafters.

    ValueError if nothing is kept of a name.
    """
    kept = load()
    for name in names:
        if name not in kept["passes"]:
            raise ValueError(f"no pass of {name!r} is kept; expected some of {', '.join(kept['passes'])}")
    parts = "".join(
        f"<section><p><b>{escape(name)}</b></p>{_passes(kept['text'], kept['passes'][name][:passes])}</section>"
        for name in names
    )
    legend = " ".join(
        (chip("accepted", "kept"), chip("rejected", "lost"), chip("dropped", "open"), chip("the target's own", "own"))
    )
    return HTML(
        f'<style>{STYLE}</style><div class="specdec-worked tex2jax_ignore mathjax_ignore notranslate">'
        f"<p><small>{legend}</small></p>{parts}</div>"
    )


def _passes(text: str, passes: Sequence[Mapping[str, Any]]) -> str:
    before, shown = escape(text), []
    for number, one in enumerate(passes, start=1):
        rows = "".join(f"<pre>{row}</pre>" for row in _branches(one))
        emitted = [chip(one["words"][node], "kept") for node in one["path"]]
        emitted += [] if one["own"] is None else [chip(one["own"], "own")]
        shown.append(f"<p>Pass {number}. {_said(one)}</p>{rows}<pre>{before}{' '.join(emitted)}</pre>")
        before += " ".join(emitted) + " "
    return "".join(shown)


def _said(one: Mapping[str, Any]) -> str:
    drafted, accepted = one["drafted"], len(one["path"])
    tokens = "1 token is drafted" if drafted == 1 else f"{drafted} tokens are drafted"
    said = f"{tokens}, {accepted} accepted. "
    if one["own"] is None:
        return f"{said}The text ends inside the draft."
    own = name_of(one["own"])
    if not drafted:
        return f"Nothing is drafted. The target writes {own}, as in plain decoding."
    if accepted == drafted:
        return f"{said}The target adds {own}, the bonus token."
    return f"{said}The target adds {own}, so the pass emits {accepted + 1}."


def _branches(one: Mapping[str, Any]) -> list[str]:
    """The drafted branches, the accepted one first; what is not shown is counted."""
    parents, words, path = one["parents"], one["words"], one["path"]
    inner = {*parents}
    leaves = [node for node in range(len(parents)) if node not in inner]

    ways = sorted((path_to(leaf, parents) for leaf in leaves), key=lambda nodes: -sum(node in path for node in nodes))
    rows = [
        " ".join(
            chip(words[node], "kept" if node in path else "lost" if parents[node] in (-1, *path) else "open")
            for node in nodes
        )
        for nodes in ways[:BRANCHES]
    ]
    seen = {node for nodes in ways[:BRANCHES] for node in nodes}
    left = one["hidden"] + len(words) - len(seen)
    more = "1 more drafted token" if left == 1 else f"{left} more drafted tokens"
    return [*rows, f"and {more}"] if left else rows
