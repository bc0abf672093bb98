"""What a drafter declares and a generation leaves; bad input is refused with the value and what to do, before the model runs."""

import gc
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

from specdec_lib import (
    AuxiliaryTokens,
    Capture,
    DraftTree,
    Runtime,
    Sampling,
    Trace,
    UnsupportedModel,
    WrappedDrafter,
    generate,
    record,
    replay,
)
from specdec_lib.decoding.cache import TreeCache
from specdec_lib.decoding.loop import Limits
from specdec_lib.decoding.tree import EMPTY
from specdec_lib.drafters import AdaptiveDraftModel, Lookahead, PromptLookup, TokenRecycling, stopping
from tests.chaos import FACTORIES, Chaos, Perfect, Silent
from tests.families import CONTEXT, VOCABULARY, bounded, build, hooked, prompt, tokenizer


def test_a_wrapped_drafter_is_passed_every_call(llama):
    class All(Chaos):
        replays = "greedy"

        def __getattribute__(self, name):
            if name in ("reset", "start", "propose", "verified", "finish", "evidence"):
                calls.append(name)
            return super().__getattribute__(name)

    plain, told = generate(llama, prompt(1, 9), max_new_tokens=12).tokens, []
    for wrap in (lambda drafter: drafter, WrappedDrafter):
        calls: list[str] = []
        drafter = wrap(All(prompt(1, 9) + plain, capture=Capture((1,), topk=2)))
        assert (drafter.capture, drafter.replays) == (Capture((1,), topk=2), "greedy")
        drafter.reset()
        run = generate(llama, prompt(1, 9), drafter, max_new_tokens=12)
        assert run.tokens == plain and calls.count("verified") == len(run.steps)
        drafter.evidence(None)
        told.append(calls)
    assert told[0] == told[1] and set(told[0]) == {"reset", "start", "propose", "verified", "finish", "evidence"}


@pytest.mark.parametrize("make", [
    lambda: DraftTree.chain([5, 6, 7, 8]),
    lambda: DraftTree.chain([5, 6, 7, 8], torch.full((4, 9), 1 / 9)),
    lambda: DraftTree([5, 6, 7, 8], [-1, -1, 0, 2]),
    lambda: DraftTree.from_drafts([[5, 6], [5, 7]], merge=False),
])  # fmt: skip
def test_notes_of_a_tree_go_with_its_nodes(make):
    tree = make()
    visible = np.random.default_rng(0).random((3, 8)) < 0.5
    riding = AuxiliaryTokens([1, 2, 1], [9, 0, 4], visible)
    noted = tree.annotated(scores=[1, 0.5, 0.25, 0.125], sources=list("abcd"), auxiliary=riding)
    assert (tree.scores, tree.sources, tree.auxiliary, tree.width) == (None, None, None, 5)
    assert (noted.tokens, noted.parents, noted.children()) == (tree.tokens, tree.parents, tree.children())
    assert noted.probabilities is tree.probabilities and noted.is_chain == tree.is_chain
    assert noted == tree.annotated(scores=noted.scores, sources=noted.sources, auxiliary=riding) != tree
    assert noted != tree.annotated(scores=[1, 0.5, 0.25, 0.1], sources=noted.sources, auxiliary=riding)
    assert (noted.width, len(noted), noted.block(3)) == (8, 4, [3, *tree.tokens, 1, 2, 1])
    assert noted.block_depths == [0, *tree.depths, 9, 0, 4] and not noted.is_causal
    mask = noted.mask()
    assert np.array_equal(mask[:5, :5], tree.mask()) and not mask[:5, 5:].any() and np.array_equal(mask[5:], visible)
    for depth in range(4):
        cut, bare = noted.truncated(depth), tree.truncated(depth)
        kept = [node for node in range(4) if tree.depths[node] <= depth]
        assert (cut.tokens, cut.parents) == (bare.tokens, bare.parents)
        assert (cut.scores, cut.sources) == ([noted.scores[node] for node in kept], ["abcd"[node] for node in kept])
        assert (cut.auxiliary.tokens, cut.auxiliary.depths) == ([1, 2, 1], [9, 0, 4])
        assert np.array_equal(cut.auxiliary.visible, visible[:, [0, *(n + 1 for n in kept), 5, 6, 7]])


def test_a_replay_from_an_equal_state_is_the_real_run(library, llama):
    """Of drafters that keep what they learn: the same prompts in the same order."""

    def drafts(run):
        return [(step.tree, step.path) for step in run.steps]

    draft = library.draft("llama-gqa")
    traces = [record(llama, prompt(seed, 20), max_new_tokens=20) for seed in (3, 4, 3)]
    real, again, seen = *(AdaptiveDraftModel(draft, stopping.Heuristic(3)) for _ in range(2)), []
    for trace in traces:
        seen.append(drafts(generate(llama, trace.prompt, real, max_new_tokens=20)))
        assert seen[-1] == drafts(replay(trace, again))
    assert seen[0] != seen[2], "nothing was learned"
    real.reset()
    assert drafts(generate(llama, traces[0].prompt, real, max_new_tokens=20)) == seen[0]


def test_what_was_learned_of_another_vocabulary_is_forgotten_before_the_next_generation():
    large, small, drafter = build("llama", vocab_size=200), build("llama"), TokenRecycling()
    for model in (large, small, small, large):
        plain = generate(model, prompt(1, 9), max_new_tokens=20).tokens
        assert generate(model, prompt(1, 9), drafter, max_new_tokens=20).tokens == plain
        assert max(map(max, drafter.table.values())) < model.config.vocab_size
    assert generate(small, prompt(1, 9), WrappedDrafter(drafter), max_new_tokens=20).tokens


@pytest.mark.core_cases(4)
@pytest.mark.parametrize("how", ["eager", "static"])
@pytest.mark.parametrize("name", ["plain", "chaos watching", "chaos riding", "PLD+ (a)", "SpecDec", "holds"])
def test_no_cache_outlives_its_generation(library, llama, name, how):
    start = prompt(1, 9)
    text = start + generate(llama, start, max_new_tokens=6).tokens

    class Holds(Perfect):
        """Keeps what it is shown of each generation."""

        def start(self, context):
            self.held = [*getattr(self, "held", []), context]

    made = {"plain": lambda *given: None, "holds": lambda *given: Holds(text)} | FACTORIES
    drafter = made[name](library, "llama-gqa", text, 0)
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            runtime = Runtime(llama, 20, widths=(1, 8)) if how == "static" else None
            generate(llama, start, drafter, max_new_tokens=6, runtime=runtime)
            record(llama, start, max_new_tokens=3, capture=Capture((1,), ((0, 1),), 2))
        del runtime  # it holds its own cache
        alive = sum(type(each) is TreeCache for each in gc.get_objects())
    finally:
        gc.enable()
    assert alive == 0


@pytest.fixture
def idle(llama):
    """The model, which must not run."""
    with hooked(llama, lambda *args: pytest.fail("the model ran"), llama, before=True):
        yield llama


TINY = {"vocab_size": 16, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}


@pytest.mark.parametrize("arguments, kind, says", [
    ({"input_ids": []}, ValueError, "input_ids is empty"),
    ({"input_ids": [1, VOCABULARY]}, ValueError, f"token id {VOCABULARY} is outside the model's vocabulary of"),
    ({"input_ids": [1, -1]}, ValueError, "token id -1 is outside"),
    ({"input_ids": torch.tensor([[1, 2], [3, 4]])}, ValueError, "input_ids holds 2 prompts"),
    ({"input_ids": torch.ones((1, 1, 3), dtype=torch.long)}, ValueError, r"shape \(1, 1, 3\)"),
    ({"input_ids": "import os"}, TypeError, "input_ids is text"),
    ({"input_ids": {"input_ids": [1, 2]}}, TypeError, "input_ids is a dict; expected token ids"),
    ({"input_ids": [[1, 2], [3]]}, ValueError, "input_ids holds several prompts; expected one"),
    ({"input_ids": ["import", "os"]}, TypeError, "expected whole numbers"),
    ({"input_ids": [1.0, 2.0]}, TypeError, "float64; expected whole numbers"),
    ({"input_ids": torch.tensor([True, False])}, TypeError, "bool; expected whole numbers"),
    ({"input_ids": [5] * 176}, ValueError, f"the prompt has 176 tokens and the model's context is {CONTEXT}"),
    ({"input_ids": [5] * CONTEXT}, ValueError, f"the prompt has {CONTEXT} tokens .* no room"),
    *(({"eos_token_id": given}, TypeError, "eos_token_id is .* expected") for given in ("</s>", [2.7], 2.7)),
    *(({"eos_token_id": given}, ValueError, r"; expected ids, or \[\] for no end") for given in (-1, [96])),
    ({"max_new_tokens": 0}, ValueError, "max_new_tokens is 0"),
    ({"max_new_tokens": 2.0}, ValueError, "max_new_tokens is 2.0"),
    ({"sampling": 0.7}, TypeError, "sampling is 0.7; expected a specdec_lib.Sampling"),
    ({"stop_strings": ["x"]}, ValueError, "stop_strings needs the tokenizer"),
    ({"stop_strings": ["x", ""], "tokenizer": tokenizer()}, ValueError, "stop_strings is .*not empty"),
    ({"stop_strings": ["x"], "tokenizer": tokenizer(110)}, ValueError, "has 110 tokens, the model embeds 96"),
    ({"model": BertModel(BertConfig(**TINY))}, TypeError, "model is a BertModel; expected a causal language model"),
    ({"model": torch.nn.Linear(2, 2)}, TypeError, "model is a Linear; expected a causal language model"),
    ({"model": "pocket"}, TypeError, "model is a str; expected a causal language model"),
])  # fmt: skip
def test_what_cannot_be_decoded_is_refused_before_the_model_runs(idle, arguments, kind, says):
    for run in (generate, record):
        with pytest.raises(kind, match=says):
            run(**{"model": idle, "input_ids": [1, 2]} | arguments)


def declaring(**declared) -> Silent:
    """A drafter with these attributes of its own."""
    drafter = Silent()
    vars(drafter).update(declared)
    return drafter


DUCK = SimpleNamespace(capture=Capture(), start=print, propose=print)


@pytest.mark.parametrize("drafter, kind, says", [
    (DUCK, TypeError, "expected an object of a subclass of specdec_lib.Drafter"),
    ("pld", TypeError, "expected an object of a subclass of specdec_lib.Drafter"),
    (PromptLookup, TypeError, r"Drafter: make one, PromptLookup\(...\)"),
    (declaring(capture=(1,)), TypeError, r"has capture \(1,\); expected"),
    (declaring(replays="sometimes"), ValueError, "is 'sometimes'; expected one of any, greedy, never"),
])  # fmt: skip
def test_what_is_no_drafter_is_told_what_to_be(llama, idle, drafter, kind, says):
    trace = Trace([3], [4, 5], Sampling(), VOCABULARY, Limits(2), "length")
    for run in (lambda: generate(idle, [3, 4], drafter), lambda: replay(trace, drafter)):
        with pytest.raises(kind, match=says):
            run()


FAR = DraftTree.chain([]).annotated(auxiliary=AuxiliaryTokens([96], [1], np.ones((1, 2), bool)))


@pytest.mark.parametrize("proposal, kind, says", [
    (None, TypeError, r"propose\(\) of Silent.* returned None; expected a specdec_lib.DraftTree"),
    ([3, 4], TypeError, r"returned \[3, 4\]; expected a specdec_lib.DraftTree"),
    ((DraftTree.chain([3]), 1), TypeError, r"returned \(.*; expected a specdec_lib.DraftTree"),
    (DraftTree.chain([99]), ValueError, "drafted token id 99, outside the target's vocabulary of 96"),
    (FAR, ValueError, "drafted token id 96, outside the target's vocabulary of 96"),
    (lambda text: text.append(3) or EMPTY, RuntimeError, "changed the number of context.tokens; it may only read"),
])  # fmt: skip
def test_what_cannot_be_verified_is_named(llama, proposal, kind, says):
    trace = record(llama, [3, 4], max_new_tokens=5, eos_token_id=[])
    drafts = lambda context, limit: proposal(context.tokens) if callable(proposal) else proposal  # noqa: E731
    for run in (
        lambda: generate(llama, [3, 4], declaring(propose=drafts), eos_token_id=[]),
        lambda: generate(llama, [3, 4], declaring(propose=drafts), Sampling(0.7), eos_token_id=[]),
        lambda: replay(trace, declaring(propose=drafts)),
    ):
        with pytest.raises(kind, match=says):
            run()


def test_every_form_of_prompts_numbers_and_end_tokens_is_taken(llama):
    plain = generate(llama, [3, 4, 5], max_new_tokens=9).tokens
    for ids in ((3, 4, 5), np.array([3, 4, 5], np.int32), torch.tensor([3, 4, 5]), np.array([[3, 4, 5]])):
        before = str(ids)
        assert generate(llama, ids, max_new_tokens=9).tokens == plain and str(ids) == before
    for number in (np.int64(5), np.uint8(5), torch.tensor(5)):
        assert generate(llama, [3, 4, 5], max_new_tokens=number).tokens == plain[:5]
        assert Runtime(llama, number).capacity == Capture(topk=number).topk == 5
    cut = plain.index(plain[4]) + 1
    for form in (int, np.int64, torch.tensor, lambda i: [i], lambda i: {i}, lambda i: torch.tensor([i])):
        assert generate(llama, [3, 4, 5], max_new_tokens=9, eos_token_id=form(plain[4])).tokens == plain[:cut]


def test_the_models_own_end_token_counts_unless_another_is_given():
    model = build("llama-gqa")
    plain = generate(model, [3, 4, 5], max_new_tokens=9).tokens
    model.generation_config.eos_token_id = plain[3]
    cut = plain.index(plain[3]) + 1
    run = generate(model, [3, 4, 5], max_new_tokens=9)
    assert (run.tokens, run.finish_reason) == (plain[:cut], "eos")
    assert generate(model, [3, 4, 5], max_new_tokens=9, eos_token_id=[]).tokens == plain


def test_long_context_positions_that_change_over_are_served_up_to_the_change_and_no_pass_reads_past_it():
    """A single token past it, an auxiliary token or padding too, and the frequencies of the whole pass would be others."""
    model, ids, limits = bounded(32), prompt(0, 12), {"max_new_tokens": 20, "eos_token_id": []}
    with pytest.raises(UnsupportedModel, match="32 tokens.* may take 33"):
        generate(model, ids, max_new_tokens=21)
    plain = generate(model, ids, **limits)
    riding = generate(model, ids, Lookahead(), **limits)
    runtime = Runtime(model, 32, widths=(1, 8))
    padded = generate(model, ids, Perfect([*ids, *plain.tokens], 3), **limits, runtime=runtime)
    assert riding.tokens == padded.tokens == plain.tokens
