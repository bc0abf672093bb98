"""A generation that a reader steps through, pass by pass; without a script, the coloured text of its first prompt."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_lib.decoding.results import Generation, Step
from specdec_lib.drafters.pass_prices import CURVES, PassPrices
from specdec_lib.experiments.pass_widths import units
from specdec_lib.experiments.published_numbers import published_draft_price
from specdec_lib.methods import PLAIN, method_of
from specdec_lib.report import plots
from specdec_lib.report.display.token_views import token_view

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: Largest viewer in bytes of its data.
LIMIT = 250_000
#: Nodes of a draft that are kept, the accepted ones among them, and tokens of a prompt, its last ones.
NODES, PROMPT = 40, 200

_HERE = Path(__file__).parent
#: Names of the curves for readers, in the order in which they are offered.
_NAMES = {"cpu": "a processor", "gpu": "a GPU", "server": "a loaded server"}


def usual_prices() -> list[PassPrices]:
    """The curves of :data:`specdec_lib.drafters.pass_prices.CURVES`, with the published price of a draft model's pass."""
    draft = published_draft_price()
    return [replace(CURVES[key], name=name, drafted_token=draft) for key, name in _NAMES.items()]


class Stepper:
    """A viewer of the data of :func:`stepped`, for Jupyter and for the book; ``static`` is the HTML that is shown where no
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
    prices: Sequence[PassPrices] | None = None,
) -> Stepper:
    """Make a viewer of runs by method, one for each prompt; ``prompts`` has their token ids by the names that the reader chooses
    them by. The reader chooses among ``prices`` too, :func:`usual_prices` by default."""
    chosen = usual_prices() if prices is None else list(prices)
    if not runs or not prompts or not chosen:
        raise ValueError(
            f"{len(runs)} methods, {len(prompts)} prompts and {len(chosen)} prices; expected at least one of each"
        )
    for name, done in runs.items():
        if len(done) != len(prompts):
            raise ValueError(f"{name} has {len(done)} runs for {len(prompts)} prompts; expected one run for each")
    data = stepped(runs, tokenizer, prompts, chosen)
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


def stepped(
    runs: Mapping[str, Sequence[Generation]],
    tokenizer: PreTrainedTokenizerBase,
    prompts: Mapping[str, Sequence[int]],
    prices: Sequence[PassPrices],
) -> dict[str, Any]:
    """Return what the viewer shows, of which JSON can be made.

    ``texts`` of the tokens, which all else names by their places; names of ``prices``; and ``examples``, each a prompt with its
    ``runs``. A step of a run has the nodes' tokens ``t``, their parents ``p`` unless it is a chain, the accepted nodes ``a``,
    the target's own token ``o`` (none at an end inside a draft), the width ``w`` of the pass, its prices ``c`` and those of
    drafting ``d`` (none for plain decoding); where there are such, scores ``s``, sources ``f``, the place ``k`` in prompt and
    output that the draft was copied from and the number ``h`` of nodes left out.
    """
    texts: dict[str, int] = {}

    def places(tokens: Sequence[int]) -> list[int]:
        return [texts.setdefault(tokenizer.decode([token]), len(texts)) for token in tokens]

    widest = max((step.width for done in runs.values() for run in done for step in run.steps), default=1)
    curves = [(price, price.curve(widest)) for price in prices]
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
    return {"texts": list(texts), "prices": [price.name for price in prices], "examples": examples}


def _step(
    step: Step, name: str, places: Callable[[Sequence[int]], list[int]], curves: Sequence[tuple[PassPrices, Any]]
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
        each = [price.drafted_token if method.network else price.step for price, _ in curves]
        made["d"] = [round(price * units(method, step), 4) for price in each]
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
