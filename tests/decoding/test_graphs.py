"""Graph mode's logic on every machine: recorded passes, replayed by an emulator, give the tokens of eager passes."""

from collections.abc import Callable

import peft
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from specdec_lib import Capture, Runtime, Sampling, generate
from specdec_lib.decoding.served_models import unwrapped
from specdec_lib.drafters import DraftModel
from tests.chaos import Chaos, Riding, walk
from tests.families import SERVED, bounded, build, hooked, prompt

WIDTHS = (1, 4, 16, 64)
SEEDED = Sampling(temperature=1.0, top_p=0.9, seed=3)


def graphs(model, capacity=60, widths=WIDTHS) -> Runtime:
    return Runtime(model, capacity, "graph", widths, EmulatedRecorder())


@pytest.mark.core_cases(4)
@pytest.mark.parametrize("family", sorted(SERVED))
def test_replayed_passes_change_no_token_in_any_family(library, family):
    model, ids = library[family], prompt(1, 12)
    runtime = graphs(model)
    for sampling, kind in ((Sampling(), Riding), (SEEDED, Chaos)):
        plain = generate(model, ids, None, sampling, 40)
        for drafter in (kind(ids + plain.tokens), None):  # without one, passes over one token
            assert generate(model, ids, drafter, sampling, 40, runtime=runtime).tokens == plain.tokens
    assert runtime._recorder.operations and {*runtime.passes} > {1, 16, "eager"}


@pytest.mark.parametrize("how", ["static", "graph"])
@pytest.mark.parametrize("family", ["llama-gqa", "mistral-window", "gemma3", "qwen3", "gpt-neox", "gpt2"])
def test_states_and_rows_of_passes_in_place_are_those_of_eager_ones(library, family, how):
    model = library[family]
    runtime = graphs(model, widths=(1, 2, 4, 8)) if how == "graph" else Runtime(model, 60, widths=(1, 2, 4, 8))
    capture = Capture(layers=(0, 1, 2), heads=tuple((b, h) for b in range(2) for h in range(4)))
    for _ in range(2):
        torch.testing.assert_close(walk(model, capture, runtime), walk(model, capture), rtol=1e-3, atol=1e-4)
    assert runtime.passes == {"eager": 2, 4: 8, 8: 6}


def test_weights_that_moved_are_recorded_anew():
    model, ids = build("llama"), prompt(1, 12)
    runtime = graphs(model)
    before = generate(model, ids, max_new_tokens=8, runtime=runtime).tokens
    with torch.no_grad():
        for weights in model.parameters():
            weights.data = (weights * -0.7).clone()
    after = generate(model, ids, max_new_tokens=8)
    assert before != after.tokens
    assert generate(model, ids, max_new_tokens=8, runtime=runtime).tokens == after.tokens


def test_hooks_and_adapters_that_came_or_went_are_recorded_anew():
    model, ids = build("llama-gqa"), prompt(1, 12)
    lora = {"target_modules": ["q_proj", "down_proj"], "init_lora_weights": False, "lora_alpha": 64}
    for seed, name in enumerate(("default", "second")):
        torch.manual_seed(seed)
        config = peft.LoraConfig(task_type="CAUSAL_LM", **lora)
        if seed:
            model.add_adapter(name, config)
        else:
            model = peft.get_peft_model(model, config).eval()
    runtime, texts = graphs(model), []

    def texts_are_equal():
        plain = generate(model, ids, max_new_tokens=8).tokens
        assert generate(model, ids, max_new_tokens=8, runtime=runtime).tokens == plain
        texts.append(tuple(plain))

    texts_are_equal()
    model.set_adapter("second")
    texts_are_equal()
    for layer in model.modules():
        if hasattr(layer, "scaling") and isinstance(layer.scaling, dict):
            layer.scaling["second"] *= 3
    texts_are_equal()
    with model.disable_adapter():
        texts_are_equal()
    handle = unwrapped(model).model.layers[0].mlp.register_forward_hook(lambda module, args, out: -out)
    texts_are_equal()
    handle.remove()
    model.merge_adapter()
    texts_are_equal()
    assert len(set(texts)) >= 5


def test_a_model_whose_positions_the_host_reads_is_refused_before_it_is_recorded():
    with pytest.raises(ValueError, match="'longrope', for which the host reads"):
        graphs(bounded(64))


def test_after_a_pass_that_cannot_be_recorded_the_runtime_and_others_serve(llama):
    ids = prompt(1, 12)
    plain = generate(llama, ids, max_new_tokens=8)
    runtime = graphs(llama)

    def reads(module, args, output):
        assert float(output[0].sum()) < 1e9

    with hooked(llama.model.layers[0].self_attn, reads, llama):
        with pytest.raises(RuntimeError, match="cannot be recorded as a CUDA graph .*mode='static'"):
            generate(llama, ids, max_new_tokens=8, runtime=runtime)
    assert not runtime._kept
    for other in (Runtime(llama, 40), runtime):
        assert generate(llama, ids, max_new_tokens=8, runtime=other).tokens == plain.tokens


def test_a_draft_model_under_graphs_proposes_what_it_proposes_eagerly(library):
    target, ids = library["llama"], prompt(1, 12)
    draft = build("llama")
    wide, narrow = graphs(target, widths=(1, 2, 4)), graphs(draft, widths=(1, 2))
    for sampling in (Sampling(), SEEDED):
        eager = generate(target, ids, DraftModel(draft, 3), sampling, 30)
        fast = generate(target, ids, DraftModel(draft, 3, runtime=narrow), sampling, 30, runtime=wide)
        assert fast.tokens == eager.tokens
        assert [s.tree.tokens for s in fast.steps] == [s.tree.tokens for s in eager.steps]


#: What a GPU cannot record, because the host reads or sends values: the start of the name of such operations.
HOST = ("aten._local_scalar_dense", "aten.nonzero", "aten.masked_select", "aten.item", "aten.is_nonzero", "aten.equal",
        "aten._unique", "aten.unique", "aten.lift_fresh")  # fmt: skip


class _Watch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.done: list[tuple] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = str(func)
        by_mask = name.startswith("aten.index") and any(
            isinstance(index, torch.Tensor) and index.dtype == torch.bool
            for index in (args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else ())
        )
        if name.startswith(HOST) or by_mask:
            raise RuntimeError(f"{name} cannot be recorded: the host would wait for the device")
        out = func(*args, **kwargs)
        self.done.append((func, args, kwargs, out))
        return out


class EmulatedGraph:
    """Recorded operations; what the pass computed with the tensors of its time is computed from what they hold now."""

    def __init__(self, done: list[tuple]):
        self.done = done

    def replay(self) -> None:
        for func, args, kwargs, out in self.done:
            again = func(*args, **kwargs)
            if func._schema.is_mutable:
                continue
            for new, old in zip(tree_leaves(again), tree_leaves(out), strict=True):
                if isinstance(new, torch.Tensor) and new.data_ptr() != old.data_ptr():
                    assert new.shape == old.shape, (func, new.shape, old.shape)
                    old.copy_(new)


class EmulatedRecorder:
    """Records passes on the CPU; ``operations`` are the names of what each graph does, in order."""

    def __init__(self):
        self.operations: list[list[str]] = []

    def __call__(self, run: Callable[[], torch.Tensor]) -> tuple[EmulatedGraph, torch.Tensor]:
        for _ in range(2):
            run()
        with _Watch() as watch:
            result = run()
        self.operations.append([str(func) for func, *_ in watch.done])
        return EmulatedGraph(watch.done), result
