"""The suffix array against a scan of the documents."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from specdec_lib import datastores
from specdec_lib.datastores import Match
from specdec_lib.decoding import compiled
from tests.datastores.stores import build, rest_questions, scan

foreign = st.lists(st.integers(0, 99), max_size=6)


@given(rest_questions(), foreign, foreign)
@settings(max_examples=150)
def test_the_longest_suffix_and_all_its_occurrences_are_those_of_a_scan(question, before, after):
    vocabulary, documents, own, sizes = question
    known = [0, vocabulary - 1, vocabulary, vocabulary + 1, *sorted({*sum(documents, [])})]
    before, after = ([known[i % len(known)] for i in places] for places in (before, after))
    with build(documents, vocabulary) as index:
        for context in (own, own + after, before + own, before + after):
            for max_ngram in (1, 3, sizes["max_ngram"] + 2):
                assert found(index, context, max_ngram) == scan(documents, context, max_ngram)


def found(index, context, max_ngram):
    match = index.longest(context, max_ngram)
    return match.length, sorted(index.positions(match).tolist())


def test_a_context_of_nothing_known_matches_nothing():
    with build([[1, 2, 3]], 10) as index:
        for context in ([], [7], [-1], [10], [3], [2**40]):
            assert index.longest(context) == Match(0, 0, 0)
        for wrong in (0, 2.0):
            with pytest.raises(ValueError, match="max_ngram is .* 1 or more"):
                index.longest([1], wrong)


def test_more_tokens_than_positions_of_32_bits_are_refused(tmp_path, monkeypatch):
    store = datastores.build_tokens(tmp_path / "store", [[1, 2, 3]], 10, progress=False)
    huge = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint16), (2**31,), (0,))
    object.__setattr__(store, "tokens", huge)
    with pytest.raises(ValueError, match="2147483648 tokens; expected fewer than"):
        datastores.build_suffix_array(store, progress=False)


@pytest.mark.parametrize("vocabulary", [4, 70000])
def test_entries_found_by_their_keys_are_those_of_a_scan(vocabulary):
    # Enough entries of each last token that the search goes over the keys, with contexts before, at and after all.
    rng = np.random.default_rng(2)
    ids = np.array([0, 1, 2, vocabulary - 1])
    documents = [ids[rng.choice(4, 400, p=[0.6, 0.2, 0.1, 0.1])].tolist() for _ in range(8)]
    with build(documents, vocabulary) as index:
        assert len(index.keys) > 40 and (np.diff(index.keys.astype(object)) >= 0).all()
        for i in range(150):
            source, end = documents[i % 8], int(rng.integers(1, 400))
            context = source[max(0, end - 12) : end]
            context[int(rng.integers(0, len(context)))] = int(ids[rng.integers(0, 4)])
            assert found(index, context, 10) == scan(documents, context, 10)
        for context in ([token] * length for token in (0, vocabulary - 1) for length in range(1, 9)):
            assert found(index, context, 16) == scan(documents, context, 16)


def test_loops_are_compiled_anew_where_no_folder_can_be_written(monkeypatch):
    asked = []

    def without_a_folder(*, cache=False, **options):
        asked.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return njit(**options)

    monkeypatch.setattr(compiled, "njit", without_a_folder)
    fast = compiled.compiled(lambda x: 2 * x)
    assert fast(21) == 42 and fast.signatures and asked == [True, False]
