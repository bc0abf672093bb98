"""Embedded states equal what transformers itself gives, whatever the batch."""

import numpy as np
import pytest
import torch

from specdec_lib import datastores
from specdec_lib.datastores import StoreError
from specdec_lib.models.embedding import embed_store, last_states
from specdec_lib.models.fingerprint import fingerprint
from tests.datastores.stores import scratch
from tests.families import SERVED, VOCABULARY, build, prompt, uncached


@pytest.fixture
def store():
    documents = [prompt(seed, 2 + 8 * seed) for seed in range(12)]
    with scratch() as folder:
        yield datastores.build_tokens(folder / "store", documents, VOCABULARY, progress=False)


def close(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= 1e-5 * max(1.0, float(np.abs(theirs).max()))


@pytest.mark.parametrize("family", SERVED)
def test_padded_batches_give_the_last_hidden_states_of_transformers(library, family):
    documents = [np.array(prompt(seed, length)) for seed, length in enumerate((1, 17, 60, 5, 33))]
    for states, tokens in zip(last_states(library[family], documents), documents, strict=True):
        close(states, uncached(library[family], tokens)[1].numpy())


@pytest.mark.parametrize("family", ["llama-gqa", "gpt2", "gemma"])
@pytest.mark.parametrize("cover", ["truncate", "windows"])
def test_an_embedded_store_holds_each_documents_own_states(library, store, family, cover):
    model = library[family]
    options = {"window": 40, "overlap": 15, "cover": cover, "batch_tokens": 100, "dtype": "float32"}
    found = embed_store(model, store, store.path.with_name("states"), **options, progress=False)
    assert found.model == fingerprint(model) and found.width == 32
    positions, states = (np.concatenate(parts) for parts in zip(*found, strict=True))
    for i in range(len(store)):
        tokens, begin = store.document(i), int(store.starts[i])
        mine = (positions > begin) & (positions < store.starts[i + 1])
        assert (positions[mine] == begin + 1 + np.arange(mine.sum())).all()
        assert mine.sum() == (min(40, len(tokens) - 1) if cover == "truncate" else len(tokens) - 1)
        close(states[mine][:40], uncached(model, tokens)[1].numpy()[: len(tokens) - 1][:40])
        if cover == "windows" and len(tokens) > 41:
            close(states[mine][40:65], uncached(model, tokens[25:65])[1].numpy()[15 : len(tokens) - 26])


def test_what_does_not_fit_or_is_broken_is_refused(llama, store, tmp_path):
    path = store.path.with_name("states")
    wide = datastores.build_tokens(tmp_path / "wide", [[1, 2]], VOCABULARY + 1, progress=False)
    broken = build("llama-gqa")
    with torch.no_grad():
        broken.get_input_embeddings().weight[int(store.document(3)[4])] = float("nan")
    for model, tokens, options, error, says in (
        (broken, store, {}, ValueError, "states of positions .*nan in column 0"),
        (llama, store, {"window": 1024}, ValueError, "window is 1024, the model's context 128"),
        (llama, store, {"window": np.int64(1024)}, ValueError, "window is 1024, the model's context 128"),
        (build("llama").train(), store, {}, ValueError, "in training mode"),
        (llama, wide, {}, ValueError, "has 97 token ids, the model 96: they do not share a tokenizer"),
        (llama, tmp_path / "none", {}, StoreError, "no datastore at"),
    ):
        with pytest.raises(error, match=says):
            embed_store(model, tokens, path, **{"window": 40, "progress": False} | options)
    assert not path.exists()
