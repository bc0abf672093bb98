"""Through transformers' own ``generate``: the output is that of ``generate`` without speculation."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
import torch
from transformers import (
    DynamicCache,
    LogitsProcessor,
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
    TemperatureLogitsWarper,
    TextIteratorStreamer,
)
from transformers.generation.streamers import BaseStreamer
from transformers.generation.utils import GenerateDecoderOnlyOutput

from specdec_lib import Generation, Sampling, custom_generate, generate
from specdec_lib.decoding.sampling import distribution
from specdec_lib.drafters import DraftModel
from tests.chaos import FACTORIES, SAMPLING
from tests.decoding.test_acceptance import RIGHT, surprise
from tests.families import CONTEXT, perturbed, prompt, tokenizer

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
        "guidance_scale": {"guidance_scale": 1.7, "negative_prompt_ids": torch.tensor([prompt(4, 10)])},
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
    "guidance_scale",
    "bad_words_ids",
    "stop_strings",
    "logits_processor",
    "stopping_criteria",
)


@pytest.mark.core_cases(4)
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


def finished(model, settings: dict, drafter=None, seed: int = 0, length: int = NEW) -> Generation:
    runs: list[Generation] = []
    model.generate(
        IDS,
        custom_generate=custom_generate(drafter, seed=seed, on_finish=runs.append),
        do_sample=True,
        max_new_tokens=length,
        **settings,
    )
    return runs[0]


@pytest.mark.core_cases(4)
@pytest.mark.parametrize(
    "settings, sampling",
    [
        ({"temperature": 0.3, "top_p": 0.9, "top_k": 0}, Sampling(0.3, 0.9)),
        ({"temperature": 0.5, "top_k": 9}, Sampling(0.5, 1.0, 9)),
        ({"temperature": 0.4, "top_p": 0.0, "top_k": 0}, Sampling(0.4, 1e-300)),
        (
            {"logits_processor": LogitsProcessorList([TemperatureLogitsWarper(0.3)]), "top_k": 0},
            Sampling(0.3),
        ),
    ],
    ids=["top-p", "top-k", "top-p of 0", "a warper of one's own"],
)
def test_a_draft_model_draws_as_it_does_in_generate(llama, settings, sampling):
    def draft() -> DraftModel:
        return DraftModel(perturbed(llama, 0.3), 4)

    for seed in (0, 1, 2):
        ours = generate(llama, IDS, draft(), Sampling(sampling.temperature, sampling.top_p, sampling.top_k, seed), 48)
        through, again = (finished(llama, settings, draft(), seed, 48) for _ in range(2))
        assert through.tokens == again.tokens == ours.tokens
        assert through.stats["acceptance_rate"] == ours.stats["acceptance_rate"]


def test_a_draft_model_leaves_the_distribution_as_it_is(llama):
    """The penalty is the target's alone, so that drafts are refused at times; the expected law is worked out here."""
    sampling, penalty = Sampling(0.6, top_k=2), RepetitionPenaltyLogitsProcessor(1.3)
    probabilities: dict[tuple[int, ...], float] = {(): 1.0}
    with torch.inference_mode():
        for _ in range(3):
            longer = {}
            for text, p in probabilities.items():
                ids = torch.cat([IDS, torch.tensor([text], dtype=torch.long)], 1)
                row = distribution(penalty(ids, llama(ids).logits[:, -1])[0], sampling)
                longer |= {(*text, t): p * float(row[t]) for t in row.nonzero()[:, 0].tolist()}
            probabilities = longer
    drafter, counts, refused = DraftModel(perturbed(llama, 0.3), 2), Counter(), 0
    for seed in range(500):
        run = finished(llama, {"temperature": 0.6, "top_k": 2, "repetition_penalty": 1.3}, drafter, seed, length=3)
        counts[tuple(run.tokens)] += 1
        refused += run.stats["acceptance_rate"] < 1
    assert refused > 50 and surprise(counts, probabilities) < RIGHT


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
    assert isinstance(runs[0], Generation) and runs[0].tokens == expected and runs[0].stats["new_tokens"] == NEW
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


@pytest.mark.parametrize("name", ["output_scores", "output_logits", "output_hidden_states", "output_attentions"])
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
        llama.generate(IDS, custom_generate=custom_generate(), max_new_tokens=5, do_sample=True, num_return_sequences=2)


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


def test_a_streamer_given_to_generate_gets_the_tokens_and_the_end(library, llama):
    expected = plain_tokens(llama, max_new_tokens=NEW)
    ours, both = Collects(), Collects()
    drafter = FACTORIES["chaos"](library, "llama-gqa", IDS[0].tolist() + expected, 2)
    llama.generate(IDS, streamer=ours, custom_generate=custom_generate(drafter), do_sample=False, max_new_tokens=NEW)
    llama.generate(
        IDS,
        streamer=both,
        custom_generate=custom_generate(None, streamer=both),
        do_sample=False,
        max_new_tokens=NEW,
    )
    for streamer in (ours, both):
        assert streamer.ended and streamer.blocks[0] == IDS[0].tolist()
        assert [t for block in streamer.blocks[1:] for t in block] == expected


@pytest.mark.parametrize("settings", [{}, {"dola_layers": "high"}], ids=["served", "refused"])
@pytest.mark.parametrize("place", ["generate", "custom_generate"])
def test_a_reader_without_a_timeout_comes_to_an_end(llama, place, settings):
    streamer, errors, text = TextIteratorStreamer(WORDS, skip_prompt=True), [], []

    def write() -> None:
        given = {"streamer": streamer}
        try:
            llama.generate(
                IDS,
                custom_generate=custom_generate(None, **(given if place == "custom_generate" else {})),
                do_sample=False,
                max_new_tokens=8,
                **settings,
                **(given if place == "generate" else {}),
            )
        except ValueError as error:
            errors.append(str(error))

    reader = threading.Thread(target=lambda: text.extend(streamer), daemon=True)
    reader.start()
    write()
    reader.join(timeout=20)
    assert not reader.is_alive()
    if settings:
        assert "dola_layers is 'high'" in errors[0]
    else:
        assert not errors and "".join(text) == WORDS.decode(plain_tokens(llama, max_new_tokens=8))


def test_two_different_streamers_are_refused_and_both_end(llama):
    one, other = Collects(), Collects()
    with pytest.raises(ValueError, match="the two differ"):
        llama.generate(IDS, streamer=one, custom_generate=custom_generate(None, streamer=other), max_new_tokens=5)
    assert one.ended and other.ended


class NeverRuns:
    """A drafter that shows that no work was done."""

    @property
    def capture(self):
        raise AssertionError("the run began")


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"num_beams": 3}, "num_beams is 3"),
        ({"do_sample": True, "num_return_sequences": 2}, "num_return_sequences is 2"),
        ({"prompt_lookup_num_tokens": 4}, "prompt_lookup_num_tokens is 4"),
        ({"assistant_early_exit": 1}, "assistant_early_exit is 1"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "penalty_alpha is 0.6"),
        ({"dola_layers": "high"}, "dola_layers is 'high'"),
        ({"assistant_model": "the model"}, "assistant_model is given"),
        ({"inputs_embeds": torch.zeros(1, IDS.shape[1], 32)}, "inputs_embeds is given"),
        ({"position_ids": torch.arange(IDS.shape[1])[None] * 2}, "position_ids is given"),
        ({"past_key_values": DynamicCache()}, "(cache|past_key_values) is given"),
        ({"cache_implementation": "quantized"}, "cache_implementation is 'quantized'"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value.split()[0],
)
def test_what_would_not_be_read_is_refused_by_name(llama, monkeypatch, settings, message):
    if "assistant_model" in settings:
        settings = {"assistant_model": llama}
    if "inputs_embeds" in settings:
        settings = {"inputs_embeds": llama.get_input_embeddings()(IDS).detach()}
    if "cache_implementation" in settings:  # transformers needs a package for such a cache
        monkeypatch.setattr(type(llama), "_prepare_cache_for_generation", lambda *args: None)
    with pytest.raises(ValueError, match=message):
        llama.generate(
            IDS,
            custom_generate=custom_generate(NeverRuns()),
            max_new_tokens=5,
            **{"do_sample": False} | settings,
        )


def test_an_input_that_the_model_takes_and_we_do_not_read_is_refused_by_name(library):
    with pytest.raises(ValueError, match="token_type_ids is given"):
        library["gpt2"].generate(
            IDS,
            token_type_ids=torch.zeros_like(IDS),
            custom_generate=custom_generate(),
            max_new_tokens=5,
        )


@pytest.mark.parametrize("name", ["pixel_values", "mm_encoder_outputs"])
def test_an_image_is_refused(llama, name):
    method = custom_generate()
    value = torch.zeros(1, 3, 4, 4) if name == "pixel_values" else {"image": torch.zeros(1)}
    config = llama.generation_config
    with pytest.raises(ValueError, match="pixel_values.* is given"):
        method(llama, IDS, LogitsProcessorList(), StoppingCriteriaList(), config, **{name: value})


def test_settings_that_ask_for_nothing_are_no_other_method(llama):
    settings = {"num_beams": 1, "num_return_sequences": 1, "penalty_alpha": None}
    positions = torch.arange(IDS.shape[1])[None]
    out = llama.generate(
        IDS,
        position_ids=positions,
        custom_generate=custom_generate(),
        do_sample=False,
        max_new_tokens=5,
        **settings,
    )
    assert out[0, IDS.shape[1] :].tolist() == plain_tokens(llama, max_new_tokens=5)


def test_the_output_ends_with_the_models_context(llama):
    runs: list[Generation] = []
    out = llama.generate(
        torch.tensor([prompt(3, CONTEXT - 6)]),
        custom_generate=custom_generate(on_finish=runs.append),
        do_sample=False,
        max_new_tokens=20,
    )
    assert out.shape[1] == CONTEXT and runs[0].finish_reason == "context"
