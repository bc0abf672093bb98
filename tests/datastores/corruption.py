"""A store with one damage at a time, and everything that drafts from it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from specdec_lib import Sampling, datastores
from specdec_lib.datastores import DenseIndex, StoreError, SuffixIndex
from specdec_lib.decoding.contract import Context
from specdec_lib.drafters import Rest
from tests.datastores.dense_stores import build, random_states, source

VOCABULARY = 40
FILES = (
    "manifest.json", "tokens.npy", "documents.npy", "suffix_array.json", "suffix_array.npy", "first.npy", "keys.npy",
    "dense/dense.json", "dense/positions.npy", "dense/index.faiss",
)  # fmt: skip
SWITCHES = (
    {"max_ngram": 64},
    {"max_matches": 7, "choices": 16},
    {"max_matches": 3, "subsample": "uniform"},
    {"selection": "released", "max_matches": 40},
    {"selection": "random"},
)


def make(folder: Path) -> Path:
    """A store of few tokens that repeat often, with both indexes; returns its path."""
    rng = random.Random(5)
    documents = [
        [min(rng.randrange(VOCABULARY), rng.randrange(VOCABULARY)) for _ in range(rng.randrange(2, 90))]
        for _ in range(20)
    ]
    store = datastores.build_tokens(folder / "store", documents, VOCABULARY, progress=False)
    datastores.build_suffix_array(store, progress=False)
    build(store, source(store), factory="IVF4,Flat", nprobe=4)
    return store.path


def damages(sound: Path, name: str, count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """``count`` versions of a file of a store, each with words that say what was done to it.

    One bit is flipped, in the header or anywhere; in arrays numbers also change places, which leaves them in range.
    """
    rng, data = random.Random(f"{seed} {name}"), (sound / name).read_bytes()
    kinds = ["bit", "bit", "header", "places"] if name.endswith(".npy") else ["bit"]
    for i in range(count):
        damaged, kind = bytearray(data), kinds[i % len(kinds)]
        if kind == "places":
            array = np.load(sound / name)
            np.random.default_rng(rng.randrange(2**32)).shuffle(array[1:-1])
            yield f"{name}: all numbers in other places", data[:128] + array.tobytes()
            continue
        place, bit = rng.randrange(128 if kind == "header" else len(data)), rng.randrange(8)
        damaged[place] ^= 1 << bit
        yield f"{name}: bit {bit} of byte {place}", bytes(damaged)


def use(path: Path) -> None:
    """Open a store and both of its indexes and draft from them."""
    index = SuffixIndex.open(path)
    store = index.store
    documents = [store.document(i).tolist() for i in range(len(store))]
    contexts = [[], [0], [1, 2], [VOCABULARY - 1, 0], sum(documents[:4], [])]
    contexts += [document[:i] for document in documents for i in (1, 2, 5)]
    for switches in SWITCHES:
        drafter = Rest(index, min_ngram=1, **switches)
        for tokens in contexts:
            context = Context(list(tokens), 0, VOCABULARY + 1000, Sampling())
            drafter.start(context)
            tree = drafter.propose(context, 12)
            if any(not 0 <= token < store.vocabulary for token in tree.tokens):
                raise AssertionError(f"drafts {tree.tokens} of a vocabulary of {store.vocabulary}")
    dense = DenseIndex.open(store)
    for position in dense.search(random_states(12, 3), 20)[1].ravel().tolist():
        store.continuation(position, 10)


def outcome(path: Path) -> str:
    """``"used"``, ``"refused"``, or the error that a user would not understand."""
    try:
        use(path)
    except StoreError:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "used"
