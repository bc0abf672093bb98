"""A generation that a reader steps through, pass by pass; without a script, the coloured text of its first prompt."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_lib.decoding.results import Generation, Step
from specdec_lib.drafters.pass_costs import CURVES, PassCosts
from specdec_lib.experiments.costs.measured_passes import units
from specdec_lib.experiments.data.published_numbers import published_draft_cost
from specdec_lib.methods import PLAIN, method_of
from specdec_lib.report import plots

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: Largest viewer in bytes of its data.
LIMIT = 250_000
#: Nodes of a draft that are kept, the accepted ones among them, and tokens of a prompt, its last ones.
NODES, PROMPT = 40, 200

_HERE = Path(__file__).parent
#: Names of the curves for readers, in the order in which they are offered.
_NAMES = {"cpu": "a processor", "gpu": "an assumed GPU", "server": "an assumed loaded server"}


class Stepper:
    """A viewer of the data of :func:`viewer_data`, for Jupyter and for the book; ``static`` is the HTML that is shown where no
    script runs, and on paper."""

    def __init__(self, data: dict[str, Any], static: str):
        # No "<", so that no text of a token can end the element that the data stand in.
        self.json = json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
        size = len(self.json.encode())
        if size > LIMIT:
            raise ValueError(
                f"the data of the stepper have {size:,d} bytes; expected at most {LIMIT:,d}: "
                "give it fewer prompts, fewer methods or shorter outputs"
            )
        self.data, self.static = data, static

    def to_html(self) -> str:
        """Return the viewer with all that it needs: nothing is fetched."""
        style, script = ((_HERE / f"stepper.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
        return (
            f'<style>{style}</style><div class="specdec-stepper tex2jax_ignore mathjax_ignore notranslate">'
            f'<div class="specdec-static">{self.static}</div>'
            f'<script type="application/json">{self.json}</script></div><script>{script}</script>'
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        lines = [
            f"{example['name']}, {run['method']}: {len(run['steps'])} passes"
            for example in self.data["examples"]
            for run in example["runs"]
        ]
        return {"text/plain": "\n".join(lines), "text/html": self.to_html()}


def stepper(
    runs: Mapping[str, Sequence[Generation]],
    tokenizer: PreTrainedTokenizerBase,
    prompts: Mapping[str, Sequence[int]],
    costs: Sequence[PassCosts] | None = None,
) -> Stepper:
    """Make a viewer of runs by method, one for each prompt; ``prompts`` has their token ids by the names that the reader chooses
    them by. The reader chooses among ``costs`` too, by default :data:`~specdec_lib.drafters.pass_costs.CURVES` with the published
    cost of a draft model's pass."""
    draft = published_draft_cost()
    usual = [replace(CURVES[key], name=name, drafted_token=draft) for key, name in _NAMES.items()]
    chosen = usual if costs is None else list(costs)
    if not runs or not prompts or not chosen:
        raise ValueError(
            f"{len(runs)} methods, {len(prompts)} prompts and {len(chosen)} costs; expected at least one of each"
        )
    for name, done in runs.items():
        if len(done) != len(prompts):
            raise ValueError(f"{name} has {len(done)} runs for {len(prompts)} prompts; expected one run for each")
    data = viewer_data(runs, tokenizer, prompts, chosen)
    first = next(iter(prompts))
    shown = tokenizer.decode(list(prompts[first])[-PROMPT:])
    views = [
        token_view(
            run, tokenizer, name, f"{name}: {len(run.steps)} passes for {len(run.tokens)} tokens ({first}).", shown
        )
        for name, (run, *_) in runs.items()
        if name != PLAIN or len(runs) == 1
    ]
    return Stepper(data, "".join(views))


def viewer_data(
    runs: Mapping[str, Sequence[Generation]],
    tokenizer: PreTrainedTokenizerBase,
    prompts: Mapping[str, Sequence[int]],
    costs: Sequence[PassCosts],
) -> dict[str, Any]:
    """Return what the viewer shows, of which JSON can be made.

    ``texts`` of the tokens, which all else names by their places; names of ``costs``; and ``examples``, each a prompt with its
    ``runs``. A step of a run has the nodes' tokens ``t``, their parents ``p`` unless it is a chain, the accepted nodes ``a``,
    the target's own token ``o`` (none at an end inside a draft), the width ``w`` of the pass, its costs ``c`` and those of
    drafting ``d`` (none for plain decoding); where there are such, scores ``s``, sources ``f``, the place ``k`` in prompt and
    output that the draft was copied from and the number ``h`` of nodes left out.
    """
    texts: dict[str, int] = {}

    def places(tokens: Sequence[int]) -> list[int]:
        return [texts.setdefault(tokenizer.decode([token]), len(texts)) for token in tokens]

    widest = max((step.width for done in runs.values() for run in done for step in run.steps), default=1)
    curves = [(cost, cost.curve(widest)) for cost in costs]
    examples = []
    for number, (name, prompt) in enumerate(prompts.items()):
        own = []
        for method, done in runs.items():
            run = done[number]
            steps = [_step(step, method, places, curves) for step in run.steps]
            color = plots.color(method)
            own.append({"method": method, "color": color, "first": places(run.tokens[:1]), "steps": steps})
        prompt = list(prompt)
        cut = max(0, len(prompt) - PROMPT)
        examples.append({"name": name, "prompt": places(prompt[cut:]), "cut": cut, "runs": own})
    return {"texts": list(texts), "costs": [cost.name for cost in costs], "examples": examples}


def _step(
    step: Step, name: str, places: Callable[[Sequence[int]], list[int]], curves: Sequence[tuple[PassCosts, Any]]
) -> dict[str, Any]:
    tree, method = step.tree, method_of(name)
    nodes = _nodes(step)
    place = {-1: -1} | {node: at for at, node in enumerate(nodes)}
    made: dict[str, Any] = {
        "t": places([tree.tokens[node] for node in nodes]),
        "a": [place[node] for node in step.path],
        "o": places(step.tokens[step.accepted :]),
        "w": step.width,
        "c": [round(float(curve[step.width - 1]), 4) for _, curve in curves],
    }
    if method is not None:
        each = [cost.drafted_token if method.network else cost.step for cost, _ in curves]
        made["d"] = [round(cost * units(method, step), 4) for cost in each]
    if not tree.is_chain:
        made["p"] = [place[tree.parents[node]] for node in nodes]
    if tree.scores is not None:
        made["s"] = [round(tree.scores[node], 2) for node in nodes]
    if tree.sources is not None:
        made["f"] = [str(tree.sources[node]) for node in nodes]
    if tree.copied_from is not None:
        made["k"] = tree.copied_from
    if len(nodes) < len(tree):
        made["h"] = len(tree) - len(nodes)
    return made


def _nodes(step: Step) -> list[int]:
    """The nodes that are kept: the accepted ones, and the first of the others, at most :data:`NODES` in all."""
    room, kept = NODES - len(step.path), {-1, *step.path}
    for node, parent in enumerate(step.tree.parents):
        if room > 0 and node not in kept and parent in kept:
            kept.add(node)
            room -= 1
    return sorted(kept - {-1})


# The text without a script: every token marked by who proposed it and by what became of it ------------------------

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
