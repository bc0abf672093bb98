"""The suffix automaton against a search of all substrings."""

import random

import pytest

from specdec_lib.datastores.suffix_automaton import COUNT, SuffixAutomaton
from tests.datastores.stores import substrings


def grown(seed: int, vocabulary: int, pieces: int, texts: int) -> tuple[SuffixAutomaton, list[list[int]]]:
    """An automaton of random texts, appended a few tokens at a time; text by text."""
    rng, automaton, known = random.Random(seed), SuffixAutomaton(), []
    for _ in range(texts):
        known.append([])
        for _ in range(rng.randint(1, pieces)):
            new = [rng.randrange(vocabulary) for _ in range(rng.randint(1, 4))]
            automaton.extend(new)
            known[-1] += new
        if len(known) < texts:
            automaton.end_text()
    return automaton, known


@pytest.mark.parametrize("seed", range(12))
def test_counts_longest_suffixes_and_what_followed_them_first_are_those_of_a_search(seed):
    vocabulary = 1 + seed % 5
    automaton, known = grown(seed, vocabulary, 4 + seed, 1 + seed % 4)
    counts, rng = substrings(known), random.Random(seed)
    others = [tuple(rng.randrange(vocabulary + 1) for _ in range(rng.randint(1, 6))) for _ in range(200)]
    for string in (*counts, *others):
        state, length = automaton.follow(string)
        assert (automaton._states[COUNT, state] if length == len(string) else 0) == counts.get(string, 0)
    query, state, length = [], 0, 0
    for _ in range(60):
        token = rng.randrange(vocabulary + 1) if rng.random() < 0.3 else rng.choice(rng.choice(known))
        query.append(token)
        state, length = automaton.follow([token], state, length)
        suffixes = [tuple(query[-n:]) for n in range(1, len(query) + 1)]
        assert length == max((len(s) for s in suffixes if s in counts), default=0)
        if length:
            assert automaton.continuation(state, 5) == after_the_first(known, query[-length:])[:5]


def after_the_first(texts: list[list[int]], string: list[int]) -> list[int]:
    """What follows the first occurrence in the texts, up to the end of its text."""
    for text in texts:
        for end in range(len(string), len(text) + 1):
            if text[end - len(string) : end] == string:
                return text[end:]
    raise AssertionError(f"{string} does not occur")


@pytest.mark.parametrize("seed", range(8))
def test_what_is_repeated_at_the_end_is_the_longest_suffix_that_occurs_before(seed):
    rng, automaton, text = random.Random(seed), SuffixAutomaton(), []
    assert automaton.repeated() == (0, 0)
    for _ in range(40):
        token = rng.randrange(1 + seed)
        automaton.extend([token])
        text.append(token)
        before = substrings([text[:-1]])
        expected = max((n for n in range(1, len(text)) if tuple(text[-n:]) in before), default=0)
        state, length = automaton.repeated()
        assert length == expected
        if length:
            assert automaton.continuation(state, 99) == after_the_first([text], text[-length:])


def test_it_grows_beyond_the_room_it_began_with():
    rng = random.Random(3)
    text = [rng.randrange(50) for _ in range(3_000)]
    at_once, piecewise = SuffixAutomaton(), SuffixAutomaton()
    at_once.extend(text)
    for start in range(0, len(text), 7):
        piecewise.extend(text[start : start + 7])
    for _ in range(300):
        start, length = rng.randrange(len(text)), rng.randint(1, 4)
        string = text[start : start + length]
        brute = sum(text[i : i + length] == string for i in range(len(text) - len(string) + 1))
        assert all(own._states[COUNT, own.follow(string)[0]] == brute for own in (at_once, piecewise))
    assert len(at_once.best_tree(text[:3], 1e30, 0.0, 64, 64, 30, 0.1)[0]) == 30
