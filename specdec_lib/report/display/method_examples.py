"""Small runs, one a method, by the library's own drafters: what the pictures and the viewers of the method pages show."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from specdec_lib import Generation, generate
from specdec_lib.decoding.acceptance import exact_match
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.experiments.recorded_runs import load_pair
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.methods import METHODS

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

CODE = """def old(text):
    return text.lower()

def new(text, size):
    return text[:size]

def new(text, size):
    return text"""

CONTINUED = {"functions that repeat": CODE, "a new loop": "for name in lines:\n    print"}
"""The texts that the reader of a method page steps through; the picture is of the first."""


class Pocket(NamedTuple):
    """The models that the examples run."""

    target: PreTrainedModel
    draft: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


@functools.cache
def pocket() -> Pocket:
    """The pocket pair, loaded once."""
    return Pocket(*load_pair("pocket", "pocket-draft"))


@functools.cache
def _bench() -> ModelPair:
    """What the methods are built from for the pocket pair, with small stores."""
    return ModelPair.untuned(*pocket())


def generations(names: Sequence[str]) -> tuple[dict[str, list[Generation]], dict[str, list[int]]]:
    """What the pocket target writes after each text of :data:`CONTINUED` under some methods, greedily: the runs by method, and
    the tokens of the texts by name. Every drafter starts each text knowing nothing of the others."""
    tokenizer = pocket().tokenizer
    prompts = {name: tokenizer(text)["input_ids"] for name, text in CONTINUED.items()}
    return {name: _continued(name) for name in names}, prompts


@functools.cache  # every method page shows plain decoding
def _continued(name: str, tokens: int = 48) -> list[Generation]:
    """The runs of one method after each text of :data:`CONTINUED`."""
    target, _, tokenizer = pocket()
    drafter = METHODS[name].make(_bench()) if name in METHODS else None
    runs = []
    for text in CONTINUED.values():
        if drafter is not None:
            drafter.reset()
        prompt = tokenizer(text)["input_ids"]
        runs.append(generate(target, prompt, drafter, max_new_tokens=tokens, eos_token_id=()))
    return runs


@dataclass(frozen=True)
class Verified:
    """A tree and what one verification made of it.

    Attributes
    ----------
    tree : DraftTree
    words : tuple of str
        Of each node.
    root : str
        The last emitted word.
    path : tuple of int
        Nodes accepted.
    own : str
        What the target adds.
    hidden : int
        Drafted nodes that are left out of the picture.
    """

    tree: DraftTree
    words: tuple[str, ...]
    root: str
    path: tuple[int, ...]
    own: str
    hidden: int = 0


def drafted(name: str, most: int = 12, longest: int = 4) -> Verified:
    """The pass that shows most of a method's run after :data:`CODE`: one that also refuses something, and that accepts at most
    ``longest`` tokens, so that it fits the page. ``most`` refused nodes are shown, the first ones. LookupError if no pass
    accepts anything."""
    tokenizer, run = pocket().tokenizer, _continued(name)[0]
    accepting = [number for number, step in enumerate(run.steps) if step.accepted]
    if not accepting:
        raise LookupError(f"no draft of {name} is accepted after the text of the picture: {CODE!r}")

    def worth(number: int) -> tuple[bool, int, int]:
        accepted = run.steps[number].accepted
        return accepted < run.steps[number].drafted, -max(accepted, longest), accepted

    number = max(accepting, key=worth)
    step = run.steps[number]
    emitted = 1 + sum(len(before.tokens) for before in run.steps[:number])
    # Prefixes that a batch of drafts verifies several times are drawn once.
    tree = DraftTree.from_drafts(
        [[step.tree.tokens[n] for n in step.tree.path(node)] for node in range(len(step.tree))]
    )
    kept = [-1]
    for node in step.path:
        kept.append(tree.child(kept[-1], step.tree.tokens[node]))
    place, refused = {-1: -1}, 0
    for node, parent in enumerate(tree.parents):
        fits = refused < most and tree.depths[node] <= step.accepted + 1 and parent in place
        if node in kept or fits:
            place[node] = len(place) - 1
            refused += node not in kept
    shown = [node for node in place if node >= 0]
    part = DraftTree([tree.tokens[node] for node in shown], [place[tree.parents[node]] for node in shown])
    return Verified(
        part,
        tuple(tokenizer.decode([token]) for token in part.tokens),
        tokenizer.decode([run.tokens[emitted - 1]]),
        tuple(place[node] for node in kept[1:]),
        tokenizer.decode([step.tokens[-1]]),
        len(tree) - len(shown),
    )


def verifier() -> Verified:
    """Three drafts of whole words in one tree after the word "the", where the target writes "mat while she"."""
    drafts = [draft.split() for draft in ("mat and slept", "mat while it", "sofa all day")]
    own = ["mat", "while", "she"]
    words = [*dict.fromkeys(word for draft in (*drafts, own) for word in draft)]
    tree = DraftTree.from_drafts([[words.index(word) for word in draft] for draft in drafts])
    path, token = exact_match(tree, lambda node, before: words.index(own[len(before)]), ())
    return Verified(tree, tuple(words[one] for one in tree.tokens), "the", tuple(path), words[token])
