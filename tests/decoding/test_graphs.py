"""Graph mode's logic on every machine: recorded passes, replayed by an emulator, give the tokens of eager passes."""

from __future__ import annotations

import pytest
import torch

from specdec_lib import Capture, Runtime, Sampling, generate, record
from specdec_lib.decoding import norms
from specdec_lib.decoding.attention_rows import AttentionRows
from specdec_lib.decoding.target import Target
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.drafters import DraftModel, PromptLookup
from specdec_lib.experiments import recorded_runs
from specdec_lib.experiments.prompt import Prompt
from tests.chaos import Chaos, Riding
from tests.decoding.captured_passes import captured
from tests.decoding.graph_emulator import EmulatedRecorder
from tests.families import SERVED, bounded, build, prompt

WIDTHS = (1, 4, 16, 64)
EXTENTS = (16, 32, 64, 96)
SEEDED = Sampling(temperature=1.0, top_p=0.9, seed=3)


def graphs(model, capacity=60, widths=WIDTHS, extents=EXTENTS, **options) -> Runtime:
    return Runtime(model, capacity, "graph", widths, extents, recorder=EmulatedRecorder(), **options)


@pytest.mark.core_cases(4)
@pytest.mark.parametrize("family", sorted(SERVED))
def test_replayed_passes_change_no_token_in_any_family(library, family):
    model, ids = library[family], prompt(1, 12)
    runtime = graphs(model)
    for sampling, drafters in ((Sampling(), (Chaos, Riding)), (SEEDED, (Chaos,))):
        plain = generate(model, ids, sampling=sampling, max_new_tokens=40)
        for seed, kind in enumerate(drafters):
            fast = generate(model, ids, kind(ids + plain.tokens, seed), sampling, max_new_tokens=40, runtime=runtime)
            assert fast.tokens == plain.tokens
    recorded = {key for kept in runtime._kept.values() for key in kept.recorded}
    assert len({extent for _, extent in recorded}) >= 3, recorded
    # A plain run under graphs too: passes over one token.
    assert generate(model, ids, max_new_tokens=40, runtime=runtime).tokens == generate(
        model, ids, max_new_tokens=40).tokens  # fmt: skip


@pytest.mark.parametrize("family", ["llama", "llama-gqa", "gemma3", "qwen3", "gpt-neox", "gpt2"])
def test_states_and_rows_of_replayed_passes_are_those_of_eager_ones(library, family):
    model = library[family]
    runtime = graphs(model)
    eager = captured(model, None)
    for _ in range(2):
        for replayed, expected in zip(captured(model, runtime), eager, strict=True):
            torch.testing.assert_close(replayed, expected, rtol=1e-3, atol=1e-4)


def test_a_pass_attends_over_the_shortest_extent_that_holds_it(llama):
    runtime = Runtime(llama, 1000)
    assert runtime.extents == (256, 512, 1024, 1128)
    assert [runtime.extent_for(count) for count in (1, 256, 257, 1000, 1025, 1128)] == [256, 256, 512, 1024, 1128, 1128]
    assert Runtime(llama, 60, extents=()).extents == (192,), "the whole buffers"
    with pytest.raises(ValueError, match="extents are"):
        Runtime(llama, 60, extents=(64, 32))
    runtime, lengths = Runtime(llama, 60, widths=(1, 4), extents=EXTENTS), []
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        read = AttentionRows.read
        patch.setattr(AttentionRows, "read", lambda *args: lengths.append(args[3].shape[2]) or read(*args))
        with Target(llama, 60, Capture(heads=((0, 0),)), runtime=runtime) as target:
            target.extend(prompt(1, 12))
            for length, extent in ((12, 16), (13, 32), (28, 32), (29, 64)):
                if target.length < length:
                    target.extend([3] * (length - target.length))
                lengths.clear()
                target.verify(3, DraftTree.chain([4, 5]))
                assert lengths == [extent] * 2, "each block reads as many keys"


def test_graphs_are_recorded_when_a_pass_first_needs_their_extent(llama):
    ids = prompt(1, 12)
    runtime = graphs(llama, widths=(1, 4))
    generate(llama, ids, max_new_tokens=3, runtime=runtime)
    assert [*runtime._kept[Capture()].recorded] == [(1, 16), (4, 16)]
    generate(llama, ids, max_new_tokens=12, runtime=runtime)
    assert [*runtime._kept[Capture()].recorded] == [(1, 16), (4, 16), (1, 32), (4, 32)]


@pytest.mark.parametrize("family", ["llama", "llama-gqa"])
def test_a_recorded_layer_has_one_operation_for_a_norm_and_the_pass_one_additive_mask(family):
    def recorded(layers: int) -> list[tuple]:
        model = build(family, num_hidden_layers=layers)
        runtime = graphs(model, widths=(4,))
        generate(model, prompt(1, 12), max_new_tokens=3, runtime=runtime)
        return runtime._kept[Capture()].recorded[4, 16].graph.done

    names = {layers: [func.overloadpacket.__name__ for func, *_ in recorded(layers)] for layers in (2, 4)}
    layer = {name: (names[4].count(name) - names[2].count(name)) / 2 for name in names[4]}
    assert layer["rms_norm"] == 2 and not {"pow", "mean", "rsqrt", "where", "masked_fill", "masked_fill_"} & {
        name for name, count in layer.items() if count
    }
    masks = []
    for func, args, kwargs, _ in recorded(4):
        if func.overloadpacket.__name__ == "scaled_dot_product_attention":
            masks.append(kwargs.get("attn_mask", args[3] if len(args) > 3 else None))
    assert len(masks) == 4 and {mask.dtype for mask in masks} == {torch.float32}
    assert len({mask.data_ptr() for mask in masks}) == 1, "made once a pass, also for grouped heads"


def test_norms_are_fused_in_passes_in_place_alone_and_given_back(library):
    model, ids = library["llama"], prompt(1, 12)
    kinds = {type(module) for module in model.modules() if "RMSNorm" in type(module).__name__}
    calls = []
    with pytest.MonkeyPatch.context() as patch:
        fused = norms.rms_norm
        patch.setattr(norms, "rms_norm", lambda *args: calls.append(args) or fused(*args))
        runtime = Runtime(model, 40)
        calls.clear()
        plain = generate(model, ids, max_new_tokens=4)
        assert not calls
        assert generate(model, ids, max_new_tokens=4, runtime=runtime).tokens == plain.tokens
        assert len(calls) == 3 * 5, "two a layer and the last, in each of three passes"
    del runtime
    assert {type(module) for module in model.modules() if "RMSNorm" in type(module).__name__} == kinds


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma", "gemma3", "gpt-oss", "deepseek-v3", "cohere2"])
def test_a_norm_is_fused_only_if_it_computes_what_the_one_operation_does(family):
    model = build(family)
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if norms.is_plain(module):
            with torch.no_grad():
                module.weight.normal_(generator=generator)
            states = torch.randn(3, len(module.weight), generator=generator)
            mean = states.double().pow(2).mean(-1, keepdim=True)
            expected = states.double() / (mean + norms._epsilon(module)).sqrt() * module.weight.double()
            torch.testing.assert_close(module(states).double(), expected, rtol=1e-5, atol=1e-6)
    assert any(map(norms.is_plain, model.modules())) == (family not in ("gemma", "gemma3", "cohere2"))


def test_a_copy_made_while_norms_are_fused_computes_with_its_own_weights(llama):
    import copy

    runtime = Runtime(llama, 40)
    other = copy.deepcopy(llama)
    with torch.no_grad():
        for weights in other.parameters():
            weights.mul_(-0.7)
    ids = prompt(1, 12)
    plain = generate(other, ids, max_new_tokens=8)
    assert generate(other, ids, max_new_tokens=8, runtime=Runtime(other, 40)).tokens == plain.tokens
    assert plain.tokens != generate(llama, ids, max_new_tokens=8, runtime=runtime).tokens


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


def test_a_model_whose_positions_the_host_reads_is_refused_before_it_is_recorded():
    model = bounded(64)
    with pytest.raises(ValueError, match="'longrope', for which the host reads"):
        graphs(model)
    assert Runtime(model, 40).mode == "static"


def test_after_a_pass_that_cannot_be_recorded_the_runtime_and_others_serve(llama):
    ids = prompt(1, 12)
    plain = generate(llama, ids, max_new_tokens=8)
    runtime = graphs(llama)

    def reads(module, args, kwargs, output):
        assert float(output[0].sum()) < 1e9

    hook = llama.model.layers[0].self_attn.register_forward_hook(reads, with_kwargs=True)
    with pytest.raises(RuntimeError, match="cannot be recorded as a CUDA graph .*mode='static'"):
        generate(llama, ids, max_new_tokens=8, runtime=runtime)
    hook.remove()
    assert not runtime._kept
    for other in (Runtime(llama, 40), runtime):
        assert generate(llama, ids, max_new_tokens=8, runtime=other).tokens == plain.tokens


def test_a_draft_model_under_graphs_proposes_what_it_proposes_eagerly(library):
    target, ids = library["llama"], prompt(1, 12)
    draft = build("llama")
    runtimes = graphs(target, widths=(1, 2, 4)), graphs(draft, widths=(1, 2))
    for sampling in (Sampling(), SEEDED):
        eager = generate(target, ids, DraftModel(draft, 3), sampling, max_new_tokens=30)
        fast = generate(target, ids, DraftModel(draft, 3, runtime=runtimes[1]), sampling, max_new_tokens=30,
                        runtime=runtimes[0])  # fmt: skip
        assert fast.tokens == eager.tokens
        assert [s.tree.tokens for s in fast.steps] == [s.tree.tokens for s in eager.steps]


def test_compiled_passes_can_be_recorded_for_empty_captures(llama, monkeypatch):
    compiled = []

    def compile(model, dynamic):
        compiled.append(dynamic)
        return lambda **kwargs: model(**kwargs)

    monkeypatch.setattr(torch, "compile", compile)
    runtime = Runtime(llama, 60, "compiled-graph", (1, 4), recorder=EmulatedRecorder())
    assert compiled == [False] and runtime.extents == (192,)
    ids = prompt(1, 12)
    plain = generate(llama, ids, max_new_tokens=20)
    assert generate(llama, ids, Chaos(ids + plain.tokens, 0, branches=0, depth=0), max_new_tokens=20,
                    runtime=runtime).tokens == plain.tokens  # fmt: skip
    with pytest.raises(ValueError, match="'compiled-graph' captures no"):
        Target(llama, 20, Capture(layers=(1,)), runtime=runtime)


def test_no_timed_run_of_a_method_records_a_graph(library, monkeypatch):
    model = library["llama"]
    runtime = graphs(model, capacity=90, widths=(1, 4))
    traces = [record(model, prompt(length, length), max_new_tokens=8) for length in (6, 12, 40, 70, 41)]
    recordings = [recorded_runs.Recording(Prompt(str(i), "task", ("",)), 0, trace) for i, trace in enumerate(traces)]
    made, single = [], recorded_runs._run

    def watched(*args):
        before = len(runtime._recorder.operations)
        run = single(*args)
        made.append(len(runtime._recorder.operations) - before)
        return run

    monkeypatch.setattr(recorded_runs, "_run", watched)
    recorded_runs.time_methods(model, recordings, {"plain": None, "PLD": PromptLookup(2, 3)}, 1, runtime)
    # The last prompt reaches no other extent than the third, and is run for times alone.
    timed = made[-2 * len(recordings) :]
    assert sum(made) == 2 * len(EXTENTS) and not any(timed)
    assert len(made) - len(timed) < len(timed)
