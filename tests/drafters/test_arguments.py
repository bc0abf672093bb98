"""What constructors of drafters refuse, by name, and that whole numbers of numpy are whole numbers."""

import math
import re
from types import SimpleNamespace

import numpy as np
import pytest

from specdec_lib import Drafter, UnsupportedModel
from specdec_lib.datastores import StoreError
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
    stopping,
)
from specdec_lib.drafters.eagle import Eagle
from specdec_lib.drafters.eagle2 import Eagle2
from specdec_lib.drafters.hydra import Hydra
from specdec_lib.drafters.medusa import Medusa
from specdec_lib.drafters.one_tree import OneTree
from specdec_lib.drafters.pass_costs import PassCosts
from specdec_lib.drafters.token_recycling import template
from specdec_lib.drafters.tree_probabilities import NodeOutcomes, TreeProbabilities
from specdec_lib.heads.acceptance import AcceptanceHead
from tests.chaos import draft_heads_of, head_of
from tests.datastores.stores import build as build_store
from tests.datastores.stores import dense, propose, scratch
from tests.families import VOCABULARY, build, perturbed

MISSPELT = type("Misspelt", (stopping.FixedLength,), {"needs": "confidence"})


@pytest.fixture(scope="module")
def parts():
    """What drafters are made of."""
    model = build("llama-gqa", seed=3)
    with build_store([[1, 2]], VOCABULARY) as store, scratch() as folder:
        index = dense([[3, 1, 2, 4], [1, 2, 3]], model, folder, dims=4)
    made = {"model": model, "head": head_of(model), "costs": PassCosts({1: 1.0}), "store": store, "index": index}
    return SimpleNamespace(**made, heads=lambda kind: draft_heads_of(model, kind))


#: Each constructor with its whole numbers.
NUMBERS = {
    "PLD": (lambda p, **n: PromptLookup(**n), {"max_ngram": 3, "num_tokens": 5}),
    "PLD+ (h)": (lambda p, **n: PromptLookupHidden(**n), {"layer": 1, "num_tokens": 5, "average": 2}),
    "PLD+ (a)": (lambda p, **n: PromptLookupAttention([(0, 1)], **n), {"num_tokens": 5}),
    "REST": (
        lambda p, **n: Rest(p.store, selection="released", **n),
        {"max_ngram": 4, "min_ngram": 1, "max_matches": 9, "length": 3, "choices": 9, "seed": 2, "rows": 2},
    ),
    "DReSD": (lambda p, **n: Dresd(p.index, **n), {"drafts": 2, "length": 3, "neighbours": 4}),
    "SpecDec": (lambda p, **n: DraftModel(p.model, **n), {"num_tokens": 3}),
    "SpecDec++": (lambda p, **n: SpecDecPP(p.model, p.head, **n), {"min_tokens": 1, "max_tokens": 4}),
    "fixed length": (lambda p, **n: stopping.FixedLength(**n), {"num_tokens": 3}),
    "heuristic": (lambda p, **n: stopping.Heuristic(**n), {"num_tokens": 3}),
    "Token Recycling": (lambda p, **n: TokenRecycling(levels=(4, 4), **n), {"width": 4}),
    "Lookahead": (lambda p, **n: Lookahead(**n), {"window": 3, "levels": 3, "guesses": 3}),
    "SuffixDecoding": (lambda p, **n: SuffixDecoding(**n), {"most": 9, "depth": 9}),
    "SAM-Decoding": (lambda p, **n: SamDecoding(PromptLookup(), **n), {"num_tokens": 9, "threshold": 3}),
    "EAGLE-2": (lambda p, **n: Eagle2(p.model, p.heads("eagle"), **n), {"nodes": 9, "depth": 2, "branches": 3}),
    "One tree": (lambda p, **n: OneTree({"a": PromptLookup()}, p.costs, **n), {"room": 9}),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_whole_numbers_are_whole_numbers_of_any_kind_and_others_are_refused_by_name(parts, name):
    make, numbers = NUMBERS[name]
    one, other = make(parts, **numbers), make(parts, **{key: np.int64(n) for key, n in numbers.items()})
    shown = [repr(made) if isinstance(made, Drafter) else str(vars(made)) for made in (one, other)]
    assert shown[0] == shown[1]
    assert all(getattr(one, key, None) == getattr(other, key, None) for key in numbers)
    for key in numbers:
        for wrong in (-1, 2.0, "4"):
            with pytest.raises(ValueError, match=rf"{key} is {wrong!r}; expected a whole number"):
                make(parts, **numbers | {key: wrong})


REFUSED = [
    (lambda p: PromptLookup(variant="fast"), "variant is 'fast'; expected one of original, transformers"),
    (lambda p: PromptLookup(num_tokens=0), "num_tokens is 0; expected a whole number, 1 or more"),
    (lambda p: PromptLookupHidden(1, threshold=1.5), "threshold is 1.5; expected a cosine"),
    (lambda p: PromptLookupHidden(1, average_over="all"), "average_over is 'all'"),
    (lambda p: PromptLookupAttention([]), "heads is []"),
    (lambda p: PromptLookupAttention([(0, 1), (0, 1)]), "heads is [(0, 1), (0, 1)]"),
    (lambda p: PromptLookupAttention([(0, -1)]), "head is -1; expected a whole number, 0 or more"),
    (lambda p: PromptLookupAttention([(0, 1)], aggregate="mean"), "aggregate is 'mean'"),
    (lambda p: Rest(p.store, subsample="random"), "expected one of lexicographic, uniform"),
    (lambda p: Rest(p.store, selection="top"), "expected one of exact, released, random"),
    (lambda p: Rest(p.store, selection="random", choices=9), "choices is 9, length 10"),
    (lambda p: Rest("none"), StoreError("no datastore at")),
    (lambda p: Rest(p.store, rows=10), "rows is 10 with selection 'exact'"),
    (lambda p: Rest(p.store, min_ngram=5, max_ngram=4), "min_ngram is 5, max_ngram 4"),
    (lambda p: Rest(p.store, seed=2**63), "seed is 9223372036854775808; expected a whole number below 2**63"),
    (lambda p: Dresd("none"), StoreError("has no dense index")),
    (lambda p: SpecDecPP(p.model, p.head, 0.7, 5, 4), "min_tokens is 5, max_tokens 4; expected min_tokens <="),
    (lambda p: SpecDecPP(p.model, p.head, 1.0), "threshold is 1.0; expected a probability strictly between"),
    (lambda p: SpecDecPP(perturbed(p.model), p.head), "was trained for the draft model with fingerprint"),
    (lambda p: SpecDecPP(p.model, AcceptanceHead(32)), "was trained for no draft model"),
    (lambda p: AdaptiveDraftModel(p.model, stopping.PredictedRejection()), "PredictedRejection needs an acceptance"),
    (lambda p: AdaptiveDraftModel(p.model, MISSPELT(2)), "needs of Misspelt has a value that is 'c'; expected one of"),
    (lambda p: DraftModel("pocket-draft"), TypeError("model is a str; expected a causal language model")),
    (lambda p: DraftModel(build("mamba")), UnsupportedModel("Mamba")),
    *((lambda p, wrong=wrong: stopping.Confidence(wrong), "threshold is ") for wrong in (0.0, 1.0, math.nan)),
    (lambda p: stopping.FittedConfidence(0.0), "threshold is 0.0"),
    (lambda p: stopping.CumulativeConfidence(1.0), "threshold is 1.0"),
    (lambda p: stopping.PredictedRejection(-0.1), "threshold is -0.1"),
    *(
        (lambda p, nats=nats: stopping.Entropy(nats), "expected an entropy in nats")
        for nats in (0.0, math.inf, math.nan)
    ),
    (lambda p: TokenRecycling(levels=(9,)), "level 1 has 9 nodes"),
    (lambda p: template((2, 9), width=4), "level 2 has 9 nodes; expected 1 to 8, 4 a parent"),
    (lambda p: Lookahead(levels=2), "levels is 2; expected a whole number, 3 or more"),
    (lambda p: SuffixDecoding(depth=1), "depth is 1; expected a whole number, 2 or more"),
    (lambda p: SuffixDecoding(least=1e-9), "least is 1e-09"),
    (lambda p: SuffixDecoding(factor=-1.0), "factor is -1.0"),
    (lambda p: SuffixDecoding(factor=math.nan), "factor is nan"),
    (lambda p: SuffixDecoding(offset=math.inf), "offset is inf"),
    (lambda p: Medusa(p.model, p.heads("hydra")), TypeError("heads are HydraHeads; expected MedusaHeads")),
    (lambda p: Medusa(perturbed(p.model), p.heads("medusa")), "the medusa heads were trained for the target"),
    (lambda p: Hydra(p.model, p.heads("hydra"), [(i - 1, 0) for i in range(5)]), "the shape has 5 levels"),
    (lambda p: Medusa(p.model, p.heads("medusa"), []), "the shape has no node"),
    (lambda p: Eagle(p.model, p.heads("eagle"), [(0, 0)]), "node 0 is (0, 0)"),
    (lambda p: OneTree({}, p.costs), "sources is empty"),
    (lambda p: OneTree({"a": PromptLookup()}, p.costs, rate=-1.0), "rate is -1.0"),
    (lambda p: OneTree(dict.fromkeys("ab", PromptLookup()), p.costs), "sources 'a' and 'b' are one drafter"),
    (lambda p: TreeProbabilities.unfitted(["a"]).of(["d"]), "no weights for the source 'd'"),
    (lambda p: TreeProbabilities.unfitted(["a"]).fitted(NodeOutcomes(), ""), "nothing was judged"),
    (lambda p: PassCosts({2: 1.0}), "expected a cost above 0 for a pass over 1 token"),
    (lambda p: PassCosts({1: 0.0}), "expected a cost above 0 for a pass over 1 token"),
    (lambda p: PassCosts({1: 1.0, 0: 1.0}), "a width is 0; expected a whole number, 1 or more"),
    (lambda p: PassCosts({1: 1.0, 2: math.nan}), "the cost of 2 tokens is nan"),
    (lambda p: PassCosts({1: 1.0}, drafting={"PLD": -1}), "drafting of 'PLD' is -1"),
    *(
        (
            lambda p, make=make: propose(make(p), [1, 2], 9),
            f"has {VOCABULARY} token ids, the model 9: they do not share",
        )
        for make in (lambda p: Rest(p.store), lambda p: SuffixDecoding(p.store), lambda p: Dresd(p.index))
    ),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_cannot_work_is_refused_by_name(parts, number):
    make, words = REFUSED[number]
    error = ValueError(words) if isinstance(words, str) else words
    with pytest.raises(type(error), match=re.escape(str(error))):
        make(parts)
