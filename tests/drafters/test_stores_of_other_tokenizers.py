"""A store of another tokenizer is refused by every drafter that reads one, also where both have as many token ids."""

import numpy as np
import pytest

from specdec_lib import generate
from specdec_lib.datastores import (
    ArrayStates,
    build_dense_index,
    build_suffix_array,
    build_tokens,
    tokenizer_fingerprint,
)
from specdec_lib.decoding.served_models import remember_tokenizer
from specdec_lib.drafters import Dresd, Rest, SamDecoding, SuffixDecoding
from tests.datastores.dense_stores import stored_positions
from tests.families import TEXT, build, prompt, tokenizer


def _store(folder, fingerprint):
    documents = [prompt(seed, 30) for seed in range(4)]
    store = build_tokens(folder, documents, TEXT, fingerprint=fingerprint, progress=False)
    build_suffix_array(store.path, progress=False)
    return store


def _dresd(store, model):
    states = np.random.default_rng(0).normal(size=(len(stored_positions(store)), model.config.hidden_size))
    source = ArrayStates(stored_positions(store), states.astype(np.float32), None)
    return Dresd(build_dense_index(store.path / "dense", source, store, dims=4, progress=False))


@pytest.mark.parametrize("make", [
    lambda store, model: Rest(store), lambda store, model: SamDecoding(store=store), lambda store, model: SuffixDecoding(store=store),
    _dresd,
], ids=["Rest", "SamDecoding", "SuffixDecoding", "Dresd"])  # fmt: skip
def test_a_store_of_another_tokenizer_of_the_same_size_is_refused(make, tmp_path):
    model, own = build("llama-gqa"), tokenizer()
    remember_tokenizer(own, model)
    same, unknown = _store(tmp_path / "same", tokenizer_fingerprint(own)), _store(tmp_path / "unknown", None)
    another = _store(tmp_path / "another", "0" * 64)
    for store in (same, unknown):
        generate(model, prompt(0, 12), make(store, model), max_new_tokens=4)
    with pytest.raises(ValueError, match="another holds the tokens of another tokenizer .*build one for this model"):
        generate(model, prompt(0, 12), make(another, model), max_new_tokens=4)
