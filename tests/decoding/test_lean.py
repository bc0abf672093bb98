"""The lean forward: transformers' logits, drafts verified bit for bit as tokens one by one, and what it refuses."""

import copy
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from specdec_lib import Capture, DraftTree, Sampling, UnsupportedModel, generate
from specdec_lib.decoding import lean, packed
from specdec_lib.decoding.lean_runtime import CHUNK, Lean
from specdec_lib.decoding.target import Target
from specdec_lib.drafters import DraftModel
from specdec_lib.methods import METHODS
from tests.chaos import FACTORIES, SAMPLING
from tests.families import build, prompt, uncached

YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
#: Groups of keys, biases, norms of heads, tied ends, rotary positions of several kinds, sizes that no vector divides.
SHAPES = {
    "llama": ("llama", {}),
    "grouped": ("llama-gqa", {"tie_word_embeddings": True}),
    "odd sizes": ("llama-gqa", {"hidden_size": 40, "intermediate_size": 50, "vocab_size": 93, "head_dim": 24}),
    "llama 3": ("llama-gqa", {"rope_parameters": LLAMA3}),
    "yarn": ("llama-gqa", {"rope_parameters": YARN}),
    "wide heads": ("llama-gqa", {"head_dim": 72}),
    "mistral": ("mistral", {}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 16}),
}


def model_of(shape: str):
    family, changes = SHAPES[shape]
    model = build(family, **changes)
    with torch.no_grad():  # norms and biases begin as ones and zeros, which would hide their absence
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.3 * torch.randn(len(parameter), generator=torch.Generator().manual_seed(len(parameter)))
    return model


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_states_and_attention_are_those_of_transformers(shape, monkeypatch):
    monkeypatch.setattr("specdec_lib.decoding.lean_runtime.CHUNK", 16)
    model, ids = model_of(shape), prompt(0, 40)
    capture = Capture(layers=(0, 1, 2), heads=((0, 1), (1, 3)))
    tree = DraftTree([5, 6, 7, 8, 9], [-1, -1, 0, 2, 1])
    with torch.inference_mode(), Target(model, 80, capture) as theirs:
        with Target(model, 80, capture, runtime=Lean(model)) as ours:

            def same(a, b):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)

            same(ours.extend(ids), theirs.extend(ids))
            same(ours.attention(), theirs.attention())
            same(ours.verify(3, tree), theirs.verify(3, tree))
            for target in (ours, theirs):
                target.commit([0, 2, 3])
            for layer in capture.layers:
                same(ours.hidden(layer), theirs.hidden(layer))
            same(ours.attention(), theirs.attention())
            visible = torch.rand(3, ours.length + 3, generator=torch.Generator().manual_seed(1)) < 0.5
            visible[:, -3:] |= torch.eye(3, dtype=torch.bool)
            places = [ours.length, ours.length + 4, ours.length + 1]
            same(ours.extend_rows([7, 8, 9], places, visible), theirs.extend_rows([7, 8, 9], places, visible))
    same(Target(model, 80, runtime=Lean(model)).extend(ids), uncached(model, ids)[0][-1])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("bits", [32, 8])
@pytest.mark.parametrize("shape", ["grouped", "odd sizes", "qwen2", "qwen3"])
def test_rows_are_the_same_in_passes_of_any_width_bit_for_bit(shape, bits, threads, monkeypatch):
    monkeypatch.setattr(packed, "SHARE", 1)
    monkeypatch.setattr(packed, "TURN", 1e9)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    model, ids = model_of(shape), prompt(1, 70)
    runtime = Lean(model, bits)
    with torch.inference_mode():

        def alone(tokens):
            with Target(model, 128, runtime=runtime) as target:
                return torch.stack([target.extend([token]).clone() for token in tokens])

        expected = alone(ids)
        for width in (2, 3, 4, 5, 8, 33):
            with Target(model, 128, runtime=runtime) as target:
                target.extend(ids[:20])
                got = target.verify(ids[20], DraftTree.chain(ids[21 : 20 + width]))
                assert torch.equal(got, expected[20 : 20 + width])
        # Paths of a tree, and the tokens after a path whose entries are moved.
        one, other = ids[20:25], [ids[20], ids[21], 2, 3, 4]
        both = [*one[1:], *other[2:]]
        with Target(model, 128, runtime=runtime) as target:
            assert torch.equal(target.extend(ids[:20]), expected[19])
            got = target.verify(one[0], DraftTree(both, [-1, 0, 1, 2, 0, 4, 5]))
            assert torch.equal(got[[0, 1, 2, 3, 4]], expected[20:25])
            assert torch.equal(got[[0, 1, 5, 6, 7]], alone([*ids[:20], *other])[20:])
            target.commit([0, 4, 5, 6])
            assert torch.equal(target.extend([9]), alone([*ids[:20], *other, 9])[-1])


def test_a_long_prompt_in_parts_is_one_prompt():
    model = build("llama-gqa", max_position_embeddings=4 * CHUNK)
    ids = [i * 7 % 90 for i in range(2 * CHUNK + 9)]
    with torch.inference_mode(), Target(model, len(ids), runtime=Lean(model)) as target:
        torch.testing.assert_close(target.extend(ids), uncached(model, ids)[0][-1], rtol=1e-4, atol=1e-4)


NEW = 24
SAMPLINGS = [Sampling(), Sampling(temperature=0.7, top_p=0.9, seed=3), Sampling(temperature=1.3, top_k=20, seed=4)]


@pytest.fixture(scope="module")
def plain(library):
    @cache
    def run(family: str, sampling: Sampling):
        runtime = Lean(library[family])
        return runtime, generate(library[family], prompt(0, 20), None, sampling, NEW, runtime=runtime).tokens

    return run


@pytest.mark.core_cases(5)
@pytest.mark.parametrize("family", ["llama-gqa", "qwen3"])
@pytest.mark.parametrize("drafter", FACTORIES)
def test_every_drafter_leaves_the_output_equal_without_a_look_at_rounding(library, plain, family, drafter):
    if drafter not in METHODS and family != "llama-gqa" and not drafter.startswith("chaos"):
        return
    for sampling in SAMPLINGS:
        if drafter in SAMPLING and not sampling.greedy:
            continue
        runtime, expected = plain(family, sampling)
        made = FACTORIES[drafter](library, family, prompt(0, 20) + expected, sampling.seed)
        assert generate(library[family], prompt(0, 20), made, sampling, NEW, runtime=runtime).tokens == expected


def test_a_draft_model_has_a_runtime_of_its_own(library):
    model, draft = library["llama-gqa"], library.draft("llama-gqa")
    runtime = Lean(model)
    expected = generate(model, prompt(2, 20), None, max_new_tokens=NEW, runtime=runtime).tokens
    drafter = DraftModel(draft, 4, runtime=Lean(draft, bits=8))
    run = generate(model, prompt(2, 20), drafter, max_new_tokens=NEW, runtime=runtime)
    assert run.tokens == expected and sum(step.accepted for step in run.steps) > 0


@pytest.mark.parametrize("edit", [
    lambda model: model.lm_head.weight.data[3:5].zero_(),
    lambda model: model.model.layers[1].mlp.up_proj.weight.mul_(2),
    lambda model: model.model.norm.weight.data.add_(1),
    lambda model: setattr(model.model.layers[0].self_attn, "v_proj", copy.deepcopy(model.model.layers[1].self_attn.v_proj)),
    lambda model: model.model.rotary_emb.inv_freq.mul_(0.5),
], ids=["data", "in place", "norm", "module", "rotary"])  # fmt: skip
def test_weights_that_were_changed_are_read_again(edit):
    model, ids = build("llama-gqa"), prompt(0, 9)
    runtime = Lean(model)
    with torch.no_grad():
        edit(model)
    with torch.inference_mode(), Target(model, 20, runtime=runtime) as target:
        torch.testing.assert_close(target.extend(ids), uncached(model, ids)[0][-1], rtol=1e-4, atol=1e-4)


def test_numbers_that_are_none_are_not_lost():
    model = build("llama-gqa")
    for bits in (32, 8):
        with torch.no_grad():
            model.model.layers[0].mlp.up_proj.weight[3, 4] = torch.nan
        with torch.inference_mode(), Target(model, 20, runtime=Lean(model, bits)) as target:
            assert target.extend(prompt(0, 5)).isnan().all()


def _hook(model):
    return model.model.layers[1].mlp.register_forward_hook(lambda module, args, out: -out).remove


def _forward(model):
    before = model.model.layers[0].mlp.forward
    model.model.layers[0].mlp.forward = lambda states: -before(states)
    return lambda: vars(model.model.layers[0].mlp).pop("forward")


def _class(model):
    kind = type(model.model.layers[0].mlp)
    before = kind.forward
    kind.forward = lambda self, states: -before(self, states)
    return lambda: setattr(kind, "forward", before)


def _every_module(model):
    told = lambda module, args, out: -out if module is model.model.norm else None  # noqa: E731
    return torch.nn.modules.module.register_module_forward_hook(told).remove


def _scaled(model):
    model.model.layers[1].self_attn.scaling *= 2
    return lambda: setattr(model.model.layers[1].self_attn, "scaling", model.model.layers[0].self_attn.scaling)


def _epsilon(model):
    model.model.layers[1].input_layernorm.variance_epsilon = 0.5
    return lambda: setattr(model.model.layers[1].input_layernorm, "variance_epsilon", 1e-6)


def _activation(model):
    model.model.layers[1].mlp.act_fn, before = nn.ReLU(), model.model.layers[1].mlp.act_fn
    return lambda: setattr(model.model.layers[1].mlp, "act_fn", before)


def _norm(model):
    model.model.norm, before = nn.Identity(), model.model.norm
    return lambda: setattr(model.model, "norm", before)


def _fewer_blocks(model):
    model.config.num_hidden_layers = 1
    return lambda: setattr(model.config, "num_hidden_layers", 2)


@pytest.mark.parametrize("change, says", [
    (_hook, "has a hook, or a forward that was replaced, in model.layers.1.mlp"),
    (_forward, "has a hook, or a forward that was replaced, in model.layers.0.mlp"),
    (_class, "has a hook, or a forward that was replaced, in model.layers.0.mlp"),
    (_every_module, "has a hook, or a forward that was replaced, in the model"),
    (_scaled, "scales its attention by .*, not by the size of a head"),
    (_epsilon, "has norms of several kinds or epsilons"),
    (_activation, "has activations of type ReLU"),
    (_norm, "has norms of several kinds or epsilons"),
    (_fewer_blocks, "has 2 blocks, and its configuration says 1"),
])  # fmt: skip
def test_what_its_loops_would_leave_out_is_refused_whenever_it_comes(change, says):
    model, ids = build("llama-gqa"), prompt(0, 9)
    runtime = Lean(model)
    plain = generate(model, ids, max_new_tokens=4, runtime=runtime).tokens
    back = change(model)
    try:
        with pytest.raises(UnsupportedModel, match=f"{says}: the lean forward .* pass runtime='transformers'"):
            generate(model, ids, max_new_tokens=4, runtime=runtime)
        with pytest.raises(UnsupportedModel, match=f"{says}: leave the runtime out"):
            Lean(model)
        own = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=4)[0, len(ids) :].tolist()
        assert generate(model, ids, max_new_tokens=4, runtime="transformers").tokens == own
    finally:
        back()
    assert generate(model, ids, max_new_tokens=4, runtime=runtime).tokens == plain


def test_a_setting_that_changes_no_result_is_no_reason_to_refuse():
    model, ids = build("llama-gqa"), prompt(0, 9)
    runtime = Lean(model)
    plain = generate(model, ids, max_new_tokens=4, runtime=runtime).tokens
    model.set_attn_implementation("eager")
    model.model.rotary_emb.inv_freq.mul_(1.0)
    assert generate(model, ids, max_new_tokens=4, runtime=runtime).tokens == plain


class Other(nn.Linear):
    pass


def _with_other_layer():
    model = build("llama")
    model.model.layers[1].mlp.up_proj.__class__ = Other
    return model


@pytest.mark.parametrize("make, says", [
    (lambda: build("gemma"), "GemmaForCausalLM is none of LlamaForCausalLM"),
    (lambda: build("mistral-window"), "has a sliding window"),
    (lambda: build("llama", hidden_act="gelu"), "has the activation 'gelu'"),
    (lambda: build("llama", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}), "of type dynamic"),
    (lambda: build("llama", mlp_bias=True), "has biases in other layers"),
    (lambda: build("llama", head_dim=12), "has heads of a size"),
    (_with_other_layer, "has layers of type Other"),
], ids=["family", "window", "activation", "rope", "bias", "head", "layer"])  # fmt: skip
def test_what_it_does_not_run_is_refused(make, says):
    with pytest.raises(UnsupportedModel, match=f"{says}.*: leave the runtime out"):
        Lean(make())


def test_a_runtime_of_another_model_is_refused():
    with pytest.raises(ValueError, match="the runtime was made for another model"):
        generate(build("llama"), prompt(0, 5), runtime=Lean(build("llama")))


@pytest.mark.parametrize("took, ran, busy", [(0.4, 0.1, True), (0.4, 0.3, False), (0.0015, 0.0001, False)])
def test_one_thread_works_alone_until_a_trial_finds_the_cores_free(took, ran, busy, monkeypatch):
    clocks, trials, teams = {"wall": 0.0, "own": 0.0}, iter([0.03, 0.0001]), []
    clock = SimpleNamespace(perf_counter=lambda: clocks["wall"], thread_time=lambda: clocks["own"])
    monkeypatch.setattr(packed, "time", clock)

    def gather(me, count, counter):
        clocks["wall"] += next(trials) if me == 0 else 0

    def call(me, count, counter):
        if me == 0:
            teams.append(count)
            clocks["wall"] += took
            clocks["own"] += ran

    monkeypatch.setattr(packed.lean, "gather", gather)
    team = packed._Team()
    for _ in range(6):
        team(call, 2)
    # Alone for half a second, that is two calls, then a trial that fails, two calls more and a trial that does not.
    assert teams == ([2, 1, 1, 1, 1, 2] if busy else [2] * 6)


@pytest.mark.parametrize("team", [1, 2, 3])
def test_a_trial_ends_when_all_threads_have_met_often_enough(team):
    counter = np.zeros(1, np.int64)
    with ThreadPoolExecutor(team) as pool:
        list(pool.map(lambda me: lean.gather(me, team, counter), range(team)))
    assert counter[0] == (8 * team if team > 1 else 0)


LOGITS = """
import torch
from specdec_lib.decoding.lean_runtime import Lean
from specdec_lib.decoding.target import Target
from tests.decoding.test_lean import model_of, prompt

model, ids = model_of("grouped"), prompt(1, 70)
with torch.inference_mode(), Target(model, 128, runtime=Lean(model)) as target:
    print(target.extend(ids).numpy().tobytes().hex())
"""


@pytest.mark.slow
def test_the_process_that_compiles_computes_what_later_ones_read_from_the_disk(tmp_path):
    command, environment = [sys.executable, "-c", LOGITS], os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    first, later = (subprocess.run(command, env=environment, capture_output=True, check=True) for _ in range(2))
    assert any(tmp_path.rglob("lean.run*.nbc"))
    assert first.stdout == later.stdout
