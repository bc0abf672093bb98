"""What the retrieval chapters measure, against counting by hand."""

from collections import Counter

import numpy as np
import pytest
import torch

from specdec_lib.decoding.contract import LAST, Capture
from specdec_lib.drafters import Dresd, PromptLookup, Rest
from specdec_lib.experiments import comparison, recorded_runs, retrieval, stores
from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.published_sets.replies import Reply
from tests.datastores.stores import build
from tests.experiments.made import made_up


def test_match_lengths_count_the_longest_suffix_at_each_step():
    with build([[1, 2, 3, 4, 5, 6]], 50) as index:
        counts = retrieval.match_lengths([made_up([7, 1], [2, 9, 3, 4, 5, 6])], Rest(index, min_ngram=2))
    # Contexts end with 1 2, with 9, with 9 3 and with 3 4; after the last the draft 5 is kept.
    assert counts == Counter({2: 2, 0: 1, 1: 1})


def test_remembered_neighbours_draft_what_the_index_would(pocket, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    model, tokenizer = pocket
    text = "def add(first, second):\n    return first + second\n\n\n" * 4
    prompts = [Prompt("add", "code", (text,), chat=False)]
    # The prompt's own text, which the model goes on with.
    index = stores.document_store("own", [tokenizer(text * 4)["input_ids"]], tokenizer)
    dense = stores.dense_index(stores.dense_states(model, index), index, dims=32)
    recorded = recorded_runs.record_prompts(model, tokenizer, prompts, None, 24, Capture(layers=(LAST,)))
    remembered = retrieval.Remembered(dense, recorded, 20)
    for shape in ((3, 6), (10, 2)):
        drafters = (Dresd(index, *shape, neighbours=20) for index in (remembered, dense))
        ours, theirs = (recorded_runs.replay_all(recorded, drafter) for drafter in drafters)
        assert comparison.same_steps(ours[0], theirs[0]) and any(step.drafted for step in ours[0].steps)
    states = recorded[0].trace.hidden[LAST][len(recorded[0].trace.prompt) - 1 :].float()
    for known, looked_up in zip(remembered.search(states.numpy(), 7), dense.search(states, 7), strict=True):
        assert np.allclose(known, looked_up, atol=1e-6)
    again = retrieval.remembered(dense, recorded, 20)
    assert retrieval.remembered(dense, list(recorded), 20) is again, "looked up once"
    assert retrieval.remembered(dense, recorded, 10) is not again
    with pytest.raises(ValueError, match="k is 21, but 20 neighbours"):
        remembered.search(recorded[0].trace.hidden[LAST][-1:], 21)
    with pytest.raises(KeyError):
        remembered.search(torch.zeros(1, remembered.width), 1)


def test_recorded_text_is_replayed_whole(pocket):
    tokenizer = pocket[1]
    text = "for i in range(10):\n    print(i)\nfor i in range(10):\n    print(i)\n"
    replies = [Reply("a", "someone", "Write a loop twice.", text), Reply("b", "someone", "Say nothing.", "")]
    recorded = retrieval.record_replies(replies, tokenizer)
    assert [r.prompt.id for r in recorded] == ["a"]
    assert tokenizer.decode(recorded[0].trace.tokens) == text
    runs = recorded_runs.replay_all(recorded, PromptLookup())
    assert runs[0].tokens == recorded[0].trace.tokens and len(runs[0].steps) < len(runs[0].tokens) - 1
