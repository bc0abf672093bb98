"""Through transformers' own ``generate``: the output is that of ``generate`` without speculation."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.generation.streamers import BaseStreamer
from transformers.generation.utils import GenerateDecoderOnlyOutput

from specdec_lib import Generation, Sampling, custom_generate, generate
from tests.chaos import FACTORIES, SAMPLING
from tests.families import prompt, tokenizer

NEW = 24
IDS = torch.tensor([prompt(3, 20)])
WORDS = tokenizer()


class Favours(LogitsProcessor):
    """A processor whose effect depends on the whole text so far."""

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        scores[:, (int(input_ids.sum()) * 7) % scores.shape[1]] += 3.0
        return scores


class Contains(StoppingCriteria):
    def __init__(self, token: int):
        self.token = token

    def __call__(self, input_ids, scores, **kwargs):
        return (input_ids[:, IDS.shape[1] :] == self.token).any(-1)


def plain_tokens(model, **settings) -> list[int]:
    return model.generate(IDS, do_sample=False, **settings)[0, IDS.shape[1] :].tolist()


def cases(model) -> dict[str, dict]:
    text = plain_tokens(model, max_new_tokens=NEW)
    end = text[9]
    return {
        "plain": {},
        "max_length": {"max_length": 33, "max_new_tokens": None},
        "eos": {"eos_token_id": [end, 95]},
        "eos at once": {"eos_token_id": text[0]},
        "min_new_tokens": {"eos_token_id": end, "min_new_tokens": 15},
        "repetition_penalty": {"repetition_penalty": 1.4},
        "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
        "bad_words_ids": {"bad_words_ids": [[end], [text[2], text[3]]]},
        "stop_strings": {
            "stopping_criteria": StoppingCriteriaList([StopStringCriteria(WORDS, [WORDS.decode(text[7:9])])])
        },
        "logits_processor": {"logits_processor": LogitsProcessorList([Favours()])},
        "stopping_criteria": {"stopping_criteria": StoppingCriteriaList([Contains(text[11])])},
    }


CASES = (
    "plain",
    "max_length",
    "eos",
    "eos at once",
    "min_new_tokens",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "bad_words_ids",
    "stop_strings",
    "logits_processor",
    "stopping_criteria",
)


@pytest.mark.parametrize("case", CASES)
def test_greedy_output_equals_that_of_generate(library, llama, case):
    settings = {"max_new_tokens": NEW} | cases(llama)[case]
    expected = plain_tokens(llama, **settings)
    if case not in ("plain", "max_length"):
        assert expected != plain_tokens(llama, max_new_tokens=NEW), "the setting must change something"
    for name, factory in FACTORIES.items():
        drafter = factory(library, "llama-gqa", IDS[0].tolist() + expected, 2)
        out = llama.generate(IDS, custom_generate=custom_generate(drafter), do_sample=False, **settings)
        assert out.dtype == IDS.dtype and out[0, IDS.shape[1] :].tolist() == expected, name


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.7, "top_p": 0.9, "top_k": 0},
        {"temperature": 1.2, "top_k": 12, "repetition_penalty": 1.2},
    ],
    ids=str,
)
def test_sampled_output_equals_plain_decoding_with_the_same_seed(library, llama, settings):
    for seed in (0, 5):
        expected = llama.generate(
            IDS,
            custom_generate=custom_generate(None, seed=seed),
            do_sample=True,
            max_new_tokens=NEW,
            **settings,
        )
        for name, factory in FACTORIES.items():
            if name in SAMPLING:
                continue
            drafter = factory(library, "llama-gqa", expected[0].tolist(), 2)
            out = llama.generate(
                IDS,
                custom_generate=custom_generate(drafter, seed=seed),
                do_sample=True,
                max_new_tokens=NEW,
                **settings,
            )
            assert torch.equal(out, expected), name


def test_sampling_through_transformers_equals_sampling_through_generate(llama):
    for seed in (1, 2):
        ours = generate(llama, IDS, None, Sampling(0.7, 0.9, 15, seed), NEW).tokens
        out = llama.generate(
            IDS,
            custom_generate=custom_generate(None, seed=seed),
            do_sample=True,
            temperature=0.7,
            top_p=0.9,
            top_k=15,
            max_new_tokens=NEW,
        )
        assert out[0, IDS.shape[1] :].tolist() == ours


class Collects(BaseStreamer):
    def __init__(self):
        self.blocks, self.ended = [], False

    def put(self, value):
        assert not self.ended
        self.blocks.append(value.flatten().tolist())

    def end(self):
        self.ended = True


def test_a_streamer_receives_prompt_and_tokens_in_order_and_the_end(library, llama):
    expected = plain_tokens(llama, max_new_tokens=NEW)
    streamer, runs = Collects(), []
    drafter = FACTORIES["chaos"](library, "llama-gqa", IDS[0].tolist() + expected, 2)
    llama.generate(
        IDS,
        custom_generate=custom_generate(drafter, streamer=streamer, on_finish=runs.append),
        do_sample=False,
        max_new_tokens=NEW,
    )
    assert streamer.ended and streamer.blocks[0] == IDS[0].tolist()
    assert [t for block in streamer.blocks[1:] for t in block] == expected
    assert (
        isinstance(runs[0], Generation) and runs[0].tokens == expected and runs[0].stats["new_tokens"] == NEW
    )
    assert len(streamer.blocks) == len(runs[0].steps) + 2


def test_a_dict_is_given_where_asked_for(llama):
    out = llama.generate(
        IDS,
        custom_generate=custom_generate(),
        do_sample=False,
        max_new_tokens=5,
        return_dict_in_generate=True,
    )
    assert isinstance(out, GenerateDecoderOnlyOutput)
    assert out.sequences[0, IDS.shape[1] :].tolist() == plain_tokens(llama, max_new_tokens=5)


@pytest.mark.parametrize(
    "name", ["output_scores", "output_logits", "output_hidden_states", "output_attentions"]
)
def test_outputs_that_are_not_kept_are_refused(llama, name):
    with pytest.raises(ValueError, match=f"{name} is set"):
        llama.generate(
            IDS,
            custom_generate=custom_generate(),
            max_new_tokens=5,
            return_dict_in_generate=True,
            **{name: True},
        )


def test_a_batch_is_refused(llama):
    with pytest.raises(ValueError, match="holds 2 prompts"):
        llama.generate(torch.cat([IDS, IDS]), custom_generate=custom_generate(), max_new_tokens=5)


def test_several_sequences_are_refused(llama):
    with pytest.raises(ValueError, match="num_return_sequences is 2"):
        llama.generate(
            IDS, custom_generate=custom_generate(), max_new_tokens=5, do_sample=True, num_return_sequences=2
        )


def test_a_padded_prompt_is_refused(llama):
    mask = torch.ones_like(IDS)
    mask[0, 0] = 0
    with pytest.raises(ValueError, match="the prompt is padded"):
        llama.generate(IDS, attention_mask=mask, custom_generate=custom_generate(), max_new_tokens=5)


def test_a_full_attention_mask_is_no_padding(llama):
    out = llama.generate(
        IDS,
        attention_mask=torch.ones_like(IDS),
        custom_generate=custom_generate(),
        do_sample=False,
        max_new_tokens=5,
    )
    assert out[0, IDS.shape[1] :].tolist() == plain_tokens(llama, max_new_tokens=5)


@pytest.mark.parametrize("family", ["gpt-neox", "gemma", "gemma2", "gpt2", "mistral-window"])
def test_other_families_go_through_transformers_too(library, family):
    model = library[family]
    expected = plain_tokens(model, max_new_tokens=NEW)
    drafter = FACTORIES["chaos"](library, family, IDS[0].tolist() + expected, 3)
    out = model.generate(IDS, custom_generate=custom_generate(drafter), do_sample=False, max_new_tokens=NEW)
    assert out[0, IDS.shape[1] :].tolist() == expected
