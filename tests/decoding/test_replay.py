"""A replay is the real run, step by step, without the model."""

import time
from functools import partial

import pytest
import torch

from specdec_lib import LAST, Capture, DraftTree, Sampling, generate, record, replay
from specdec_lib.decoding.results import PARTS
from specdec_lib.drafters import PromptLookup, TokenRecycling
from tests.chaos import FACTORIES, SAMPLING, Chaos, Silent
from tests.families import prompt, tokenizer

NEW = 24
SAMPLINGS = (Sampling(), Sampling(0.8, 0.95, seed=2))
EVERYTHING = Capture(layers=(0, 1, 2, LAST), heads=((0, 1), (1, 3)))


def steps(run) -> list:
    return [(step.tree.tokens, step.tree.parents, step.path, step.tokens) for step in run.steps]


ENDS = ("context", "length", "one token", "two tokens", "one-token prompt", "eos", "eos first", "eos second",
        "stop string", "stop first")  # fmt: skip


@pytest.fixture(scope="module")
def ends(llama):
    """Runs by the way in which they end and the sampling: the arguments of ``generate``, a trace, prompt and plain output."""
    words, starts = tokenizer(), {"context": prompt(5, 112), "one-token prompt": prompt(3, 1)}
    plain = generate(llama, prompt(3, 20), max_new_tokens=NEW).tokens
    eos = lambda place: {"max_new_tokens": NEW, "eos_token_id": [plain[place], 10**6]}  # noqa: E731
    stop = lambda text: {"max_new_tokens": NEW, "stop_strings": ["none such", text], "tokenizer": words}  # noqa: E731
    texts = words.decode(plain[9:12]), words.decode(plain[:1])
    until = [next(n for n in range(1, NEW + 1) if text in words.decode(plain[:n])) for text in texts]
    ways = {
        "context": ({"max_new_tokens": 50}, 16, "context"),
        "length": ({"max_new_tokens": NEW}, NEW, "length"),
        "one token": ({"max_new_tokens": 1}, 1, "length"),
        "two tokens": ({"max_new_tokens": 2}, 2, "length"),
        "one-token prompt": ({"max_new_tokens": NEW}, NEW, "length"),
        "eos": (eos(13), plain.index(plain[13]) + 1, "eos"),
        "eos first": (eos(0), 1, "eos"),
        "eos second": (eos(1), plain.index(plain[1]) + 1, "eos"),
        "stop string": (stop(texts[0]), until[0], "stop_string"),
        "stop first": (stop(texts[1]), until[1], "stop_string"),
    }
    made = {}
    for name, (limits, count, reason) in ways.items():
        start = starts.get(name, prompt(3, 20))
        for sampling in SAMPLINGS:
            trace = record(llama, start, sampling, capture=EVERYTHING, **limits)
            # Drafts reach past the end of the run, where the target would go on as drafted.
            tokens = generate(llama, start, None, sampling, NEW + 12).tokens
            if sampling.greedy:
                assert (trace.tokens, trace.finish_reason) == (tokens[:count], reason)
            made[name, sampling] = limits, trace, start + tokens
    return made


@pytest.mark.core_cases(5)
@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("drafter", FACTORIES)
def test_a_run_ends_where_plain_decoding_does_and_its_replay_is_equal_step_by_step(library, llama, ends, drafter, how):
    for sampling in SAMPLINGS:
        if drafter in SAMPLING and not sampling.greedy:
            continue
        limits, trace, text = ends[how, sampling]
        real, again = (FACTORIES[drafter](library, "llama-gqa", text, 5) for _ in range(2))
        run = generate(llama, trace.prompt, real, sampling, **limits)
        ended = trace.tokens, trace.finish_reason, len(trace.prompt)
        assert (run.tokens, run.finish_reason, run.prompt_length) == ended
        if again.replays == "never":
            with pytest.raises(ValueError, match="cannot be replayed: no recording has the outputs it needs"):
                replay(trace, again)
            continue
        replayed = replay(trace, again)
        assert (replayed.tokens, replayed.finish_reason, replayed.prompt_length) == ended
        assert steps(run) == steps(replayed)


class Notes(Chaos):
    """Writes down what it is shown."""

    def start(self, context):
        super().start(context)
        self.seen = []

    def propose(self, context, limit):
        states = [context.hidden(layer).clone() for layer in self.capture.layers]
        self.seen.append((states, context.attention().clone()))
        return super().propose(context, limit)


class Slow(Silent):
    """Takes its time over the prompt, over each draft and to learn from a pass."""

    def start(self, context):
        time.sleep(0.03)

    def propose(self, context, limit):
        time.sleep(0.005)
        return DraftTree.chain([5])

    def verified(self, tree, path, outputs):
        time.sleep(0.004)


def test_the_drafters_time_is_measured_in_real_runs_and_replays(llama):
    trace = record(llama, prompt(3, 20), max_new_tokens=8, eos_token_id=[])
    real = partial(generate, llama, trace.prompt, Slow(), max_new_tokens=8, eos_token_id=[])
    for decode in (real, partial(replay, trace, Slow())):
        began = time.perf_counter()
        run = decode()
        whole = time.perf_counter() - began
        drafted = [step.draft_seconds for step in run.steps if step.drafted]
        assert run.prefill_seconds >= 0.03 and drafted and min(drafted) >= 0.009
        parts = [getattr(step, part) for step in run.steps for part in PARTS]
        assert run.prefill_seconds + sum(parts) <= whole


class Greedy(Silent):
    replays = "greedy"


@pytest.mark.parametrize("drafter, says", [
    (Chaos([], capture=Capture(layers=(1, 2))), r"hidden states of layers \[2\], the trace has \[1\]"),
    (Chaos([], capture=Capture(heads=((1, 1),))), r"attention rows of heads \[\(1, 1\)\], .* has \[\(0, 0\)\]"),
    (Chaos([], capture=Capture(topk=4)), "Chaos.* cannot be replayed: .*use generate"),
    (Greedy(), "the trace was sampled and .*Greedy.*replay a greedy trace"),
    (TokenRecycling(), "TokenRecycling.* cannot be replayed: .*use generate"),
])  # fmt: skip
def test_what_cannot_be_replayed_on_a_trace_is_named(llama, drafter, says):
    capture = Capture(layers=(1,), heads=((0, 0),))
    with pytest.raises(ValueError, match=says):
        replay(record(llama, prompt(3, 8), Sampling(0.7), 4, capture=capture), drafter)
    if isinstance(drafter, Greedy):
        assert replay(record(llama, prompt(3, 8), max_new_tokens=4), drafter).tokens


def test_one_trace_serves_drafters_that_need_different_captures_and_shows_each_what_a_real_run_does(llama):
    both = EVERYTHING | Capture(heads=((0, 0), (0, 1))) | Capture(heads=((1, 2), (0, 1)))
    trace = record(llama, prompt(3, 20), max_new_tokens=NEW, capture=both)
    text = trace.prompt + trace.tokens
    for capture in (EVERYTHING, Capture(heads=((1, 2), (0, 1))), Capture((1,), ((0, 0),))):
        real, again = (Notes(text, 4, capture=capture) for _ in range(2))
        run, replayed = generate(llama, trace.prompt, real, max_new_tokens=NEW), replay(trace, again)
        assert steps(run) == steps(replayed) and len(real.seen) == len(again.seen) > 3
        for (states, rows), (expected_states, expected_rows) in zip(again.seen, real.seen, strict=True):
            torch.testing.assert_close(rows, expected_rows, rtol=1e-3, atol=1e-5)
            for got, expected in zip(states, expected_states, strict=True):
                assert float((got - expected).norm() / expected.norm()) < 1e-4


def test_a_trace_that_was_cut_is_an_error_and_not_an_endless_loop(llama):
    trace = record(llama, prompt(3, 8), max_new_tokens=9)
    del trace.tokens[5:]
    for drafter in (None, PromptLookup()):
        with pytest.raises(RuntimeError, match="ends after 5 tokens"):
            replay(trace, drafter)
