"""What a GPU alone can show; needs torch, transformers, numpy, numba and pytest. Every machine runs ``test_graphs.py``."""

import gc
import time

import pytest
import torch
from transformers import PreTrainedModel

from specdec_lib import Capture, Runtime, Sampling, generate
from specdec_lib.decoding.results import PARTS
from specdec_lib.drafters import DraftModel, PromptLookup, SpecDecPP
from tests import families
from tests.chaos import Chaos, head_of, walk
from tests.families import perturbed, prompt

MODE = "graph"
pytestmark = pytest.mark.gpu
WIDTHS = (1, 2, 4, 8, 16, 32, 64)
SEEDED = Sampling(temperature=1.0, top_p=0.9, seed=3)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def build(head_dim: int = 64, kv_heads: int = 4, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A Llama of four query heads and two layers, whose choices depend on what it attends to."""
    model = families.build(
        "llama", hidden_size=4 * head_dim, intermediate_size=256, num_key_value_heads=kv_heads, head_dim=head_dim,
        max_position_embeddings=4096, initializer_range=0.08,
    )  # fmt: skip
    return model.to("cuda", dtype)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("dtype", DTYPES)
def test_graphs_compute_what_static_and_eager_passes_do(dtype, head_dim, kv_heads):
    model = build(head_dim, kv_heads, DTYPES[dtype])
    capture = Capture(layers=(1,), heads=((0, 1), (1, 3)))
    # float32 to the rounding of products, bfloat16 to a few units of its own.
    tolerance = {"rtol": 1e-3, "atol": 1e-3} if dtype == "float32" else {"rtol": 0.05, "atol": 0.15}
    sizes = {"start": 230, "room": 400, "passes": 12}
    eager = walk(model, capture, **sizes)
    for mode in (MODE, "static"):
        runtime = Runtime(model, 400, mode, WIDTHS)
        # A second run replays what the first recorded, over other memory.
        for _ in range(2):
            torch.testing.assert_close(walk(model, capture, runtime, **sizes), eager, **tolerance)


@pytest.mark.parametrize("sampling", [Sampling(), SEEDED])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_trees_under_graphs_change_no_token(kv_heads, sampling):
    model, ids = build(kv_heads=kv_heads), prompt(1, 240)
    plain = generate(model, ids, sampling=sampling, max_new_tokens=60)
    runtime = Runtime(model, 320, MODE, WIDTHS)
    for seed in range(3):
        chaos = Chaos(ids + plain.tokens, seed)
        assert generate(model, ids, chaos, sampling, max_new_tokens=60, runtime=runtime).tokens == plain.tokens
    assert sum(n for width, n in runtime.passes.items() if width != "eager") > 20


@pytest.mark.parametrize("sampling", [Sampling(), SEEDED])
@pytest.mark.parametrize("judged", [False, True])
def test_draft_models_under_graphs_draft_what_they_draft_eagerly(judged, sampling):
    target, ids = build(), prompt(1, 40)
    draft = perturbed(target)

    def drafter(runtime):
        return SpecDecPP(draft, head_of(draft, True), 0.6, runtime=runtime) if judged else DraftModel(draft, 4, runtime)

    eager = generate(target, ids, drafter(None), sampling, max_new_tokens=60)
    runtimes = Runtime(target, 120, MODE, WIDTHS), Runtime(draft, 120, MODE, (1, 2, 4))
    graph = generate(target, ids, drafter(runtimes[1]), sampling, max_new_tokens=60, runtime=runtimes[0])
    assert graph.tokens == eager.tokens
    assert [step.tree.tokens for step in graph.steps] == [step.tree.tokens for step in eager.steps]
    if sampling.greedy:
        assert graph.tokens == generate(target, ids, max_new_tokens=60).tokens


def test_the_parts_of_a_generation_add_up_to_the_wall_clock():
    model, ids = build(128, dtype=torch.bfloat16), prompt(1, 200)
    for runtime in (None, Runtime(model, 700, MODE, WIDTHS)):
        generate(model, ids, PromptLookup(3, 7), max_new_tokens=400, runtime=runtime)
        torch.cuda.synchronize()
        began = time.perf_counter()
        run = generate(model, ids, PromptLookup(3, 7), max_new_tokens=400, runtime=runtime)
        wall = time.perf_counter() - began
        parts = run.prefill_seconds + sum(getattr(step, part) for step in run.steps for part in PARTS)
        assert parts == pytest.approx(wall, rel=0.1)


@pytest.mark.parametrize("mode", ["eager", MODE])
def test_memory_is_flat_over_twenty_generations(mode):
    model, ids = build(128, dtype=torch.bfloat16), prompt(1, 200)
    draft = perturbed(model)
    runtimes = (
        (None, None) if mode == "eager" else (Runtime(model, 300, MODE, WIDTHS), Runtime(draft, 300, MODE, (1, 2)))
    )

    def once() -> int:
        generate(model, ids, DraftModel(draft, 4, runtimes[1]), max_new_tokens=40, runtime=runtimes[0])
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    for _ in range(3):
        before = once()
    gc.disable()  # what is free only after a collection is not free
    try:
        assert [once() for _ in range(20)] == [before] * 20
    finally:
        gc.enable()


def test_a_capture_that_failed_leaves_the_device_usable():
    model, ids = build(), prompt(1, 40)
    plain = generate(model, ids, max_new_tokens=10)
    hook = model.model.layers[0].register_forward_hook(lambda module, args, output: float(output[0].sum()) and None)
    runtime = Runtime(model, 100, MODE, (1, 8))
    with pytest.raises(RuntimeError, match="cannot be recorded as a CUDA graph"):
        generate(model, ids, max_new_tokens=10, runtime=runtime)
    hook.remove()
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    for again in (Runtime(model, 100, "static", (1, 8)), runtime, Runtime(model, 100, MODE, (1, 8))):
        assert generate(model, ids, max_new_tokens=10, runtime=again).tokens == plain.tokens
