"""Through transformers' own ``generate``: the output is that of ``generate`` without speculation."""

import threading
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

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
    T5Config,
    T5ForConditionalGeneration,
    TemperatureLogitsWarper,
    TextIteratorStreamer,
)
from transformers.generation.streamers import BaseStreamer

from specdec_lib import (
    LAST,
    Capture,
    Drafter,
    DraftTree,
    Generation,
    Sampling,
    custom_generate,
    generate,
    record,
    replay,
)
from specdec_lib.decoding.sampling import distribution
from specdec_lib.drafters import DraftModel, PromptLookup
from tests.chaos import FACTORIES, SAMPLING
from tests.decoding.test_acceptance import RIGHT, surprise
from tests.families import CONTEXT, build, perturbed, prompt, tokenizer

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


def stopping(criterion: StoppingCriteria) -> dict:
    return {"stopping_criteria": StoppingCriteriaList([criterion])}


def plain_tokens(model, **settings) -> list[int]:
    return model.generate(IDS, do_sample=False, **settings)[0, IDS.shape[1] :].tolist()


#: Settings that ask for no other method.
NOTHING = {"num_beams": 1, "num_return_sequences": 1, "penalty_alpha": None}
NOTHING |= {"position_ids": torch.arange(IDS.shape[1])[None], "attention_mask": torch.ones_like(IDS)}
#: Settings of a run whose plain output is ``text``.
CASES = {
    "plain": lambda text: {},
    "nothing": lambda text: NOTHING,
    "max_length": lambda text: {"max_length": 33, "max_new_tokens": None},
    "eos": lambda text: {"eos_token_id": [text[9], 95]},
    "eos at once": lambda text: {"eos_token_id": text[0]},
    "min_new_tokens": lambda text: {"eos_token_id": text[9], "min_new_tokens": 15},
    "repetition_penalty": lambda text: {"repetition_penalty": 1.4},
    "no_repeat_ngram_size": lambda text: {"no_repeat_ngram_size": 2},
    "guidance_scale": lambda text: {"guidance_scale": 1.7, "negative_prompt_ids": torch.tensor([prompt(4, 10)])},
    "bad_words_ids": lambda text: {"bad_words_ids": [[text[9]], [text[2], text[3]]]},
    "stop_strings": lambda text: stopping(StopStringCriteria(WORDS, [WORDS.decode(text[7:9])])),
    "logits_processor": lambda text: {"logits_processor": LogitsProcessorList([Favours()])},
    "stopping_criteria": lambda text: stopping(Contains(text[11])),
}


def through(model, drafter=None, ids=IDS, do_sample=False, max_new_tokens=NEW, seed=0, settings=None, streamer=None):
    """The new tokens of ``generate`` with our decoding method, and what ``on_finish`` was given."""
    runs: list[Generation] = []
    method = custom_generate(drafter, streamer=streamer, seed=seed, on_finish=runs.append)
    settings = {"max_new_tokens": max_new_tokens, "do_sample": do_sample} | (settings or {})
    out = model.generate(ids, custom_generate=method, **settings)
    assert out.dtype == ids.dtype and torch.equal(out[:, : ids.shape[1]], ids)
    return out[0, ids.shape[1] :].tolist(), runs[0]


#: One drafter of each kind: what a setting does to a pass depends on no method.
KINDS = ("chaos", "chaos watching", "chaos riding", "Token Recycling", "perfect", "silent", "PLD", "SpecDec",
         "SpecDec++")  # fmt: skip


@pytest.mark.core_cases(4)
@pytest.mark.parametrize("case", CASES)
def test_greedy_output_equals_that_of_generate(library, llama, case):
    plain = plain_tokens(llama, max_new_tokens=NEW)
    settings = {"max_new_tokens": NEW} | CASES[case](plain)
    expected = plain_tokens(llama, **settings)
    assert case in ("plain", "nothing", "max_length") or expected != plain, "the setting must change something"
    for name in FACTORIES if case == "plain" else KINDS:
        drafter = FACTORIES[name](library, "llama-gqa", IDS[0].tolist() + expected, 2)
        assert through(llama, drafter, settings=settings)[0] == expected, name


@pytest.mark.parametrize(
    "settings",
    [{"temperature": 0.7, "top_p": 0.9, "top_k": 0}, {"temperature": 1.2, "top_k": 12, "repetition_penalty": 1.2}],
)
def test_sampled_output_equals_plain_decoding_with_the_same_seed(library, llama, settings):
    expected, _ = through(llama, None, do_sample=True, seed=5, settings=settings)
    for name in FACTORIES.keys() - SAMPLING:
        drafter = FACTORIES[name](library, "llama-gqa", IDS[0].tolist() + expected, 2)
        assert through(llama, drafter, do_sample=True, seed=5, settings=settings)[0] == expected, name


@pytest.mark.core_cases(4)
@pytest.mark.parametrize("settings, sampling", [
    ({"temperature": 0.3, "top_p": 0.9, "top_k": 0}, Sampling(0.3, 0.9)),
    ({"temperature": 0.5, "top_k": 9}, Sampling(0.5, 1.0, 9)),
    ({"temperature": 0.4, "top_p": 0.0, "top_k": 0}, Sampling(0.4, 1e-300)),
    ({"logits_processor": LogitsProcessorList([TemperatureLogitsWarper(0.3)]), "top_k": 0}, Sampling(0.3)),
])  # fmt: skip
def test_a_draft_model_draws_as_it_does_in_generate(llama, settings, sampling):
    drafter = DraftModel(perturbed(llama, 0.3), 4)
    for seed in (0, 1):
        ours = generate(llama, IDS, drafter, replace(sampling, seed=seed), 40)
        tokens, run = through(llama, drafter, IDS, True, 40, seed, settings)
        assert tokens == ours.tokens and run.stats["acceptance_rate"] == ours.stats["acceptance_rate"]


@pytest.mark.slow
def test_a_draft_model_leaves_the_distribution_as_it_is(llama):
    """The penalty is the target's alone, so that drafts are rejected at times; the expected law is worked out here."""
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
    drafter, counts, rejected = DraftModel(perturbed(llama, 0.3), 2), Counter(), 0
    settings = {"temperature": 0.6, "top_k": 2, "repetition_penalty": 1.3}
    for seed in range(500):
        tokens, run = through(llama, drafter, IDS, True, 3, seed, settings)
        counts[tuple(tokens)] += 1
        rejected += run.stats["acceptance_rate"] < 1
    assert rejected > 50 and surprise(counts, probabilities) < RIGHT


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
    streamer = Collects()
    drafter = FACTORIES["chaos"](library, "llama-gqa", IDS[0].tolist() + expected, 2)
    tokens, run = through(llama, drafter, streamer=streamer)
    assert streamer.ended and streamer.blocks[0] == IDS[0].tolist()
    settings = {"custom_generate": custom_generate(), "max_new_tokens": NEW, "do_sample": False}
    out = llama.generate(IDS, return_dict_in_generate=True, **settings)
    assert out.sequences[0, IDS.shape[1] :].tolist() == expected
    assert [t for block in streamer.blocks[1:] for t in block] == expected == tokens == run.tokens
    assert isinstance(run, Generation) and run.stats["new_tokens"] == NEW
    assert len(streamer.blocks) == len(run.steps) + 2


@pytest.mark.parametrize("settings", [{}, {"dola_layers": "high"}], ids=["served", "refused"])
def test_a_reader_without_a_timeout_comes_to_an_end(llama, settings):
    streamer, text = TextIteratorStreamer(WORDS, skip_prompt=True), []
    reader = threading.Thread(target=lambda: text.extend(streamer), daemon=True)
    reader.start()
    with pytest.raises(ValueError, match="dola_layers is 'high'") if settings else nullcontext():
        through(llama, streamer=streamer, max_new_tokens=8, settings=settings)
    reader.join(timeout=20)
    assert not reader.is_alive()
    assert settings or "".join(text) == WORDS.decode(plain_tokens(llama, max_new_tokens=8))


class NeverRuns:
    """A drafter that shows that no work was done."""

    @property
    def capture(self):
        raise AssertionError("the run began")


ONE_MASKED = torch.ones_like(IDS).index_fill(1, torch.tensor([0]), 0)


def asked(**settings):
    """Settings of transformers' own ``generate``."""
    return lambda model: through(model, NeverRuns(), settings=settings)


def given(**inputs):
    """Further inputs that ``generate`` hands to the method."""
    arguments = (IDS, LogitsProcessorList(), StoppingCriteriaList())
    return lambda model: custom_generate(NeverRuns())(model, *arguments, model.generation_config, **inputs)


T5 = T5Config(vocab_size=96, d_model=32, d_ff=32, num_layers=1, num_heads=2, d_kv=16, decoder_start_token_id=0)
OUTPUTS = ("output_scores", "output_logits", "output_hidden_states", "output_attentions")


@pytest.mark.parametrize("call, words", [
    (asked(num_beams=3), "num_beams is 3"),
    (asked(do_sample=True, num_return_sequences=2), "num_return_sequences is 2"),
    (asked(prompt_lookup_num_tokens=4), "prompt_lookup_num_tokens is 4"),
    (asked(assistant_early_exit=1), "assistant_early_exit is 1"),
    (asked(penalty_alpha=0.6, top_k=4), "penalty_alpha is 0.6"),
    (asked(dola_layers="high"), "dola_layers is 'high'"),
    (asked(inputs_embeds=torch.zeros(1, IDS.shape[1], 32)), "inputs_embeds is given"),
    (asked(position_ids=torch.arange(IDS.shape[1])[None] * 2), "position_ids is given"),
    (asked(past_key_values=DynamicCache()), "(cache|past_key_values) is given"),
    (asked(cache_implementation="quantized"), "cache_implementation is 'quantized'"),
    (asked(attention_mask=ONE_MASKED), "the prompt is padded"),
    *((asked(**{name: True}, return_dict_in_generate=True), f"{name} is set") for name in OUTPUTS),
    (given(pixel_values=torch.zeros(1, 3, 4, 4)), "pixel_values.* is given"),
    (given(mm_encoder_outputs={"image": torch.zeros(1)}), "pixel_values.* is given"),
    (lambda model: asked(token_type_ids=torch.zeros_like(IDS))(build("gpt2")), "token_type_ids is given"),
    (lambda model: through(model, ids=torch.cat([IDS, IDS])), "holds 2 prompts"),
    (lambda model: asked()(T5ForConditionalGeneration(T5).eval()), "T5.* is an encoder-decoder model"),
])  # fmt: skip
def test_what_would_not_be_read_is_refused_by_name(llama, monkeypatch, call, words):
    if words.startswith("cache_implementation"):  # transformers needs a package for such a cache
        monkeypatch.setattr(type(llama), "_prepare_cache_for_generation", lambda *args: None)
    with pytest.raises(ValueError, match=words):
        call(llama)


def test_the_output_ends_with_the_models_context(llama):
    tokens, run = through(llama, ids=torch.tensor([prompt(3, CONTEXT - 6)]), max_new_tokens=20)
    assert len(tokens) == 6 and run.finish_reason == "context"


class Learns(Drafter):
    """Trains in every call, on captured states and attention rows where there are some."""

    def __init__(self, capture=Capture()):
        self.capture, self.steps = capture, 0

    def _train(self, context):
        weight = torch.ones(1, requires_grad=True)
        shown = [context.hidden(layer) for layer in self.capture.layers]
        shown += [context.attention()] if self.capture.heads else []
        loss = weight * len(context.tokens) + sum((states * weight).pow(2).sum() for states in shown)
        loss.sum().backward()
        assert weight.grad is not None
        self.steps += 1

    def start(self, context):
        self.context = context
        self._train(context)

    def propose(self, context, limit):
        self._train(context)
        return DraftTree.chain([context.tokens[-1]])

    def verified(self, tree, path, outputs):
        self._train(self.context)


@pytest.mark.parametrize("capture", [Capture(), Capture(layers=(1, LAST), heads=((0, 1),)), Capture(topk=2)])
def test_a_drafter_may_train_wherever_it_decodes(llama, capture):
    plain = generate(llama, prompt(1, 9), max_new_tokens=8).tokens
    ids, settings = torch.tensor([prompt(1, 9)]), {"do_sample": False, "max_new_tokens": 8, "eos_token_id": None}
    runs = [
        lambda drafter: generate(llama, prompt(1, 9), drafter, max_new_tokens=8).tokens,
        lambda drafter: llama.generate(ids, custom_generate=custom_generate(drafter), **settings)[
            0, ids.shape[1] :
        ].tolist(),
    ]
    if not capture.topk:
        trace = record(llama, prompt(1, 9), max_new_tokens=8, capture=capture)
        runs.append(lambda drafter: replay(trace, drafter).tokens)
    for run in runs:
        drafter = Learns(capture)
        assert run(drafter) == plain and drafter.steps > 2


def test_what_is_no_decoding_method_is_told_how_to_be_written(llama):
    ids = torch.tensor([prompt(1, 9)])
    for given, told in (
        (
            PromptLookup(),
            r"custom_generate is PromptLookup\(.*write custom_generate=specdec_lib.custom_generate\(drafter\)",
        ),
        (PromptLookup, r"the class PromptLookup, .*custom_generate\(PromptLookup\(...\)\)"),
        (custom_generate, r"write custom_generate=custom_generate\(drafter\)"),
    ):
        with pytest.raises(TypeError, match=told):
            llama.generate(ids, custom_generate=given, do_sample=False, max_new_tokens=4)
    with pytest.raises(TypeError, match="no argument 'sed'; expected seed, streamer, on_finish or runtime"):
        custom_generate(PromptLookup(), sed=1)
