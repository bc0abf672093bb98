"""Token stores: round trips, and what is refused."""

import json
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_lib import datastores
from specdec_lib.datastores import StoreError, SuffixIndex, TokenStore
from specdec_lib.datastores import build as build_module
from tests import families
from tests.datastores.stores import WIDTHS, document_lists
from tests.datastores.stores import build as in_memory

CODE = "def f(x):\n    return x + 1  # the next one\n"


def contents(store: TokenStore) -> list[list[int]]:
    return [store.document(i).tolist() for i in range(len(store))]


def build(path: Path, documents, vocabulary: int = 50, **options) -> TokenStore:
    return datastores.build_tokens(path, documents, vocabulary, progress=False, **options)


@given(
    st.sampled_from(WIDTHS).flatmap(lambda width: st.tuples(st.just(width[0]), document_lists(width[1]))),
    st.integers(1, 30),
)
@settings(max_examples=40)
def test_documents_come_back_as_they_went_in_for_any_chunk(case, chunk_tokens):
    vocabulary, documents = case
    with patch.object(build_module, "CHUNK_TOKENS", chunk_tokens), in_memory(documents, vocabulary) as index:
        store = index.store
        assert contents(store) == documents
        assert store.tokens.dtype == (np.uint16 if vocabulary < 65536 else np.uint32)
        assert (store.count, len(store), store.vocabulary) == (sum(map(len, documents)), len(documents), vocabulary)
        assert np.flatnonzero(store.tokens == vocabulary).tolist() == [0, *(store.starts[1:] - 1).tolist()]
        store.verify()


def test_the_arrays_are_mapped_read_only_and_the_manifest_says_what_they_are(tmp_path):
    store = build(tmp_path / "store", [np.array([1, 2, 3]), [4, 5]], sources=[{"name": "two documents"}])
    with pytest.raises(ValueError, match="read-only"):
        store.tokens[0] = 1
    assert isinstance(store.tokens.base, np.memmap)
    about = json.loads((tmp_path / "store" / "manifest.json").read_text())
    said = {"sources": [{"name": "two documents"}], "vocabulary": 50, "dtype": "uint16", "documents": 2, "tokens": 5}
    assert said.items() <= about.items()
    assert sorted(about["files"]) == sorted(p.name for p in (tmp_path / "store").iterdir() if p.suffix == ".npy")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["store"]


@pytest.mark.parametrize("documents, options, message", [
    ([], {}, "the corpus is empty"),
    ([[1, 50]], {}, "document 1 has the token id 50, outside the vocabulary of 50"),
    ([[1, 2], [3, -1]], {}, "document 2 has the token id -1"),
    ([[1.0, 2.0]], {}, "document 1 is float64"),
    (["text"], {}, "document 1 is <U4 .*for texts: build_from_texts"),
    ([[1, 2]], {"vocabulary": 0}, "vocabulary is 0"),
    ([[1, 2]], {"vocabulary": 2**32}, "vocabulary is 4294967296"),
    ([[1, 2]], {"vocabulary": 10.5}, "vocabulary is 10.5"),
    ([[1, 2]], {"max_tokens": -3}, "max_tokens is -3"),
])  # fmt: skip
def test_bad_documents_and_parameters_are_refused_and_leave_nothing(tmp_path, documents, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        build(tmp_path / "store", documents, **options)
    assert list(tmp_path.iterdir()) == []


def test_short_documents_are_left_out_and_counted_and_max_tokens_takes_whole_documents(tmp_path):
    documents = [[1], [1, 2, 3], [], [4, 5], [6, 7], [8]]
    store = build(tmp_path / "a", documents)
    assert contents(store) == [[1, 2, 3], [4, 5], [6, 7]] and store.manifest["skipped_documents"] == 3
    for limit, count in ((3, 1), (4, 1), (5, 2), (100, 3)):
        cut = build(tmp_path / "a", documents, max_tokens=limit)
        assert contents(cut) == contents(store)[:count]


def test_texts_become_documents_of_their_tokenizer_and_another_tokenizer_is_refused(tmp_path):
    tokenizer, texts = families.tokenizer(), [CODE, "y = 3\n" * 4]
    store = datastores.build_from_texts(tmp_path / "store", texts, tokenizer, progress=False)
    assert contents(store) == [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    TokenStore.open(tmp_path / "store", tokenizer)
    SuffixIndex.open(store).verify()
    other = families.tokenizer(60)
    with pytest.raises(StoreError, match="holds the tokens of another tokenizer"):
        TokenStore.open(tmp_path / "store", other)
    with pytest.raises(StoreError, match="without a tokenizer"):
        build(tmp_path / "ids", [[1, 2]]).check_tokenizer(tokenizer)


@pytest.mark.draws
def test_a_tokenizers_settings_do_not_change_its_fingerprint_and_a_new_token_does():
    tokenizer = families.tokenizer()
    before = datastores.tokenizer_fingerprint(tokenizer)
    tokenizer([CODE, "a"], truncation=True, max_length=4, padding="max_length" if tokenizer.pad_token else False)
    assert datastores.tokenizer_fingerprint(tokenizer) == before
    grown = families.tokenizer()
    assert datastores.tokenizer_fingerprint(grown) == before
    grown.add_tokens(["<a new one>"])
    assert datastores.tokenizer_fingerprint(grown) != before
    assert datastores.tokenizer_vocabulary(grown) == datastores.tokenizer_vocabulary(tokenizer) + 1


def test_an_interrupted_build_is_said_to_be_none_and_begins_again(tmp_path):
    def stops(batch):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "store", ["abc"], encode=stops)
    assert not list(tmp_path.iterdir())
    (tmp_path / "store.unfinished-build").mkdir()  # what a kill leaves
    with pytest.raises(StoreError, match="is not built yet: its build still runs or was interrupted"):
        TokenStore.open(tmp_path / "store")
    assert contents(build(tmp_path / "store", iter([[1, 2]]))) == [[1, 2]]
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
