"""One pass over a tree against running each of its paths alone; commits against computing anew."""

import inspect
import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from specdec_lib import Capture, DraftTree, generate
from specdec_lib.decoding.cache import TreeCache
from specdec_lib.decoding.forward import in_window
from specdec_lib.decoding.target import Target
from specdec_lib.drafters import PromptLookup
from tests.chaos import shuffled
from tests.families import SERVED, VOCABULARY, prompt, uncached

CLOSE = 1e-4


def random_tree(rng: random.Random) -> DraftTree:
    drafts = ([rng.randrange(60, 64) for _ in range(rng.randint(1, 5))] for _ in range(rng.randint(0, 5)))
    return shuffled(DraftTree.from_drafts(drafts), rng)


def relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


@pytest.mark.parametrize("family", SERVED)
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6))
def test_verify_equals_running_each_path_alone_before_and_after_commits(library, family, seed):
    model, rng = library[family], random.Random(seed)
    text = prompt(seed, rng.randint(1, 12))
    # Starts too small, so that the buffers grow now and then in the middle of a run.
    with torch.inference_mode(), Target(model, 60, capacity=rng.randint(1, 16)) as target:
        target.extend(text)
        for _ in range(3):
            root, tree = rng.randrange(VOCABULARY), random_tree(rng)
            got = target.verify(root, tree)
            for node in range(-1, len(tree)):
                path = tree.path(node)
                assert (
                    relative(got[node + 1], uncached(model, [*text, root, *(tree.tokens[n] for n in path)])[0][-1])
                    < CLOSE
                )
            path = tree.path(rng.randrange(-1, len(tree)))
            target.commit(path)
            text += [root, *(tree.tokens[n] for n in path)]
            assert target.length == len(text)


@pytest.mark.parametrize("family", ["llama-gqa", "mistral-window", "gemma3", "gpt-oss"])
def test_rows_that_continue_several_branches_equal_running_each_alone(library, family):
    # Branches of several lengths after one text, a token of each at a time: slots do not go by position.
    model, text, starts = library[family], prompt(3, 20), [6, 13, 20]
    branches = [[(11 * step + 7 * row) % 90 for step in range(9)] for row in range(len(starts))]
    own = torch.eye(len(starts), dtype=torch.bool)
    before = torch.arange(len(text))[None] < torch.tensor(starts)[:, None]
    with torch.inference_mode(), Target(model, 0, capacity=8) as target:
        target.extend(text)
        for step in range(9):
            visible = torch.cat([before, own.repeat(1, step + 1)], dim=1)
            got = target.extend_rows([b[step] for b in branches], [s + step for s in starts], visible)
            for row, (start, branch) in enumerate(zip(starts, branches, strict=True)):
                assert relative(got[row], uncached(model, text[:start] + branch[: step + 1])[0][-1]) < CLOSE
        # What comes after them in the cache is forgotten with them.
        target.truncate(len(text))
        assert relative(target.extend(branches[2]), uncached(model, text + branches[2])[0][-1]) < CLOSE
        got = target.extend_rows([5], [len(text) + 9], torch.ones((1, len(text) + 10), dtype=torch.bool))
        assert relative(got[0], uncached(model, [*text, *branches[2], 5])[0][-1]) < CLOSE


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6))
def test_a_window_leaves_what_each_node_may_see_by_its_position(seed):
    rng = random.Random(seed)
    tree, length, window = random_tree(rng), rng.randint(0, 12), rng.randint(1, 9)
    depths = [0, *tree.depths]
    visible = torch.ones((len(tree) + 1, length + len(tree) + 1), dtype=torch.bool)
    visible[:, length:] = torch.from_numpy(tree.mask())
    rows = torch.tensor(depths) + length
    got = in_window(visible, rows, torch.cat([torch.arange(length), rows]), window)
    for node, depth in enumerate(depths):
        ancestors = {0, node, *(n + 1 for n in tree.path(node - 1))} if node else {0}
        before = [length + depth - place < window for place in range(length)]
        assert got[node].tolist() == before + [
            n in ancestors and depth - other < window for n, other in enumerate(depths)
        ]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6))
def test_committed_keys_values_and_states_equal_those_computed_anew(llama, seed):
    rng = random.Random(seed)
    text = prompt(seed, rng.randint(1, 10))
    layers = (0, 1, 2)
    with torch.inference_mode(), Target(llama, 100, Capture(layers), capacity=8) as grown:
        grown.extend(text)
        for _ in range(4):
            root, tree = rng.randrange(VOCABULARY), random_tree(rng)
            grown.verify(root, tree)
            path = tree.path(rng.randrange(-1, len(tree)))
            grown.commit(path)
            text += [root, *(tree.tokens[n] for n in path)]
        with pytest.raises(ValueError, match=f"length is {len(text) + 1}; expected 0 to {len(text)}"):
            grown.truncate(len(text) + 1)
        kept = rng.randint(1, len(text))
        grown.truncate(kept)
        with Target(llama, 100, Capture(layers)) as fresh:
            fresh.extend(text[:kept])
            for ours, theirs in zip(grown.cache.layers, fresh.cache.layers, strict=True):
                for name in ("keys", "values"):
                    assert relative(*(getattr(each, name)[:, :, :kept] for each in (ours, theirs))) < CLOSE
            for layer in layers:
                assert relative(grown.hidden(layer), fresh.hidden(layer)) < CLOSE


def test_the_test_models_are_sensitive_to_positions_and_order(library):
    # A model that ignored either would let a wrong mask or position pass every test here.
    for family in SERVED:
        model, text = library[family], prompt(1, 16)
        for other in ([*text[:2], *text[3:]], [text[1], text[0], *text[2:]]):
            assert relative(uncached(model, other)[0][-1], uncached(model, text)[0][-1]) > 100 * CLOSE, family


def test_rows_after_a_batch_of_drafts_are_those_of_the_accepted_draft_alone(library):
    """The accepted token attended to its own draft's copy of the prefix, which is not the one whose keys are kept."""
    capture, rows = Capture(heads=((0, 0), (1, 2))), []
    for tree, path in (
        (DraftTree.from_drafts([[1, 2], [1, 3]], merge=False), (0, 3)),
        (DraftTree.chain([1, 3]), (0, 1)),
    ):
        with torch.inference_mode(), Target(library["llama-gqa"], 40, capture) as target:
            target.extend(prompt(2, 9))
            target.verify(7, tree)
            target.commit(path)
            rows.append(target.attention().clone())
    torch.testing.assert_close(*rows)
    torch.testing.assert_close(rows[0].sum(-1), torch.ones(2))


def test_masks_of_chains_begin_at_multiples_of_16_bytes_as_a_kernel_of_cuda_reads_them(llama):
    with torch.inference_mode(), Target(llama, 60, capacity=64) as target:
        target.extend(prompt(1, 3))
        assert target._chain_mask(3).data_ptr() % 16 == 0


@pytest.mark.parametrize("name", ["past_key_values", "cache"])
def test_the_cache_goes_by_the_name_that_the_model_has_for_it(name):
    """``past_key_values`` up to transformers 5.23, ``cache`` from 5.24 on, whichever is installed here."""
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    )
    plain, seen = LlamaForCausalLM(config).eval(), []
    own = {"past_key_values", "cache"} & set(inspect.signature(LlamaForCausalLM.forward).parameters)

    class Named(LlamaForCausalLM):
        def forward(self, input_ids, **rest):
            cache = rest.pop(name, None)  # the check of a model's own forward gives none
            seen.extend([] if cache is None else [cache])
            return super().forward(input_ids=input_ids, **{min(own): cache}, **rest)

    parameters = inspect.signature(LlamaForCausalLM.forward).parameters
    kept = [parameter for parameter in parameters.values() if parameter.name not in own]
    added = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
    Named.forward.__signature__ = inspect.Signature([*kept[:-1], added, kept[-1]])
    other = Named(config).eval()
    other.load_state_dict(plain.state_dict())
    expected = generate(plain, [1, 2, 3, 1, 2], PromptLookup(2, 3), max_new_tokens=8, eos_token_id=[]).tokens
    assert generate(other, [1, 2, 3, 1, 2], PromptLookup(2, 3), max_new_tokens=8, eos_token_id=[]).tokens == expected
    assert seen and all(isinstance(cache, TreeCache) for cache in seen)
