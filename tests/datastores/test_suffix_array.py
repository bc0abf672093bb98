"""The suffix array against a scan of the documents."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numba import njit

from specdec_lib import datastores
from specdec_lib.datastores import Match, compiled
from tests.datastores.stores import WIDTHS, build, document_lists, scan


@st.composite
def questions(draw):
    """Documents over few tokens, and contexts of which some are taken from them."""
    vocabulary, ids = draw(st.sampled_from(WIDTHS))
    documents = draw(document_lists(ids))
    own = st.sampled_from(documents).flatmap(lambda d: st.integers(1, len(d)).map(lambda n: d[:n]))
    foreign = st.lists(st.sampled_from([*ids, vocabulary, vocabulary + 1]), min_size=0, max_size=6)
    contexts = draw(
        st.lists(st.tuples(foreign, own, foreign).map(lambda parts: sum(parts, [])), min_size=1, max_size=8)
    )
    return vocabulary, documents, contexts, draw(st.integers(1, 8))


@given(questions())
@example((3, [[0, 1], [1, 0]], [[0, 1], [1], [3, 0], [2]], 4))
@settings(max_examples=100, deadline=None)
def test_the_longest_suffix_and_all_its_occurrences_are_those_of_a_scan(question):
    vocabulary, documents, contexts, max_ngram = question
    with build(documents, vocabulary) as index:
        for context in contexts:
            match = index.longest(context, max_ngram)
            length, places = scan(documents, context, max_ngram)
            assert match.length == length
            assert sorted(index.positions(match).tolist()) == places


def test_the_entries_are_sorted_by_the_tokens_read_backwards_and_none_ends_a_document():
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 3, rng.integers(2, 40)).tolist() for _ in range(30)]
    with build(documents, 3) as index:
        tokens = index.store.tokens
        backwards = [tokens[position::-1].tolist() for position in index.suffixes]
        assert backwards == sorted(backwards)
        ends = {int(start) - 2 for start in index.store.starts[1:]}
        separators = set(np.flatnonzero(tokens == 3).tolist())
        assert set(index.suffixes.tolist()) == set(range(len(tokens))) - ends - separators


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
            match = index.longest(context, 10)
            length, places = scan(documents, context, 10)
            assert (match.length, sorted(index.positions(match).tolist())) == (length, places)
        for token in (0, vocabulary - 1):
            for length in range(1, 9):
                match, (found, places) = index.longest([token] * length), scan(documents, [token] * length, 16)
                assert (match.length, sorted(index.positions(match).tolist())) == (found, places)


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
