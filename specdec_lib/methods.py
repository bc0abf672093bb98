"""The one table of methods: what each is called, how it is built for a pair of models, what it needs and what drafting costs.

A new method is a drafter in a file of its own and one row of :data:`METHODS`, which comparisons and the losslessness suite read.
How the book shows it stands in ``specdec_lib.report.appearance``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.datastores import SuffixIndex
from specdec_lib.decoding.contract import Drafter
from specdec_lib.decoding.runtime import Runtime
from specdec_lib.drafters import (
    AdaptiveDraftModel,
    DraftModel,
    Dresd,
    Lookahead,
    PromptLookup,
    PromptLookupAttention,
    PromptLookupHidden,
    Rest,
    SamDecoding,
    SpecDecPP,
    SuffixDecoding,
    TokenRecycling,
)
from specdec_lib.drafters.eagle import Eagle
from specdec_lib.drafters.eagle2 import Eagle2
from specdec_lib.drafters.hydra import Hydra
from specdec_lib.drafters.medusa import Medusa
from specdec_lib.drafters.one_tree import OneTree, WorthItsCost
from specdec_lib.drafters.pass_costs import PassCosts
from specdec_lib.drafters.sam_decoding import LEVELS as SAM_LEVELS
from specdec_lib.drafters.stopping import Confidence
from specdec_lib.drafters.token_recycling import levels_for
from specdec_lib.drafters.tree_probabilities import TreeProbabilities
from specdec_lib.heads.acceptance import AcceptanceHead
from specdec_lib.heads.drafting import DraftHead
from specdec_lib.lazy import former_attribute, former_keywords

#: Plain decoding, which every method is compared with: its name, also in recorded values.
PLAIN = "plain"


class Unavailable(LookupError):
    """What a method needs is not there for these models; the message says what."""


class Workbench(Protocol):
    """What a method may ask for when it is built for a pair of models (``specdec_lib.experiments.workbench.ModelPair``).

    Attributes are built on first access; a missing one raises :class:`Unavailable`. ``sparse`` is a
    datastore of text, ``dense`` an index of the target's states or what searches like one, ``layer`` the layer whose states
    tell best where to copy from, ``heads`` are the target's induction heads as (block, head), ``costs`` those of passes of
    target and draft model; ``tree_probabilities`` name what one tree drafts from.
    """

    target: PreTrainedModel
    draft: PreTrainedModel | None
    tokenizer: PreTrainedTokenizerBase
    draft_runtime: Runtime | None
    sparse: SuffixIndex
    dense: Any
    layer: int
    heads: Sequence[tuple[int, int]]
    acceptance_head: AcceptanceHead
    costs: PassCosts
    tree_probabilities: TreeProbabilities

    def draft_heads(self, kind: str) -> DraftHead:
        """Heads of a kind of :data:`specdec_lib.heads.drafting.KINDS` that were trained for the target."""
        ...

    def length(self, method: str) -> int:
        """Draft length of a method, K: what was asked for, or the row's own (:func:`draft_length`)."""
        ...


Maker = Callable[[Workbench], Drafter]
#: Builds a drafter whose widest pass has about so many tokens.
SizedMaker = Callable[[Workbench, int], Drafter]


@former_keywords(price="cost_per")
@dataclass(frozen=True)
class Method:
    """A row of :data:`METHODS`."""

    #: In tables and legends, where a variant is ``"name, variant"``.
    name: str
    #: What it drafts, in one sentence.
    about: str
    drafter: type[Drafter]
    make: Maker
    #: Whether a sampled output is that of plain decoding token for token, follows the same distribution, or neither. A greedy
    #: output is that of plain decoding unless the method is lossy.
    exact: Literal["exact", "in distribution", "lossy"] = "exact"
    #: Whether drafting costs a time for each step, for each drafted token or for each level of the tree.
    cost_per: Literal["step", "token", "level"] = "step"
    #: Draft length K where none is asked for; None for drafts that are not limited by a K.
    length: int | None = None
    #: Whether it is measured without or with what it learned from earlier prompts of the same measurement.
    state: Literal["cold", "warm"] = "cold"
    #: Further makers by full name, which the ``losslessness`` command compares too.
    variants: Mapping[str, Maker] = field(default_factory=dict)
    #: Builds it for passes of at most about ``width`` tokens, the root's included, as ``sized(bench, width)``, which is how
    #: a caller asks for the width that pays. None for drafts of one shape.
    sized: SizedMaker | None = None
    #: Whether drafting runs a network, whose passes cost something next to the target's.
    network: bool = False
    #: What a user must have: nothing but the model, text like the answers, a draft model, heads that were trained for the model,
    #: or several of these.
    needs: Literal["nothing", "text", "draft", "training", "several"] = "nothing"
    price = former_attribute("cost_per")


def _draft(bench: Workbench) -> PreTrainedModel:
    if bench.draft is None:
        raise Unavailable("a draft model")
    return bench.draft


#: Sources of one tree that draft more than their rows do: how much of it is verified is decided by the tree.
_GENEROUS: dict[str, Maker] = {
    "PLD": lambda bench: PromptLookup(3, 70, variant="transformers"),
    "PLD+ (h)": lambda bench: PromptLookupHidden(bench.layer, 70),
    "REST": lambda bench: Rest(bench.sparse, choices=64, min_ngram=1),
    "SpecDec": lambda bench: AdaptiveDraftModel(
        _draft(bench), WorthItsCost(), min_tokens=0, max_tokens=10, runtime=bench.draft_runtime
    ),
}
#: What one tree drafts from unless other sources are named.
TREE_SOURCES = tuple(_GENEROUS)


def check_sources(names: Collection[str]) -> None:
    """Reject names that one tree cannot draft from."""
    possible = [row.name for row in _ROWS if not issubclass(row.drafter, OneTree | Lookahead)]
    for name in names:
        if name not in possible:
            raise ValueError(f"one tree cannot draft from {name!r}; expected some of {', '.join(possible)}")


def tree_sources(bench: Workbench, names: Collection[str] = TREE_SOURCES) -> dict[str, Drafter]:
    """Return the drafters that one tree drafts from, by the names that its weights are kept under. Sources are left out where
    these models lack what they need.
    """
    check_sources(names)
    sources = {}
    for name in names:
        try:
            sources[name] = _GENEROUS.get(name, METHODS[name].make)(bench)
        except Unavailable:
            continue
    return sources


def _one_tree(bench: Workbench) -> OneTree:
    fitted = bench.tree_probabilities
    sources = tree_sources(bench, fitted.sources)
    if not sources:
        raise Unavailable(f"what at least one of its sources needs: {', '.join(fitted.sources)}")
    return OneTree(sources, bench.costs, fitted)


_ROWS = (
    Method(
        "PLD", "Copies what followed the first earlier occurrence of the last tokens.", PromptLookup,
        lambda bench: PromptLookup(3, bench.length("PLD")), length=10,
        variants={"PLD (transformers' variant)": lambda bench: PromptLookup(2, 10, variant="transformers")},
        sized=lambda bench, width: PromptLookup(3, width - 1),
    ),
    Method(
        "PLD+ (h)", "Copies from the occurrence whose hidden state is nearest to the current one.", PromptLookupHidden,
        lambda bench: PromptLookupHidden(bench.layer, bench.length("PLD+ (h)")), length=70,
        sized=lambda bench, width: PromptLookupHidden(bench.layer, width - 1),
    ),
    Method(
        "PLD+ (a)", "Copies from the occurrence that the target's induction heads attend to.", PromptLookupAttention,
        lambda bench: PromptLookupAttention(bench.heads, bench.length("PLD+ (a)")), length=70,
        sized=lambda bench, width: PromptLookupAttention(bench.heads, width - 1),
    ),
    Method(
        "REST", "Drafts a tree of what most often followed the last tokens in a datastore of text.", Rest,
        lambda bench: Rest(bench.sparse, length=bench.length("REST")), length=10,
        sized=lambda bench, width: Rest(bench.sparse, length=bench.length("REST"), choices=width - 1), needs="text",
    ),
    Method(
        "DReSD", "Drafts what followed the stored hidden states nearest to the current one.", Dresd,
        lambda bench: Dresd(bench.dense, length=bench.length("DReSD")), length=10, needs="text",
    ),
    Method(
        "SpecDec", "A small model of the same vocabulary drafts a fixed number of tokens.", DraftModel,
        lambda bench: DraftModel(_draft(bench), bench.length("SpecDec"), runtime=bench.draft_runtime),
        exact="in distribution", cost_per="token", length=4, network=True,
        variants={"SpecDec, adaptive": lambda bench: AdaptiveDraftModel(_draft(bench), Confidence(0.4))},
        sized=lambda bench, width: DraftModel(_draft(bench), width - 1, runtime=bench.draft_runtime), needs="draft",
    ),
    Method(
        "SpecDec++", "A small model drafts until a trained head expects a rejection.", SpecDecPP,
        lambda bench: SpecDecPP(_draft(bench), bench.acceptance_head, runtime=bench.draft_runtime),
        exact="in distribution", cost_per="token", network=True,
        needs="draft",
    ),
    Method(
        "Token Recycling", "Drafts a tree of what the target last found likely after each token.", TokenRecycling,
        lambda bench: TokenRecycling(), state="warm",
        sized=lambda bench, width: TokenRecycling(levels_for(width - 1)),
    ),
    Method(
        "Lookahead", "Drafts n-grams from guesses that the target refines in the same passes.", Lookahead,
        lambda bench: Lookahead(),
        variants={"Lookahead, prompt": lambda bench: Lookahead(prompt=True)},
        sized=lambda bench, width: Lookahead(max(1, width // 4), 3, max(1, width // 4), merge=True),
    ),
    Method(
        "SuffixDecoding", "Drafts a tree of what followed the best match, sized by its length.", SuffixDecoding,
        lambda bench: SuffixDecoding(), state="warm",
        variants={
            "SuffixDecoding, chains": lambda bench: SuffixDecoding(chains=True),
            "SuffixDecoding, datastore": lambda bench: SuffixDecoding(bench.sparse),
        },
        sized=lambda bench, width: SuffixDecoding(most=width - 1),
    ),
    Method(
        "SAM-Decoding", "Copies after a long match, and recycles tokens after a short one.", SamDecoding,
        lambda bench: SamDecoding(store=bench.sparse),
        state="warm", needs="text",
        sized=lambda bench, width: SamDecoding(
            TokenRecycling(levels_for(width - 1, SAM_LEVELS), prompt=True), bench.sparse, width - 1),
    ),
    Method(
        "Medusa", "Several trained heads each predict one token ahead from the target's last state.", Medusa,
        lambda bench: Medusa(bench.target, bench.draft_heads("medusa")),
        variants={"Medusa, grown tree": lambda bench: Medusa.grown(bench.target, bench.draft_heads("medusa"))},
        network=True,
        needs="training", sized=lambda bench, width: Medusa.grown(bench.target, bench.draft_heads("medusa"), width - 1),
    ),
    Method(
        "Hydra", "Medusa's heads, each of which also reads the tokens drafted before.", Hydra,
        lambda bench: Hydra(bench.target, bench.draft_heads("hydra")),
        variants={"Hydra, grown tree": lambda bench: Hydra.grown(bench.target, bench.draft_heads("hydra"))},
        cost_per="level", network=True,
        needs="training", sized=lambda bench, width: Hydra.grown(bench.target, bench.draft_heads("hydra"), width - 1),
    ),
    Method(
        "EAGLE", "One trained decoder layer continues the target's states on a fixed tree.", Eagle,
        lambda bench: Eagle(bench.target, bench.draft_heads("eagle")),
        variants={"EAGLE, grown tree": lambda bench: Eagle.grown(bench.target, bench.draft_heads("eagle"))},
        exact="in distribution", cost_per="level", network=True,
        needs="training", sized=lambda bench, width: Eagle.grown(bench.target, bench.draft_heads("eagle"), width - 1),
    ),
    Method(
        "EAGLE-2", "EAGLE's layer, on the tree of the nodes that it is most sure of.", Eagle2,
        lambda bench: Eagle2(bench.target, bench.draft_heads("eagle")),
        cost_per="level", network=True,
        needs="training", sized=lambda bench, width: Eagle2.of_size(bench.target, bench.draft_heads("eagle"), width - 1),
    ),
    Method(
        "One tree", "Merges what several sources draft and verifies as much as pays.", OneTree,
        _one_tree, state="warm", network=True, needs="several",
    ),
)  # fmt: skip

#: The methods by name, in the book's order.
#:
#: :meta hide-value:
METHODS: dict[str, Method] = {row.name: row for row in _ROWS}


def check_names(names: Collection[str]) -> None:
    """Reject names that are neither of :data:`METHODS` nor :data:`PLAIN`."""
    unknown = [name for name in names if name != PLAIN and name not in METHODS]
    if unknown:
        raise ValueError(f"methods hold {unknown[0]!r}; expected some of {', '.join((PLAIN, *METHODS))}")


def method_of(name: str) -> Method | None:
    """The row of a method or of a variant of it, ``"name, variant"``; None for anything else, such as plain decoding."""
    return METHODS.get(name) or METHODS.get(name.partition(",")[0])


def exact(names: Collection[str]) -> tuple[str, ...]:
    """Return the methods among ``names`` whose sampled outputs equal those of plain decoding, token for token."""
    return tuple(name for name in names if name == PLAIN or METHODS[name].exact == "exact")


def states(names: Collection[str]) -> dict[str, str]:
    """By name: in which state each of some methods is measured; plain decoding is cold."""
    return {name: method.state if (method := method_of(name)) else "cold" for name in names}


def draft_length(method: str, asked: Mapping[str, int]) -> int:
    """Draft length K of a method: its row's unless ``asked`` names the method, or ``"PLD+"`` for all whose names begin so."""
    own = METHODS[method].length
    if own is None:
        raise ValueError(
            f"drafts of {method} have no length K; leave it out of its row's make, or give the row a length"
        )
    return asked.get(method, asked.get(method.partition(" ")[0], own))


def build(bench: Workbench, names: Collection[str]) -> tuple[dict[str, Drafter | None], dict[str, str]]:
    """Build methods for a pair of models: drafters by name, None for plain decoding, and by name what is missing for others."""
    check_names(names)
    drafters: dict[str, Drafter | None] = {}
    missing: dict[str, str] = {}
    for name in names:
        try:
            drafters[name] = METHODS[name].make(bench) if name in METHODS else None
        except Unavailable as error:
            missing[name] = str(error)
    return drafters, missing
