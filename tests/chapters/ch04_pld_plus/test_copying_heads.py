"""The copying score against the whole matrix."""

import numpy as np
import pytest
import torch

from specdec_lib import UnsupportedModel
from specdec_lib.chapters.ch04_pld_plus.copying_heads import copying_scores
from tests import families


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


def test_a_head_that_passes_its_token_on_scores_one_and_one_that_takes_it_away_minus_one(library):
    model = families.build("llama")
    with torch.no_grad():
        model.lm_head.weight.copy_(model.model.embed_tokens.weight)
        for block, sign in ((0, 1), (1, -1)):
            attention = model.model.layers[block].self_attn
            attention.o_proj.weight.copy_(sign * attention.v_proj.weight.T)
            model.model.layers[block].input_layernorm.weight.fill_(1)
        model.model.norm.weight.fill_(1)
    assert np.allclose(copying_scores(model), [[1] * 4, [-1] * 4])
    with pytest.raises(UnsupportedModel, match="v_proj"):
        copying_scores(library["gpt-neox"])
