"""Prompt lookup against a rescan of the whole context, in both variants."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from specdec_lib import Sampling
from specdec_lib.decoding.contract import Context
from specdec_lib.drafters import PromptLookup

ANY = 10**9
texts = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def context(tokens: list[int], vocabulary: int = 4) -> Context:
    return Context(list(tokens), len(tokens), vocabulary, Sampling())


def fresh(tokens: list[int], limit: int = ANY, vocabulary: int = 4, **arguments) -> list[int]:
    drafter, seen = PromptLookup(**arguments), context(tokens, vocabulary)
    drafter.start(seen)
    tree = drafter.propose(seen, limit)
    assert tree.is_chain and tree.probabilities is None
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


def rescan_by_transformers(ids: list[int], max_ngram: int, count: int) -> list[int]:
    """Transformers' own generator."""
    generator = PromptLookupCandidateGenerator(
        num_output_tokens=count, max_matching_ngram_size=max_ngram, max_length=ANY
    )
    return generator.get_candidates(torch.tensor([ids]))[0][0, len(ids) :].tolist()


@settings(max_examples=300, deadline=None)
@given(texts, st.integers(1, 5), st.integers(1, 8))
def test_original_variant_equals_a_rescan(tokens, max_ngram, count):
    assert fresh(tokens, max_ngram=max_ngram, num_tokens=count) == rescan(tokens, max_ngram, count)


@settings(max_examples=300, deadline=None)
@given(texts, st.integers(1, 5), st.integers(1, 8))
def test_transformers_variant_equals_that_of_transformers(tokens, max_ngram, count):
    got = fresh(tokens, max_ngram=max_ngram, num_tokens=count, variant="transformers")
    assert got == rescan_by_transformers(tokens, max_ngram, count)


@settings(max_examples=150, deadline=None)
@given(
    texts,
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), max_size=8),
    st.integers(1, 4),
    st.integers(1, 6),
    st.sampled_from(["original", "transformers"]),
)
def test_an_index_that_grows_equals_a_fresh_one(tokens, blocks, max_ngram, count, variant):
    arguments = {"max_ngram": max_ngram, "num_tokens": count, "variant": variant}
    drafter, seen = PromptLookup(**arguments), context(tokens)
    drafter.start(seen)
    for block in [[], *blocks]:
        seen.tokens.extend(block)
        expected = fresh(seen.tokens, **arguments)
        assert drafter.propose(seen, ANY).tokens == expected
        assert drafter.propose(seen, ANY).tokens == expected, "asking twice must not change the answer"


@given(texts, st.integers(1, 12))
@settings(deadline=None)
def test_a_limit_cuts_the_draft_and_changes_nothing_else(tokens, limit):
    for variant in ("original", "transformers"):
        assert fresh(tokens, limit, variant=variant) == fresh(tokens, variant=variant)[:limit]


@given(texts, texts)
@settings(deadline=None)
def test_a_new_start_forgets_the_last_text(first, second):
    drafter, one = PromptLookup(2, 3, "transformers"), context(first)
    drafter.start(one)
    drafter.propose(one, ANY)
    two = context(second)
    drafter.start(two)
    assert drafter.propose(two, ANY).tokens == fresh(second, max_ngram=2, num_tokens=3, variant="transformers")


def test_ids_near_the_end_of_a_large_vocabulary_are_told_apart():
    top = 151_935
    tokens = [top, top - 1, 7, 8, 0, top, 5, 6, top, top - 1]
    assert fresh(tokens, vocabulary=top + 1, max_ngram=2, num_tokens=2) == [7, 8]


def test_drafting_takes_no_longer_in_a_long_text():
    # Counted, not timed: what a proposal reads of the text must not grow with it.
    class Counting(list):
        reads = 0

        def __getitem__(self, place):
            Counting.reads += 1
            return super().__getitem__(place)

    reads = {}
    for length in (100, 10_000):
        drafter, seen = PromptLookup(), context([], 50)
        seen.tokens = Counting(i * i % 50 for i in range(length))
        drafter.start(seen)
        drafter.propose(seen, 10)
        seen.tokens.append(1)
        Counting.reads = 0
        drafter.propose(seen, 10)
        reads[length] = Counting.reads
    assert reads[10_000] <= reads[100] + 1 <= 20
