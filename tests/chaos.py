"""Drafters for tests, and a factory for every drafter that the suites run."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from specdec_lib import AuxiliaryTokens, Capture, Context, Drafter, DraftTree, Outputs, Runtime, Sampling
from specdec_lib.datastores import DenseIndex, SuffixIndex
from specdec_lib.decoding.served_models import decoder_config
from specdec_lib.decoding.target import Target
from specdec_lib.decoding.tree import EMPTY
from specdec_lib.drafters import AdaptiveDraftModel, DraftModel, PromptLookup, Rest, SpecDecPP, stopping
from specdec_lib.drafters.eagle import Eagle
from specdec_lib.drafters.pass_costs import PassCosts
from specdec_lib.drafters.tree_probabilities import TreeProbabilities
from specdec_lib.heads.acceptance import AcceptanceHead
from specdec_lib.heads.drafting import KINDS, DraftHead
from specdec_lib.methods import METHODS, draft_length, tree_sources
from specdec_lib.models.draft_vocabulary import DraftVocabulary, draft_vocabulary
from specdec_lib.models.fingerprint import fingerprint
from tests.datastores.stores import build, dense, scratch
from tests.families import TEXT, VOCABULARY, Library, cut, prompt

TREE = DraftTree([5, 6, 7, 8, 9, 10, 11], [-1, -1, 0, 1, 3, 2, 4])


@torch.inference_mode()
def walk(
    model, capture: Capture, runtime: Runtime | None = None, start: int = 9, room: int = 60, passes: int = 6
) -> list:
    """A prompt, drafts that are committed in part, and a few tokens more; after each the text, logits, states and rows."""
    rng, text, seen = random.Random(1), prompt(2, start), []
    with Target(model, room, capture, capacity=10, runtime=runtime) as target:  # too small: it grows
        for step in range(passes + 2):
            if step in (0, passes + 1):
                new = prompt(3, 3) if step else []
                logits = target.extend(new or text)
            else:
                root, draft = rng.randrange(2, 90), DraftTree.chain([3, 4]) if step % 2 else TREE
                logits = target.verify(root, draft)
                path = draft.path(rng.randrange(-1, len(draft)))
                target.commit(path)
                new = [root, *(draft.tokens[node] for node in path)]
            text = text + new
            states = {layer: target.hidden(layer).clone() for layer in capture.layers}
            seen.append((text, logits.clone(), states, target.attention().clone() if capture.heads else None))
    return seen


class Chaos(Drafter):
    """Random trees with some of the true continuation in them, at random places: bushy, deep, not contiguous when committed.

    ``text`` is prompt and output of a plain run; there are at most ``branches`` wrong branches, each at most ``depth`` long.
    """

    def __init__(self, text: Sequence[int], seed: int = 0, branches: int = 6, depth: int = 5, capture=Capture()):
        self.text, self.seed, self.branches, self.depth, self.capture = list(text), seed, branches, depth, capture

    def start(self, context: Context) -> None:
        self._random = random.Random(self.seed)

    def propose(self, context: Context, limit: int) -> DraftTree:
        for layer in self.capture.layers:
            assert len(context.hidden(layer)) == len(context.tokens) - 1
        if self.capture.heads:
            assert context.attention().shape == (len(self.capture.heads), len(context.tokens) - 1)
        rng, done = self._random, len(context.tokens)
        assert context.tokens == self.text[:done]
        true = self.text[done : done + rng.randint(0, self.depth + 3)]
        drafts = [true]
        for _ in range(rng.randint(0, self.branches)):
            wrong = [rng.randrange(context.vocabulary) for _ in range(rng.randint(1, self.depth))]
            drafts.append(true[: rng.randint(0, len(true))] + wrong)
        # Also deeper than allowed at times: the loop cuts what could not be emitted.
        return shuffled(DraftTree.from_drafts(drafts), rng)


def shuffled(tree: DraftTree, rng: random.Random) -> DraftTree:
    """The tree with its nodes in a random order, each parent before its children."""
    place, waiting, order = {-1: -1}, list(range(len(tree))), []
    while waiting:
        node = rng.choice([node for node in waiting if tree.parents[node] in place])
        waiting.remove(node)
        place[node] = len(order)
        order.append(node)
    return DraftTree([tree.tokens[node] for node in order], [place[tree.parents[node]] for node in order])


class Riding(Chaos):
    """Chaos with random auxiliary tokens in every pass, at positions and with masks of their own."""

    def __init__(self, text: Sequence[int], seed: int = 0, most: int = 5, **options):
        super().__init__(text, seed, **options)
        self.most, self.capture, self.replays = most, self.capture | Capture(topk=2), "never"

    def propose(self, context: Context, limit: int) -> DraftTree:
        tree, rng = super().propose(context, limit), self._random
        count = rng.randint(0, self.most)
        tokens = [rng.randrange(context.vocabulary) for _ in range(count)]
        depths = [rng.randrange(300) if rng.random() < 0.1 else rng.randrange(9) for _ in range(count)]
        visible = np.random.default_rng(rng.randrange(2**32)).random((count, 1 + len(tree) + count)) < 0.5
        return tree.annotated(auxiliary=AuxiliaryTokens(tokens, depths, visible))

    def verified(self, tree: DraftTree, path: tuple[int, ...], outputs: Outputs) -> None:
        assert outputs.tokens.shape == outputs.logprobs.shape == (len(tree) + 1, 2)
        assert outputs.auxiliary_tokens.shape == (tree.width - len(tree) - 1, 2)


class Perfect(Drafter):
    """The true continuation as a chain: everything is accepted."""

    def __init__(self, text: Sequence[int], num_tokens: int = 7):
        self.text, self.num_tokens = list(text), num_tokens

    def propose(self, context: Context, limit: int) -> DraftTree:
        done = len(context.tokens)
        return DraftTree.chain(self.text[done : done + min(limit, self.num_tokens)])


class Silent(Drafter):
    """Proposes nothing."""

    def propose(self, context: Context, limit: int) -> DraftTree:
        return EMPTY


def everything(library: Library, family: str) -> Capture:
    """All states and some rows; rows are read under SDPA, and gemma2 runs eager attention."""
    rows = library[family].config._attn_implementation == "sdpa"
    return Capture(layers=(0, 1, 2), heads=((0, 1), (1, 3)) if rows else ())


class TextBench:
    """What a method may ask for (:class:`specdec_lib.methods.Workbench`), made for one plain run of a tiny random model.

    Stores hold ``text``, prompt and output of the run, and copies with some tokens changed: bushy trees, deep acceptance.
    """

    draft_runtime = None
    costs = PassCosts({1: 1.0, 64: 1.5}, drafted_token=0.05)
    layer, heads = 1, ((0, 1), (1, 3))

    def __init__(self, library: Library, family: str, text: Sequence[int], seed: int):
        self.library, self.family, self.text, self.seed = library, family, list(text), seed
        self.target, self.tokenizer = library[family], None

    @property
    def draft(self) -> PreTrainedModel:
        return self.library.draft(self.family)

    @property
    def acceptance_head(self) -> AcceptanceHead:
        return head_of(self.draft)

    def draft_heads(self, kind: str) -> DraftHead:
        return draft_heads_of(self.target, kind)

    @property
    def tree_probabilities(self) -> TreeProbabilities:
        return TreeProbabilities.unfitted(list(tree_sources(self)))

    def _documents(self, copies: int) -> list[list[int]]:
        rng, text = random.Random(self.seed), self.text
        return [text, *([rng.choice(text) if rng.random() < 0.1 else token for token in text] for _ in range(copies))]

    @property
    def sparse(self) -> SuffixIndex:
        with build(self._documents(30), max(self.text) + 1) as index:
            return index

    @property
    def dense(self) -> DenseIndex:
        with scratch() as folder:
            return dense(self._documents(8), self.target, folder, dims=16)

    def length(self, method: str) -> int:
        return draft_length(method, {"PLD+": 8})


def head_of(draft: PreTrainedModel, sees_confidence: bool = False) -> AcceptanceHead:
    """A head for ``draft`` with random weights, wide enough that its predictions differ from token to token."""
    torch.manual_seed(0)
    width = decoder_config(draft).hidden_size
    head = AcceptanceHead(width, 2, draft=fingerprint(draft), sees_confidence=sees_confidence)
    with torch.no_grad():
        head.out.weight *= 8
        head.out.bias += 2
    return head.eval()


def draft_heads_of(target: PreTrainedModel, kind: str) -> DraftHead:
    """Heads that draft for ``target``, with random weights; those of a depth begin near the last state, so that some of what
    they draft is right."""
    torch.manual_seed(0)
    heads = KINDS[kind].for_target(target)
    with torch.no_grad():
        for weights in heads.parameters():
            weights += 0.02 * torch.randn(weights.shape)
    return heads.eval()


def started(drafter: Drafter, tokens: Sequence[int], sampling: Sampling = Sampling()) -> Context:
    """What a drafter is shown that was started on a prompt."""
    context = Context(list(tokens), len(tokens), VOCABULARY, sampling)
    drafter.start(context)
    return context


#: Rules that need neither a head nor hindsight.
RULES: dict[str, Callable[[], stopping.StoppingRule]] = {
    "heuristic": lambda: stopping.Heuristic(3),
    "confidence": lambda: stopping.Confidence(0.3),
    "fitted confidence": lambda: stopping.FittedConfidence(0.3),
    "cumulative confidence": lambda: stopping.CumulativeConfidence(0.8),
    "entropy": lambda: stopping.Entropy(1.5),
}


@torch.inference_mode()
def greedy_agreement(draft: PreTrainedModel, start: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
    """Whether the draft's first choice is the target's token at each new position: bool array, shape (len(tokens),)."""
    known = draft_vocabulary(draft)
    ids = torch.tensor([known.to_draft([*start, *tokens])], device=draft.device)
    best = draft(ids, use_cache=False).logits[0, len(start) - 1 : -1, : len(known)].argmax(-1).tolist()
    return np.array(known.to_target(best)) == np.asarray(tokens)


#: Three of four tokens, for a draft with a vocabulary of its own.
CUT = [token for token in range(TEXT) if token % 4]

#: Methods with other settings than their rows', by method.
SETTINGS: dict[str, dict[str, Callable[[TextBench], Drafter]]] = {
    "PLD": {
        "PLD short": lambda bench: PromptLookup(2, 3),
        "PLD transformers": lambda bench: PromptLookup(2, 10, variant="transformers"),
    },
    "REST": {
        "REST from one token": lambda bench: Rest(bench.sparse, min_ngram=1),
        "REST random": lambda bench: Rest(bench.sparse, selection="random", length=8),
        "REST released": lambda bench: Rest(
            bench.sparse, min_ngram=1, subsample="uniform", max_matches=8, selection="released"
        ),
    },
    "SpecDec": {
        **{
            f"SpecDec {name}": lambda bench, rule=rule: AdaptiveDraftModel(bench.draft, rule())
            for name, rule in RULES.items()
        },
        "SpecDec silent": lambda bench: AdaptiveDraftModel(bench.draft, stopping.Confidence(0.4), min_tokens=0),
        "SpecDec cut vocabulary": lambda bench: DraftModel(cut(bench.draft, CUT), vocabulary=DraftVocabulary(CUT)),
    },
    "EAGLE": {"EAGLE likely": lambda bench: Eagle(bench.target, bench.draft_heads("eagle"), drawn=False)},
    "SpecDec++": {
        "SpecDec++ short": lambda bench: SpecDecPP(bench.draft, bench.acceptance_head, 0.7, 1, 6),
        "SpecDec++ newest": lambda bench: SpecDecPP(bench.draft, bench.acceptance_head, 0.7, 1, 6, True),
    },
}


#: ``factory(library, family, text, seed)`` makes a drafter; ``text`` is prompt and output of the plain run. Every method that
#: claims to be lossless is among them, and drafters of these suites alone.
FACTORIES: dict[str, Callable[[Library, str, Sequence[int], int], object]] = {
    **{
        name: lambda library, family, text, seed, make=make: make(TextBench(library, family, text, seed))
        for method in METHODS.values()
        if method.exact != "lossy"
        for name, make in {method.name: method.make, **SETTINGS.get(method.name, {})}.items()
    },
    "chaos": lambda library, family, text, seed: Chaos(text, seed),
    "chaos watching": lambda library, family, text, seed: Chaos(text, seed + 1, capture=everything(library, family)),
    "chaos riding": lambda library, family, text, seed: Riding(text, seed + 2),
    "perfect": lambda library, family, text, seed: Perfect(text),
    "silent": lambda library, family, text, seed: Silent(),
}
#: Those whose tokens come with probabilities where the target samples: equal in distribution only.
SAMPLING = {
    name
    for method in METHODS.values()
    if method.exact == "in distribution"
    for name in (method.name, *SETTINGS.get(method.name, {}))
} - {"EAGLE likely"}


class CountingClock:
    """A device's clock whose moments are known only once it was waited for; each mark comes ``step`` seconds later."""

    def __init__(self, step: float = 1.0):
        self.step, self.marks, self.settled = step, 0, 0

    def mark(self) -> int:
        self.marks += 1
        return self.marks

    def settle(self) -> None:
        self.settled = self.marks

    def seconds(self, start: int, end: int) -> float:
        assert end <= self.settled, "the clock is read before the device was waited for"
        return self.step * (end - start)
