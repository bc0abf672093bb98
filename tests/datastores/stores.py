"""Small stores and what a scan of their documents finds."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

try:
    from hypothesis import strategies as st
except ImportError:  # the tests of a GPU, which draw no cases, run without it
    st = None

from transformers import PreTrainedModel

from specdec_lib import Context, Drafter, DraftTree, Sampling, datastores, files
from specdec_lib.models.embedding import embed_store

#: Vocabularies of one to three bytes and of both array types, with ids of which few are used.
WIDTHS = [(3, (0, 1, 2)), (300, (0, 255, 256, 299)), (65535, (0, 1, 65534)), (70000, (3, 65535, 65536, 69999))]


#: Waiting for a disk makes hundreds of stores slow, and none of them outlives its test.
IN_MEMORY = Path("/dev/shm")


def document_lists(ids: Sequence[int], max_documents: int = 6, max_length: int = 14) -> st.SearchStrategy:
    return st.lists(st.lists(st.sampled_from(ids), min_size=2, max_size=max_length), min_size=1, max_size=max_documents)


def rest_sizes() -> st.SearchStrategy:
    """Options of a Rest that are small enough for each of them to matter."""
    numbers = {"max_ngram": st.integers(1, 6), "length": st.integers(1, 6), "choices": st.integers(1, 40)}
    return st.fixed_dictionaries(numbers | {"max_matches": st.sampled_from([1, 2, 3, 7, 5000])})


def rest_questions() -> st.SearchStrategy:
    """A vocabulary, documents over few of its tokens, a context that begins one of them, and options of a Rest."""

    def about(vocabulary: int, documents: list[list[int]]) -> st.SearchStrategy:
        context = st.sampled_from(documents).flatmap(lambda d: st.integers(1, len(d)).map(lambda n: d[:n]))
        return st.tuples(st.just(vocabulary), st.just(documents), context, rest_sizes())

    def over(width: tuple[int, Sequence[int]]) -> st.SearchStrategy:
        return document_lists(width[1], 8, 30).flatmap(lambda documents: about(width[0], documents))

    return st.sampled_from(WIDTHS).flatmap(over)


def propose(drafter: Drafter, tokens: Sequence[int], vocabulary: int, limit: int = 1000) -> DraftTree:
    context = Context(list(tokens), 0, vocabulary, Sampling())
    drafter.start(context)
    return drafter.propose(context, limit)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder in memory."""
    with (
        tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as folder,
        patch.object(files.os, "fsync", lambda handle: None),
    ):
        yield Path(folder)


@contextmanager
def build(documents: list[list[int]], vocabulary: int, **options) -> Iterator[datastores.SuffixIndex]:
    with scratch() as folder:
        store = datastores.build_tokens(folder / "store", documents, vocabulary, progress=False, **options)
        yield datastores.build_suffix_array(store, progress=False)


def dense(documents: list[list[int]], model: PreTrainedModel, folder: Path, **options) -> datastores.DenseIndex:
    """A store of documents and the dense index of a model's states over it, opened on the CPU."""
    vocabulary = model.get_input_embeddings().weight.shape[0]
    store = datastores.build_tokens(folder / "store", documents, vocabulary, progress=False)
    window = min(1024, model.config.max_position_embeddings)
    states = embed_store(model, store, folder / "states", window=window, dtype="float32", progress=False)
    return datastores.build_dense_index(store.path / "dense", states, progress=False, **options)


def scan(documents: list[list[int]], context: list[int], max_ngram: int) -> tuple[int, list[int]]:
    """Longest suffix of the context that occurs with something after it, and where its last tokens are stored."""
    for length in range(min(max_ngram, len(context)), 0, -1):
        places = []
        start = 1
        for document in documents:
            places += [
                start + end - 1
                for end in range(length, len(document))
                if document[end - length : end] == context[-length:]
            ]
            start += len(document) + 1
        if places:
            return length, places
    return 0, []


def continuations(documents: list[list[int]], places: Sequence[int], length: int) -> list[tuple[int, ...]]:
    """What follows each place, up to ``length`` tokens or the end of the document."""
    of_place = {}
    start = 1
    for document in documents:
        for i in range(len(document)):
            of_place[start + i] = tuple(document[i + 1 : i + 1 + length])
        start += len(document) + 1
    return [of_place[place] for place in places]


def first_matches(documents, context, max_ngram, length=10, most=None) -> list[tuple[int, ...]]:
    """What follows the longest suffix of the context, the first in order: the released rule of REST."""
    return sorted(continuations(documents, scan(documents, context, max_ngram)[1], length))[:most]


def substrings(texts: Sequence[Sequence[int]]) -> Counter[tuple[int, ...]]:
    """Every substring of the texts and how often it occurs."""
    return Counter(tuple(text[i:j]) for text in texts for i in range(len(text)) for j in range(i + 1, len(text) + 1))


def full_trie(paths: Sequence[tuple[int, ...]]) -> Counter[tuple[int, ...]]:
    """Every prefix of the paths and the number of paths that start with it."""
    return Counter(path[:n] for path in paths for n in range(1, len(path) + 1))


def in_order(trie: Counter[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """By weight, depth and tokens."""
    return sorted(trie, key=lambda path: (-trie[path], len(path), path))


def tree_paths(tokens: Sequence[int], parents: Sequence[int]) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return paths
