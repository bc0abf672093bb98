"""Products for a few rows are those of the plain layer, with the weights as they are at each pass; the model stays transformers' own."""

import copy
import time
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModelForCausalLM

from specdec_lib import Capture, Runtime, generate, load_model, paths, record
from specdec_lib.decoding import small_batch
from specdec_lib.decoding.small_batch import SmallBatchLinear, fits_small_batch
from specdec_lib.decoding.target import Target
from specdec_lib.drafters import PromptLookup, head_drafter
from specdec_lib.drafters.medusa import Medusa
from specdec_lib.heads.drafting import MedusaHeads
from tests.families import build, hooked, prompt


class Counted(SmallBatchLinear):
    """Counts the products that are not torch's."""

    def __init__(self):
        self.count, self.before = 0, small_batch.product

    def __enter__(self):
        small_batch.product = self._product
        return super().__enter__()

    def __exit__(self, *raised):
        small_batch.product = self.before
        return super().__exit__(*raised)

    def _product(self, *tensors):
        self.count += 1
        return self.before(*tensors)


@pytest.fixture
def served(monkeypatch):
    """Models of any size are served, on any processor."""
    monkeypatch.setattr(small_batch, "SMALLEST", 0)
    monkeypatch.setattr(small_batch, "product_is_faster", lambda threads: True)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 4, 7, 15, 40, 70])
def test_the_product_is_that_of_the_plain_layer(rows, bias, threads, monkeypatch):
    monkeypatch.setattr(small_batch, "SHARE", 96)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    layer, states = nn.Linear(96, 131, bias=bias), torch.randn(1, rows, 96)
    with torch.no_grad(), Counted() as products:
        for edit in (
            lambda: None,
            lambda: layer.weight.data[:, 5:9].zero_(),
            lambda: layer.weight.mul_(2),
            lambda: setattr(layer.weight, "data", layer.weight.data.t().contiguous().t()),  # lies otherwise in memory
        ):
            edit()
            expected = states.double() @ layer.weight.double().T + (layer.bias.double() if bias else 0)
            torch.testing.assert_close(layer(states).double(), expected, rtol=1e-5, atol=1e-5)
    assert products.count == (3 if rows <= small_batch.ROWS else 0)


def test_numbers_that_are_none_are_kept():
    layer, states = nn.Linear(96, 8, bias=False), torch.randn(3, 96)
    states[1, 5], states[2, 7] = torch.nan, torch.inf
    with torch.inference_mode(), Counted() as products:
        assert layer(states).isfinite().all(-1).tolist() == [True, False, False]
    assert products.count == 1


@pytest.mark.parametrize("slow", ["product", "linear"])
def test_the_faster_of_two_products_is_found(slow, monkeypatch):
    """Neither computes anything; one of them sleeps."""
    for name in ("product", "linear"):
        seconds = 1e-3 if name == slow else 0
        monkeypatch.setattr(small_batch, name, lambda states, weight, seconds=seconds: time.sleep(seconds))
    assert small_batch.product_is_faster.__wrapped__(1) == (slow == "linear")


def test_two_products_of_float32_are_compared_whatever_the_context(monkeypatch):
    seen = []

    def seeing(name, own):
        def compute(states, weight):
            seen.append((name, states.dtype, weight.device.type, own(states, weight).dtype))

        return compute

    with torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
        for name in ("product", "linear"):
            monkeypatch.setattr(small_batch, name, seeing(name, getattr(small_batch, name)))
        try:
            torch.set_default_dtype(torch.bfloat16)
            small_batch.product_is_faster.__wrapped__(1)
        finally:
            torch.set_default_dtype(torch.float32)
    assert set(seen) == {(name, torch.float32, "cpu", torch.float32) for name in ("product", "linear")}


def test_the_product_is_not_compared_with_itself(monkeypatch):
    calls, counts = [], []
    monkeypatch.setattr(
        small_batch, "product", lambda *tensors, own=small_batch.product: calls.append(1) or own(*tensors)
    )
    for context in (nullcontext, SmallBatchLinear):
        calls.clear()
        with context():
            small_batch.product_is_faster.__wrapped__(1)
        counts.append(len(calls))
    assert counts[0] == counts[1] > 0


def test_torch_computes_where_its_product_is_faster(served, monkeypatch):
    monkeypatch.setattr(small_batch, "product_is_faster", lambda threads: False)
    monkeypatch.setattr(small_batch, "product", lambda *tensors: pytest.fail("a product of ours"))
    assert len(generate(build("llama-gqa"), prompt(3, 12), max_new_tokens=4, eos_token_id=[]).tokens) == 4


@pytest.mark.parametrize("faster", [True, False])
def test_heads_draft_with_the_faster_product(faster, monkeypatch):
    """The model is too small to be served, so all products of ours are the heads'."""
    model, calls = build("llama-gqa"), []
    monkeypatch.setattr(
        small_batch, "product", lambda *tensors, own=small_batch.product: calls.append(1) or own(*tensors)
    )
    monkeypatch.setattr(head_drafter, "product_is_faster", lambda threads: faster)
    drafter = Medusa(model, MedusaHeads.for_target(model, heads=2), shape=[(-1, 0), (0, 0)])
    run = generate(model, prompt(3, 12), drafter, max_new_tokens=8, eos_token_id=[])
    assert run.tokens == generate(model, prompt(3, 12), max_new_tokens=8, eos_token_id=[]).tokens
    assert bool(calls) == faster


class Doubled(torch.Tensor):
    """Weights of a type of their own, which compute twice the product."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is not F.linear:
            return super().__torch_function__(function, types, args, kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return 2 * function(*args, **(kwargs or {}))


def test_what_the_product_does_not_know_is_left_to_torch():
    layer, states = nn.Linear(8, 8), torch.randn(2, 8)
    with torch.no_grad():
        twice = 2 * layer(states)
    own = copy.deepcopy(layer)
    own.weight = nn.Parameter(layer.weight.detach().as_subclass(Doubled), requires_grad=False)
    with Counted() as products:
        layer(states.requires_grad_()).sum().backward()
        assert states.grad is not None and layer.weight.grad is not None
        with torch.no_grad():
            torch.testing.assert_close(torch.Tensor(own(states)), twice)
            with torch.autocast("cpu", torch.bfloat16):
                assert layer(states).dtype == torch.bfloat16
            half = copy.deepcopy(layer).to(torch.bfloat16)
            assert half(torch.ones(1, 8, dtype=torch.bfloat16)).dtype == torch.bfloat16
            assert half(torch.ones(0, 8, dtype=torch.bfloat16)).shape == (0, 8)
            with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
                layer(torch.ones(2, 7))
    assert products.count == 0


def test_a_default_type_or_device_changes_nothing(served):
    model, ids = build("llama-gqa"), prompt(3, 12)
    plain = generate(model, ids, max_new_tokens=8, eos_token_id=[]).tokens
    try:
        torch.set_default_dtype(torch.bfloat16)
        assert generate(model, ids, PromptLookup(), max_new_tokens=8, eos_token_id=[]).tokens == plain
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("static", [False, True])
def test_text_states_and_rows_are_those_of_transformers_forward(served, static):
    model, ids = build("llama-gqa"), prompt(3, 12)
    assert fits_small_batch(model) and not fits_small_batch(copy.deepcopy(model).to(torch.bfloat16))
    capture, runtime = Capture(layers=(1,), heads=((1, 2),)), Runtime(model, 40) if static else None
    runs = [
        record(model, ids, max_new_tokens=20, eos_token_id=[], capture=capture, runtime=how)
        for how in (runtime, "transformers")
    ]
    assert runs[0].tokens == runs[1].tokens
    torch.testing.assert_close(runs[0].hidden[1], runs[1].hidden[1], rtol=1e-4, atol=1e-5)
    for own, theirs in zip(runs[0].attention, runs[1].attention, strict=True):
        torch.testing.assert_close(own, theirs, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="runtime is 'fast'; expected a Runtime, 'transformers' or None"):
        generate(model, ids, runtime="fast")


def test_passes_use_it_unless_transformers_forward_is_asked_for(served, monkeypatch):
    model, calls = build("llama-gqa"), []
    monkeypatch.setattr(
        small_batch, "product", lambda *tensors, own=small_batch.product: calls.append(1) or own(*tensors)
    )
    for runtime, used in ((None, True), ("transformers", False)):
        with torch.inference_mode(), Target(model, 20, runtime=runtime) as target:
            target.extend([3, 4, 5])
            calls.clear()
            target.extend([6])
        assert bool(calls) == used
    calls.clear()
    model.generate(torch.tensor([[3, 4, 5]]), max_new_tokens=2)
    assert not calls


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace")
def test_the_loaded_model_is_transformers_own():
    """Module by module, and under ``torch.jit.trace``."""
    ours = load_model("pocket", "cpu")[0]
    theirs = AutoModelForCausalLM.from_pretrained(paths.POCKET / "target", dtype=torch.float32).eval()
    assert [type(module) for module in ours.modules()] == [type(module) for module in theirs.modules()]
    assert [vars(module).keys() for module in ours.modules()] == [vars(module).keys() for module in theirs.modules()]
    ids = torch.tensor([prompt(3, 6)])

    class Logits(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = ours

        def forward(self, ids):
            return self.model(ids, use_cache=False).logits

    with torch.no_grad():
        traced = torch.jit.trace(Logits(), ids, check_trace=False)
        torch.testing.assert_close(traced(ids), theirs(ids).logits)


def _edited_by_data(model):
    model.model.layers[1].self_attn.o_proj.weight.data[:, 8:16] = 0


def _edited_row(model):
    rows = model.get_output_embeddings().weight.data
    rows[40:60] = rows[5] * 1.5


def _replaced(model):
    layer = model.model.layers[0].mlp.down_proj
    layer.weight = nn.Parameter(torch.randn_like(layer.weight) / 8, requires_grad=False)


def _other_layer(model):
    old = model.model.layers[0].mlp.up_proj
    model.model.layers[0].mlp.up_proj = nn.Linear(old.in_features, old.out_features, bias=old.bias is not None)


def _hooked(model):
    model.model.layers[0].register_forward_hook(lambda module, args, out: 2 * out)


@pytest.mark.parametrize("edit", [_edited_by_data, _edited_row, _replaced, _other_layer, _hooked, nn.Module.half])
def test_a_model_that_is_changed_computes_as_the_same_model_of_transformers_does(served, edit):
    """After passes of one and of several tokens; the oracle is the changed model's own forward, token by token."""
    model, ids = build("llama-gqa"), prompt(3, 12)
    generate(model, ids, PromptLookup(), max_new_tokens=8, eos_token_id=[])
    edit(model)
    text = list(ids)
    with torch.no_grad():
        for _ in range(16):
            text.append(int(model(torch.tensor([text]), use_cache=False).logits[0, -1].argmax()))
    for drafter in (None, PromptLookup(1, 6)):
        assert generate(model, ids, drafter, max_new_tokens=16, eos_token_id=[]).tokens == text[len(ids) :]


def test_weights_that_a_hook_edits_within_a_generation_are_those_of_the_pass(served):
    """The oracle is the same edit by transformers' forward."""
    texts = []
    for runtime in (None, "transformers"):
        model, passes = build("llama-gqa"), []

        def edit(module, args, passes=passes, weight=model.model.layers[0].mlp.down_proj.weight):
            passes.append(1)
            weight.data.mul_(1.0 + 0.05 * (len(passes) % 3))

        with hooked(model.model, edit, model, before=True):
            texts.append(generate(model, prompt(3, 12), max_new_tokens=24, eos_token_id=[], runtime=runtime).tokens)
    assert texts[0] == texts[1]
