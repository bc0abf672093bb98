"""Rows of replays and of real runs: alike where they must be, and a text that differs is counted."""

from dataclasses import replace

import pytest

from specdec_lib import Sampling
from specdec_lib.drafters import PromptLookup
from specdec_lib.experiments.data.prompt import Prompt
from specdec_lib.experiments.runs import recorded_runs, row_files, row_makers
from tests import families

TEXT = "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n" * 3
PROMPTS = [Prompt(str(i), "code", (TEXT[i:],), chat=False) for i in range(2)]


class Live(PromptLookup):
    """A drafter that says it cannot be replayed."""

    replays = "never"


@pytest.fixture
def asked(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    model = families.build("llama-gqa", 0, vocab_size=len(tokenizer), max_position_embeddings=512, eos_token_id=0)
    return model, tokenizer, PROMPTS


def test_real_runs_and_replays_of_a_drafter_have_the_same_rows(asked):
    real = row_makers.decoded_rows(*asked, {"PLD": PromptLookup(2, 4)}, [Sampling(), Sampling(0.7, seed=3)], 16)
    assert real.differs.sum() == real.unexplained.sum() == real.other_steps.sum() == 0
    assert set(real.temperature) == {0, 0.7} and len(real) == 4 and (real.length == real.tokens + 1).all()
    replays = row_makers.replayed_rows(
        *asked, {"PLD": PromptLookup(2, 4), "SAM-Decoding": Live(2, 4), "plain": None}, 16
    )
    greedy = real[real.temperature == 0]
    columns = [name for name in replays if not name.endswith("_s")]
    for method in ("PLD", "SAM-Decoding"):  # replayed, and run for real
        own = replays[replays.method == method].assign(method="PLD")
        assert row_files.differences(greedy[columns], own[columns], columns) == {}
    assert (replays[replays.method == "plain"].passes == replays[replays.method == "plain"].tokens).all()


def test_another_text_is_counted_and_a_drafter_that_cannot_be_replayed_has_no_steps_to_compare(asked, monkeypatch):
    before = recorded_runs.run_each_again

    def one_token_wrong(*given):
        runs = before(*given)
        for own in runs.values():
            own[0] = replace(own[0], tokens=[*own[0].tokens[:-1], (own[0].tokens[-1] + 1) % 100])
        return runs

    monkeypatch.setattr(recorded_runs, "run_each_again", one_token_wrong)
    rows = row_makers.decoded_rows(*asked, {"PLD": PromptLookup(2, 4), "SAM-Decoding": Live(2, 4)}, [Sampling()], 16)
    assert rows.differs.tolist() == rows.unexplained.tolist() == [1, 0, 1, 0]
    assert rows.other_steps.isna().tolist() == [True, False, True, True]
