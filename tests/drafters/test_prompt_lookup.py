"""Prompt lookup against a rescan of the whole context, in both variants."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from specdec_lib import Context, Sampling
from specdec_lib.drafters import PromptLookup

ANY = 10**9
texts = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def context(tokens: list[int], vocabulary: int = 4) -> Context:
    return Context(list(tokens), len(tokens), vocabulary, Sampling())


def fresh(tokens: list[int], limit: int = ANY, vocabulary: int = 4, **arguments) -> list[int]:
    drafter, seen = PromptLookup(**arguments), context(tokens, vocabulary)
    drafter.start(seen)
    tree = drafter.propose(seen, limit)
    assert tree.is_chain and tree.probabilities is None and tree.copied_from == drafter.source
    if tree.tokens:
        assert tree.tokens == tokens[drafter.source :][: len(tree)] and tokens[drafter.source - 1] == tokens[-1]
    return tree.tokens


def rescan(ids: list[int], max_ngram: int, count: int) -> list[int]:
    """The released code (Saxena 2023): first match with a complete continuation, longest n-gram first."""
    for n in range(max_ngram, 0, -1):
        last = ids[len(ids) - n :]
        for i in range(len(ids) - n + 1):
            begin = i + n
            if n <= len(ids) and ids[i:begin] == last and begin + count <= len(ids) and begin < len(ids) - n:
                return ids[begin : begin + count]
    return []


def by_transformers(ids: list[int], max_ngram: int, count: int) -> list[int]:
    """Transformers' own generator."""
    sizes = {"num_output_tokens": count, "max_matching_ngram_size": max_ngram}
    generator = PromptLookupCandidateGenerator(**sizes, max_length=ANY)
    return generator.get_candidates(torch.tensor([ids]))[0][0, len(ids) :].tolist()


PEERS = {"original": rescan, "transformers": by_transformers}


@settings(max_examples=300)
@pytest.mark.parametrize("variant", PEERS)
@given(texts, st.integers(1, 5), st.integers(1, 8), st.integers(1, 12))
def test_a_draft_is_that_of_a_rescan_cut_at_the_limit(variant, tokens, max_ngram, count, limit):
    arguments, expected = {"max_ngram": max_ngram, "num_tokens": count}, PEERS[variant](tokens, max_ngram, count)
    assert fresh(tokens, **arguments, variant=variant) == expected
    assert fresh(tokens, limit, **arguments, variant=variant) == expected[:limit]


@settings(max_examples=150)
@given(
    st.lists(texts, min_size=1, max_size=2),
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), max_size=8),
    st.integers(1, 4),
    st.integers(1, 6),
    st.sampled_from(["original", "transformers"]),
)
def test_an_index_that_grows_equals_a_fresh_one(starts, blocks, max_ngram, count, variant):
    """Also one that has served another text before."""
    arguments = {"max_ngram": max_ngram, "num_tokens": count, "variant": variant}
    drafter = PromptLookup(**arguments)
    for seen in map(context, starts):
        drafter.start(seen)
        for block in [[], *blocks]:
            seen.tokens.extend(block)
            for _ in range(2):  # asking twice must not change the answer
                assert drafter.propose(seen, ANY).tokens == fresh(seen.tokens, **arguments)


def test_ids_near_the_end_of_a_large_vocabulary_are_told_apart():
    top = 151_935
    tokens = [top, top - 1, 7, 8, 0, top, 5, 6, top, top - 1]
    assert fresh(tokens, vocabulary=top + 1, max_ngram=2, num_tokens=2) == [7, 8]


def test_drafting_takes_no_longer_in_a_long_text():
    # Counted, not timed: what a proposal reads of the text must not grow with it.
    class Counting(list):
        def __getitem__(self, place):
            reads[-1] += 1
            return super().__getitem__(place)

    reads = []
    for length in (100, 10_000):
        drafter, seen = PromptLookup(), context([], 50)
        seen.tokens = Counting(i * i % 50 for i in range(length))
        drafter.start(seen)
        for _ in range(2):  # the first reads the prompt
            reads.append(0)
            drafter.propose(seen, 10)
            seen.tokens.append(1)
    assert reads[3] <= reads[1] + 1 <= 20
