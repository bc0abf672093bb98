"""Passes over buffers in place give the tokens, states and rows of eager passes."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

from specdec_lib import Context, Runtime, Sampling, generate
from specdec_lib.decoding.attention import settings
from specdec_lib.decoding.loop import Limits, ModelVerifier, decode
from specdec_lib.decoding.target import Target
from specdec_lib.drafters import DraftModel, SpecDecPP
from tests.chaos import Chaos, Riding, head_of
from tests.families import build, hooked, prompt

WIDTHS = (1, 2, 4, 8, 16, 32, 64)


def test_a_runtime_serves_one_generation_after_another_and_one_at_a_time(llama):
    runtime = Runtime(llama, capacity=60)
    runs = [generate(llama, prompt(i, 9), max_new_tokens=20, runtime=runtime).tokens for i in (1, 2, 1)]
    assert runs[0] == runs[2] != runs[1]
    assert runs[1] == generate(llama, prompt(2, 9), max_new_tokens=20).tokens
    with Target(llama, 10, runtime=runtime), pytest.raises(RuntimeError, match="in use"):
        generate(llama, prompt(1, 9), max_new_tokens=4, runtime=runtime)
    with pytest.raises(RuntimeError, match="own"):
        generate(llama, prompt(1, 9), DraftModel(llama, 2, runtime=runtime), max_new_tokens=9, runtime=runtime)
    assert generate(llama, prompt(1, 9), max_new_tokens=20, runtime=runtime).tokens == runs[0]


def test_a_runtime_or_a_sequence_that_cannot_be_is_refused_before_any_work(llama, library):
    runtime, other = Runtime(llama, capacity=20), library["qwen3"]
    for call, says in (
        (lambda: Runtime(llama, 0), "capacity is 0"),
        (lambda: Runtime(llama, 20, mode="fast"), "mode is 'fast'"),
        (lambda: Runtime(llama, 20, mode="graph"), "CUDA graphs need a GPU"),
        (lambda: Runtime(llama, 20, widths=(4, 2)), "ascending"),
        (lambda: Runtime(llama, 20, widths=()), "ascending"),
        (lambda: generate(llama, prompt(1, 9), max_new_tokens=20, runtime=runtime), "29 .* the runtime holds 20"),
        (lambda: generate(other, prompt(1, 9), max_new_tokens=2, runtime=runtime), "another model"),
    ):
        with pytest.raises(ValueError, match=says):
            call()
    assert not runtime.passes
    assert generate(llama, prompt(1, 9), max_new_tokens=11, runtime=runtime).tokens


READS = ("tolist", "item", "__bool__", "__float__", "__int__", "cpu", "numpy", "nonzero")


class Reads(TorchFunctionMode):
    """Counts what would make the host wait for a device: values read out of tensors."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.count += getattr(function, "__name__", "") in READS
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("topk", [0, 2])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, seed=3)])
def test_a_step_reads_the_device_once(llama, sampling, topk, monkeypatch):
    ids = prompt(1, 12)
    plain = generate(llama, ids, sampling=sampling, max_new_tokens=30)
    # What a GPU takes: all outcomes at once.
    for module in ("loop", "sampling"):
        monkeypatch.setattr(f"specdec_lib.decoding.{module}.on_gpu", lambda values: True)
    before: list[int] = []

    class Watched(Riding if topk else Chaos):
        def propose(self, context, limit):
            before.append(reads.count)
            return super().propose(context, limit)

    runtime = Runtime(llama, capacity=50, widths=WIDTHS)
    with torch.inference_mode(), Target(llama, 42, runtime=runtime) as target, Reads() as reads:
        bound = sampling.for_prompt(ids)
        verifier = ModelVerifier(target, bound, topk=topk)
        context = Context(list(ids), len(ids), 96, bound)
        run = decode(verifier, Watched(ids + plain.tokens, 0), context, Limits(30))
    assert run.tokens == plain.tokens and len(run.steps) >= 5
    assert reads.count - before[0] == len(run.steps)


def test_a_tree_wider_than_every_width_has_room_up_to_the_last_token(llama):
    ids = prompt(1, 12)
    plain = generate(llama, ids, max_new_tokens=20)
    for widths in ((1,), (1, 4)):
        runtime = Runtime(llama, capacity=32, widths=widths)
        chaos = Chaos(ids + plain.tokens, 5, branches=9, depth=7)
        assert generate(llama, ids, chaos, max_new_tokens=20, runtime=runtime).tokens == plain.tokens
        assert runtime.passes["eager"] > 1


@pytest.mark.parametrize("part", ["target", "draft"])
def test_what_a_failed_pass_left_reaches_no_later_generation(llama, part):
    draft, ids = build("llama-gqa"), prompt(1, 9)
    runtimes = {"target": Runtime(llama, capacity=60), "draft": Runtime(draft, capacity=60, widths=(1, 2))}
    drafter = DraftModel(draft, 3, runtime=runtimes["draft"])

    def run():
        return generate(llama, ids, drafter, max_new_tokens=10, runtime=runtimes["target"])

    def broken(module, args, output):
        with torch.inference_mode():
            for slots in runtimes[part].cache.layers:
                slots.values.fill_(torch.nan)  # as an overflow leaves them
        raise FloatingPointError("an overflow")

    plain = run()
    model = {"target": llama, "draft": draft}[part]
    with hooked(model, broken, model), pytest.raises(FloatingPointError):
        run()
    again = run()
    assert again.tokens == plain.tokens == generate(llama, ids, max_new_tokens=10).tokens
    assert any(step.drafted for step in again.steps)


def test_cudnn_attention_is_off_within_a_pass_on_a_gpu_and_as_it_was_after():
    card, own = torch.device("cuda"), torch.backends.cuda.cudnn_sdp_enabled
    was = own()
    try:
        for before in (True, False):
            torch.backends.cuda.enable_cudnn_sdp(before)
            with pytest.raises(KeyError), settings(card), settings(card):
                assert not own()
                raise KeyError
            with settings(torch.device("cpu")):
                assert own() == before, "nothing is set for a CPU"
    finally:
        torch.backends.cuda.enable_cudnn_sdp(was)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, seed=3)])
@pytest.mark.parametrize("judged", [False, True])
@pytest.mark.parametrize("place", ["eager", "in place"])
def test_drafting_reads_the_device_once_a_round_or_once_a_token(library, place, judged, sampling, monkeypatch):
    target, draft, ids = library["llama"], library.draft("llama"), prompt(1, 12)
    head = head_of(draft, True)
    runtime = Runtime(draft, 60, widths=(1, 4)) if place == "in place" else None
    drafter = SpecDecPP(draft, head, 0.6, runtime=runtime) if judged else DraftModel(draft, 4, runtime=runtime)
    eager = generate(target, ids, drafter, sampling, max_new_tokens=30)
    if judged:  # what a GPU takes: the head's probability stays there until the token is read
        drafter._score = lambda state, confidence: head(state, torch.tensor(confidence)).sigmoid()
    counts, propose = [], drafter.propose

    def watched(context, limit):
        with Reads() as reads:
            tree = propose(context, limit)
        counts.append((reads.count, len(tree)))
        return tree

    monkeypatch.setattr(drafter, "propose", watched)
    run = generate(target, ids, drafter, sampling, max_new_tokens=30)
    assert run.tokens == eager.tokens
    assert [step.tree.tokens for step in run.steps] == [step.tree.tokens for step in eager.steps]
    assert sum(tokens for _, tokens in counts) > 10
    for reads, tokens in counts:
        # A context's end leaves no room for a draft.
        assert reads == (0 if not tokens else tokens if judged else 1)
