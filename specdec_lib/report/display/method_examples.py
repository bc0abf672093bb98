"""Small examples, one a method, computed by the library's own drafters: what the pictures of the method pages show."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from specdec_lib import Generation, Sampling, generate, paths
from specdec_lib.datastores.build import build_tokens
from specdec_lib.datastores.dense import build_dense_index
from specdec_lib.datastores.reduction import fit_transform
from specdec_lib.datastores.states import ArrayStates
from specdec_lib.datastores.suffix_array import build_suffix_array
from specdec_lib.decoding.acceptance import exact_match, residual
from specdec_lib.decoding.contract import LAST, Capture, Context
from specdec_lib.decoding.sampling import distribution
from specdec_lib.decoding.target import Target
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.drafters import (
    AdaptiveDraftModel,
    DraftModel,
    Dresd,
    PromptLookup,
    PromptLookupAttention,
    PromptLookupHidden,
    Rest,
)
from specdec_lib.drafters.stopping import PredictedRejection, Round
from specdec_lib.experiments.recorded_runs import load_pair
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.heads.acceptance import AcceptanceHead
from specdec_lib.heads.induction import identify
from specdec_lib.methods import METHODS

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

CODE = """def old(text):
    return text.lower()

def new(text, size):
    return text[:size]

def new(text, size):
    return text"""
"""The text of the copying methods. It ends like two places before it, which go on in two ways."""

SENTENCES = (
    "open the file and read it",
    "open the file and read all",
    "open the file and close it",
    "open the file and read it",
    "open the file with care",
    "open the file by name",
    "close the file and go",
)
"""The documents of REST's store."""

LINES = (
    "for name in names:\n    print(name)",
    "for name in names:\n    total += len(name)",
    "for line in lines:\n    print(line)",
    "for item in self.items:\n    item.close()",
    "for key in self.keys:\n    print(key, self[key])",
    "if name in names:\n    return name",
    "with open(name) as file:\n    return file.read()",
    "while True:\n    line = file.readline()",
)
"""The documents of DReSD's store."""

ASKED = "for name in lines:\n    print"
"""The text behind which DReSD drafts."""


CONTINUED = {"functions that repeat": CODE, "a new loop": ASKED}
"""The texts that the reader of a method page steps through."""


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
def bench() -> ModelPair:
    """What the methods are built from for the pocket pair, with stores of a few documents' text."""
    return ModelPair.untuned(*pocket())


@dataclass(frozen=True)
class Words:
    """A vocabulary of whole words."""

    words: tuple[str, ...]

    @classmethod
    def of(cls, *texts: str) -> Words:
        """The words of some texts, in order of first appearance."""
        return cls(tuple(dict.fromkeys(word for text in texts for word in text.split())))

    def encode(self, text: str) -> list[int]:
        """Ids of the words of a text."""
        return [self.words.index(word) for word in text.split()]


def _draft(drafter, tokens: list[int], vocabulary: int, limit: int, **shown) -> DraftTree:
    """What a drafter proposes behind ``tokens``."""
    context = Context(tokens, len(tokens), vocabulary, Sampling(), **shown)
    drafter.start(context)
    return drafter.propose(context, limit)


def _kept(tree: DraftTree, own: Sequence[int]) -> tuple[tuple[int, ...], int | None]:
    """Nodes that a target accepts whose tokens are ``own``, and the token it adds."""
    following = dict(enumerate(own))
    path, token = exact_match(tree, lambda node, before: following.get(len(before)), ())
    return tuple(path), token


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
    weights : tuple of int
        Of each node: stored continuations that pass through it; empty where there is no store.
    matched : int
        Words of the context that were found in the store.
    drafted : int, optional
        So many nodes are drafted, the first ones; all by default.
    hidden : int
        Drafted nodes that are left out of the picture.
    """

    tree: DraftTree
    words: tuple[str, ...]
    root: str
    path: tuple[int, ...]
    own: str
    weights: tuple[int, ...] = ()
    matched: int = 0
    drafted: int | None = None
    hidden: int = 0


def drafted(name: str, most: int = 12, longest: int = 4) -> Verified:
    """What a method drafts for the pocket target at one place after :data:`CODE`, and what the target makes of it.

    Parameters
    ----------
    name : str
        Of :data:`specdec_lib.methods.METHODS`.
    most : int
        So many nodes that the target refuses are shown, the first ones.
    longest : int
        A pass with at most so many accepted tokens is preferred, so that the picture fits the page.

    Raises
    ------
    LookupError
        If no pass accepts anything.
    """
    target, _, tokenizer = pocket()
    drafter = METHODS[name].make(bench())
    prompt = tokenizer(CODE)["input_ids"]
    run = generate(target, prompt, drafter, max_new_tokens=96, eos_token_id=())
    accepting = [step for step in run.steps if step.accepted]
    if not accepting:
        raise LookupError(f"no draft of {name} is accepted here: draw its picture by hand in method_pictures.PICTURES")
    # One that also refuses something shows most.
    step = max(accepting, key=lambda step: (step.accepted < step.drafted, -max(step.accepted, longest), step.accepted))
    number, before = _round(run, lambda other: other is step)
    # Prefixes that a batch of drafts verifies several times are drawn once.
    drafts = [[step.tree.tokens[n] for n in step.tree.path(node)] for node in range(len(step.tree))]
    tree, depth, shown = DraftTree.from_drafts(drafts), step.accepted + 1, []
    kept, last = [], -1
    for node in step.path:
        last = tree.child(last, step.tree.tokens[node])
        kept.append(last)
    for node, parent in enumerate(tree.parents):
        refused = len(shown) - sum(node in kept for node in shown)
        if node in kept or (refused < most and tree.depths[node] <= depth and parent in (-1, *shown)):
            shown.append(node)
    place = {-1: -1} | {node: i for i, node in enumerate(shown)}
    part = DraftTree([tree.tokens[node] for node in shown], [place[tree.parents[node]] for node in shown])
    root = [*prompt, *run.tokens[:before]][-1]
    words = tuple(tokenizer.decode([token]) for token in part.tokens)
    path = tuple(place[node] for node in kept)
    own = tokenizer.decode([step.tokens[-1]])
    return Verified(part, words, tokenizer.decode([root]), path, own, hidden=len(tree) - len(shown))


def generations(names: Sequence[str], tokens: int = 48) -> tuple[dict[str, list[Generation]], dict[str, list[int]]]:
    """What the pocket target writes after each text of :data:`CONTINUED` under some methods, greedily: the runs by method, and
    the tokens of the texts by name. Every drafter starts each text knowing nothing of the others."""
    tokenizer = pocket().tokenizer
    prompts = {name: tokenizer(text)["input_ids"] for name, text in CONTINUED.items()}
    return {name: _continued(name, tokens) for name in names}, prompts


@functools.cache  # every method page shows plain decoding
def _continued(name: str, tokens: int) -> list[Generation]:
    """The runs of one method after each text of :data:`CONTINUED`."""
    target, _, tokenizer = pocket()
    drafter = METHODS[name].make(bench()) if name in METHODS else None
    runs = []
    for text in CONTINUED.values():
        if drafter is not None:
            drafter.reset()
        prompt = tokenizer(text)["input_ids"]
        runs.append(generate(target, prompt, drafter, max_new_tokens=tokens, eos_token_id=()))
    return runs


def verifier() -> Verified:
    """Three drafts in one tree, behind the word "the"."""
    drafts, own = ("mat and slept", "mat while it", "sofa all day"), "mat while she slept"
    words = Words.of("the", own, *drafts)
    tree = DraftTree.from_drafts(map(words.encode, drafts))
    path, token = _kept(tree, words.encode(own))
    return Verified(tree, tuple(words.words[t] for t in tree.tokens), "the", path, words.words[token])


@dataclass(frozen=True)
class Copied:
    """A text and what copying methods draft behind it.

    Attributes
    ----------
    pieces : tuple of str
        The tokens of the text and, behind them, those that the target writes next.
    end : int
        Number of pieces that are the text.
    sources : dict of str to int
        By method: the position its draft is copied from.
    lengths, accepted : dict of str to int
        By method: tokens drafted, and accepted.
    scores : dict of str to tuple of float
        By method that ranks: one number a candidate.
    candidates : tuple of int
        Positions of earlier occurrences of the last token.
    """

    pieces: tuple[str, ...]
    end: int
    sources: dict[str, int]
    lengths: dict[str, int]
    accepted: dict[str, int]
    scores: dict[str, tuple[float, ...]]
    candidates: tuple[int, ...] = ()


def _copied(tokens: list[int], drafters: dict, scores: dict, candidates: Sequence[int], **shown) -> Copied:
    target, _, tokenizer = pocket()
    own = generate(target, tokens, max_new_tokens=8, eos_token_id=[]).tokens
    trees = {name: _draft(d, tokens, len(tokenizer), 6, **shown) for name, d in drafters.items()}
    return Copied(
        tuple(tokenizer.decode([t]) for t in [*tokens, *own]),
        len(tokens),
        {name: d.source for name, d in drafters.items()},
        {n: len(tree) for n, tree in trees.items()},
        {name: len(_kept(tree, own)[0]) for name, tree in trees.items()},
        scores,
        tuple(candidates),
    )


def prompt_lookup() -> Copied:
    """PLD in the head of the third function, which stands above as well."""
    tokens = pocket().tokenizer(CODE[: CODE.rindex("):")])["input_ids"]
    return _copied(tokens, {"PLD": PromptLookup(num_tokens=6)}, {}, ())


def prompt_lookup_plus(layer: int = 4, heads: int = 4) -> Copied:
    """PLD and both variants of PLD+ at the end of :data:`CODE`, by the pocket target's states and attention."""
    target, _, tokenizer = pocket()
    tokens = tokenizer(CODE)["input_ids"]
    places = [j for j in range(1, len(tokens) - 1) if tokens[j] == tokens[-1]]
    chosen = tuple(identify(target, [tokens], max_new_tokens=32, progress=False).top(heads))
    with torch.inference_mode(), Target(target, len(tokens), Capture((layer,), chosen)) as run:
        run.extend(tokens[:-1])
        states, rows = run.hidden(layer).clone(), run.attention().clone()
    near = torch.cosine_similarity(states[[j - 1 for j in places]], states[-1:], dim=-1)
    drafters = {
        "PLD": PromptLookup(num_tokens=6),
        "PLD+ (h)": PromptLookupHidden(layer, 6),
        "PLD+ (a)": PromptLookupAttention(chosen, 6),
    }
    scores = {"PLD+ (h)": tuple(near.tolist()), "PLD+ (a)": tuple(rows[:, places].amax(0).tolist())}
    return _copied(tokens, drafters, scores, places, hidden=lambda _: states, attention=lambda: rows)


def rest(choices: int = 6) -> Verified:
    """REST behind "please open the file", in the store of :data:`SENTENCES`: the whole trie, best nodes first."""
    words = Words.of("please twice", *SENTENCES)
    context = words.encode("please open the file")
    with tempfile.TemporaryDirectory() as folder:
        store = build_tokens(
            Path(folder) / "store", [words.encode(s) for s in SENTENCES], len(words.words), progress=False
        )
        index = build_suffix_array(store, progress=False)
        trie, tree = (_draft(Rest(index, choices=c, length=3), context, len(words.words), 3) for c in (64, choices))
        match = index.longest(context)
        texts = [store.continuation(int(place) + 1, 3) for place in index.positions(match)]
    if trie.tokens[:choices] != tree.tokens:
        raise LookupError("the nodes of the smaller draft are not the first of the larger one")
    paths = [[trie.tokens[i] for i in trie.path(node)] for node in range(len(trie))]
    weights = tuple(sum(text[: len(path)] == path for text in texts) for path in paths)
    path, token = _kept(tree, words.encode("and read it twice"))
    return Verified(
        trie,
        tuple(words.words[t] for t in trie.tokens),
        "file",
        path,
        words.words[token],
        weights,
        match.length,
        choices,
    )


@dataclass(frozen=True)
class Neighbours:
    """DReSD's keys in two dimensions.

    Attributes
    ----------
    keys : float array, shape (n, 2)
        Of the stored states.
    query : float array, shape (2,)
        Key of the current state.
    following : tuple of str
        The token after each stored state.
    nearest : tuple of int
        Rows of the neighbours found, nearest first.
    kept : tuple of int
        Those whose token is the last emitted one.
    last : str
        The last emitted token.
    drafts : tuple of tuple of str
    """

    keys: np.ndarray
    query: np.ndarray
    following: tuple[str, ...]
    nearest: tuple[int, ...]
    kept: tuple[int, ...]
    last: str
    drafts: tuple[tuple[str, ...], ...]


@torch.inference_mode()
def dresd(neighbours: int = 8) -> Neighbours:
    """DReSD behind :data:`ASKED`, in the store of :data:`LINES` with keys of two dimensions."""
    target, _, tokenizer = pocket()
    context, *documents = (tokenizer(text)["input_ids"] for text in (ASKED, *LINES))
    states = []
    for tokens in (context, *documents):
        with Target(target, len(tokens), Capture((LAST,))) as run:
            run.extend(tokens)
            # A state is kept with the token that follows it; the last one has none.
            states.append(run.hidden(LAST)[:-1].clone())
    own, rows = states[0], torch.cat(states[1:]).numpy()
    with tempfile.TemporaryDirectory() as folder:
        store = build_tokens(Path(folder) / "store", documents, len(tokenizer), progress=False)
        places = np.concatenate(
            [
                np.arange(int(start) + 1, int(start) + len(tokens))
                for start, tokens in zip(store.starts, documents, strict=False)
            ]
        )
        index = build_dense_index(Path(folder) / "dense", ArrayStates(places, rows), store, dims=2, progress=False)
        drafter = Dresd(index, drafts=3, length=4, neighbours=neighbours)
        tree = _draft(drafter, context, len(tokenizer), 4, hidden=lambda _: own)
        nearest = index.search_rows(own[-1:], neighbours)[1][0].tolist()
        following = [int(store.tokens[place]) for place in places]
    reduction = fit_transform(rows, 2)
    leaves = sorted(set(range(len(tree))) - set(tree.parents))
    drafts = tuple(tuple(tokenizer.decode([tree.tokens[n]]) for n in tree.path(leaf)) for leaf in leaves)
    return Neighbours(
        reduction.apply(rows),
        reduction.apply(own[-1:].numpy())[0],
        tuple(tokenizer.decode([token]) for token in following),
        tuple(nearest),
        tuple(row for row in nearest if following[row] == context[-1]),
        tokenizer.decode([context[-1]]),
        drafts,
    )


@dataclass(frozen=True)
class Refusal:
    """One round of a sampled draft model that ends in a refusal.

    Attributes
    ----------
    words : tuple of str
        The drafted tokens.
    p, q : tuple of float
        Probability of each under target and draft model.
    accepted : int
        Tokens accepted; the next one was refused.
    own : str
        What the target put in its place.
    shown : tuple of str
        The tokens that are likeliest at the refused place, by either model.
    rows : dict of str to tuple of float
        Their probabilities by "target", "draft model" and "residual".
    """

    words: tuple[str, ...]
    p: tuple[float, ...]
    q: tuple[float, ...]
    accepted: int
    own: str
    shown: tuple[str, ...]
    rows: dict[str, tuple[float, ...]]


def _round(run: Generation, fits) -> tuple[int, int]:
    """The first step of a run that fits, and the number of tokens emitted before it."""
    before = 1
    for number, step in enumerate(run.steps):
        if fits(step):
            return number, before
        before += len(step.tokens)
    raise LookupError("no round of the example is of the kind to be shown; choose another prompt or seed")


@torch.inference_mode()
def rejection(num_tokens: int = 4, likeliest: int = 5) -> Refusal:
    """SpecDec behind :data:`CODE`: the first round that accepts two tokens or more and refuses one."""
    target, draft, tokenizer = pocket()
    prompt, sampling = tokenizer(CODE)["input_ids"], Sampling(1.0, seed=2)
    run = generate(target, prompt, DraftModel(draft, num_tokens), sampling, 64, ())
    number, before = _round(run, lambda step: 2 <= step.accepted < step.drafted)
    step = run.steps[number]
    text = [*prompt, *run.tokens[:before], *step.tree.tokens]
    p, q = (
        distribution(model(torch.tensor([text])).logits[0, -num_tokens - 1 : -1], sampling) for model in (target, draft)
    )
    at = torch.arange(num_tokens), torch.tensor(step.tree.tokens)
    lost = step.accepted
    left = residual(p[lost], q[lost])
    order = torch.maximum(p[lost], q[lost]).argsort(descending=True).tolist()
    shown = [t for t in order if t in order[:likeliest] or t in (step.tokens[-1], step.tree.tokens[lost])]
    decode = tokenizer.decode
    rows = {
        name: tuple(values[shown].tolist())
        for name, values in (("target", p[lost]), ("draft model", q[lost]), ("residual", left))
    }
    return Refusal(
        tuple(decode([t]) for t in step.tree.tokens),
        tuple(p[at].tolist()),
        tuple(q[at].tolist()),
        lost,
        decode([step.tokens[-1]]),
        tuple(decode([t]) for t in shown),
        rows,
    )


class _Noted(PredictedRejection):
    """The paper's rule, which keeps what it saw of each round."""

    def __init__(self, threshold: float):
        super().__init__(threshold)
        self.rounds: list[tuple[Round, int]] = []

    def verified(self, drafted: Round, accepted: int) -> None:
        self.rounds.append((drafted, accepted))


@dataclass(frozen=True)
class Stopped:
    """One round of SpecDec++.

    Attributes
    ----------
    words : tuple of str
        The drafted tokens.
    acceptance : tuple of float
        Predicted for each but the last, which is submitted unjudged.
    accepted : int
    threshold : float
    """

    words: tuple[str, ...]
    acceptance: tuple[float, ...]
    accepted: int
    threshold: float


def stopping(threshold: float = 0.7) -> Stopped:
    """SpecDec++ behind :data:`CODE`: the longest round that the threshold ended."""
    target, draft, tokenizer = pocket()
    head = AcceptanceHead.load(paths.POCKET / "head" / "acceptance.safetensors", draft)
    rule = _Noted(threshold)
    run = generate(
        target,
        tokenizer(CODE)["input_ids"],
        AdaptiveDraftModel(draft, rule, 2, 20, head),
        max_new_tokens=96,
        eos_token_id=(),
    )
    ended = [number for number, (drafted, _) in enumerate(rule.rounds) if rule.stop(drafted)]
    longest = max(ended, key=lambda number: rule.rounds[number][0].count)
    (drafted, accepted), tokens = rule.rounds[longest], run.steps[longest].tree.tokens
    return Stopped(tuple(tokenizer.decode([t]) for t in tokens), tuple(drafted.acceptance), accepted, threshold)
