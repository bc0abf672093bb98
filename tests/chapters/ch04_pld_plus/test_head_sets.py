"""Sets of heads against counting, the copying score against the whole matrix."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from specdec_lib import UnsupportedModel
from specdec_lib.chapters.ch04_pld_plus.copying_heads import copying_scores
from specdec_lib.chapters.ch04_pld_plus.head_sets import draws, every, of_block, random_heads, tried
from tests import families


def test_every_head_is_in_one_block():
    assert every((2, 3)) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert [pair for block in range(2) for pair in of_block((2, 3), block)] == every((2, 3))


def test_the_best_heads_are_tried_by_number_up_to_all_credited_ones():
    ranked = [(1, 2), (0, 0), (1, 1), (0, 2), (0, 1)]
    sets = tried(ranked, (2, 3))
    assert list(sets) == ["1", "2", "3", "4", "5", "every"]
    assert all(sets[str(n)] == ranked[:n] for n in range(1, 6)) and sets["every"] == every((2, 3))


def test_random_heads_are_different_seeded_and_equally_likely():
    assert random_heads((4, 5), 6, 3) == random_heads((4, 5), 6, 3)
    counts = Counter(pair for heads in draws((4, 5), 6, 2000) for pair in heads)
    assert set(counts) == set(every((4, 5)))
    assert all(len(set(heads)) == 6 for heads in draws((4, 5), 6, 20))
    # Each head is in a draw with probability 0.3: five standard deviations of a binomial.
    assert max(abs(count - 600) for count in counts.values()) < 5 * (2000 * 0.3 * 0.7) ** 0.5
    assert list(draws((4, 5), 6, 2, seed=7)) == [random_heads((4, 5), 6, 7), random_heads((4, 5), 6, 8)]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: every((0, 3)), "shape is"),
        (lambda: of_block((2, 3), 2), "block is 2; expected 0 to 1"),
        (lambda: of_block((2, 3), -1), "block is -1"),
        (lambda: random_heads((2, 3), 7, 0), "count is 7; expected 1 to 6"),
        (lambda: random_heads((2, 3), 0, 0), "count is 0"),
    ],
)
def test_what_there_is_not_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def whole_matrix_score(model, block, head, groups, width):
    """Elhage et al.: sum of the eigenvalues over that of their moduli, of the V x V map from token to
    logits."""
    layer = model.model.layers[block]
    with torch.no_grad():
        embed = model.get_input_embeddings().weight.double() * layer.input_layernorm.weight.double()
        unembed = model.get_output_embeddings().weight.double() * model.model.norm.weight.double()
        v = layer.self_attn.v_proj.weight.double()[head // groups * width :][:width]
        o = layer.self_attn.o_proj.weight.double()[:, head * width : (head + 1) * width]
        matrix = (unembed @ o @ v @ embed.T).numpy()
    eigenvalues = np.linalg.eigvals(matrix)
    return eigenvalues.real.sum() / np.abs(eigenvalues).sum()


@pytest.mark.parametrize("family", ["llama", "llama-gqa", "qwen3"])
def test_copying_score_is_that_of_the_whole_matrix(library, family):
    model = library[family]
    scores = copying_scores(model)
    groups = 4 // model.config.num_key_value_heads
    expected = [[whole_matrix_score(model, block, head, groups, 8) for head in range(4)] for block in range(2)]
    assert np.allclose(scores, expected, atol=1e-3)


def test_a_head_that_passes_its_token_on_scores_one_and_one_that_takes_it_away_minus_one():
    model = families.build("llama")
    with torch.no_grad():
        model.lm_head.weight.copy_(model.model.embed_tokens.weight)
        for block, sign in ((0, 1), (1, -1)):
            attention = model.model.layers[block].self_attn
            attention.o_proj.weight.copy_(sign * attention.v_proj.weight.T)
            model.model.layers[block].input_layernorm.weight.fill_(1)
        model.model.norm.weight.fill_(1)
    assert np.allclose(copying_scores(model), [[1] * 4, [-1] * 4])


def test_fused_projections_are_refused(library):
    with pytest.raises(UnsupportedModel, match="v_proj"):
        copying_scores(library["gpt-neox"])
