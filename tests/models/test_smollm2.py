"""The real model: the same bytes everywhere, and outputs of speculation equal to plain decoding."""

import pytest
import torch
from batched import decode_together

from specdec_lib import Sampling, generate, load_model
from specdec_lib.drafters import DraftModel, PromptLookup, PromptLookupHidden
from specdec_lib.experiments.data import prompts
from specdec_lib.experiments.data.prompt import render
from specdec_lib.models.fingerprint import fingerprint

pytestmark = pytest.mark.realmodel
NEW = 32


@pytest.fixture(scope="module")
def smollm2():
    model, tokenizer = load_model("smollm2")
    return model, [render(one, tokenizer) for one in prompts.load("report", ["conversation", "short text editing"], 1)]


def test_the_weights_are_those_of_the_published_file(smollm2):
    assert fingerprint(smollm2[0]) == "7b59b5ca7ec3cfb9b8ae8a0cdda9729e776abf439caf1e9f1009e611f57faef3"


@pytest.mark.parametrize("sampling, methods", [(Sampling(), 3), (Sampling(1.0, seed=1), 2)], ids=["greedy", "sampled"])
def test_what_drafts_changes_no_token(smollm2, sampling, methods):
    model, asked = smollm2
    drafters = [PromptLookup(3, 10), PromptLookupHidden(10, 10), DraftModel(load_model("smollm2-draft")[0])]
    for ids in asked:
        plain = generate(model, ids, None, sampling, NEW).tokens
        for drafter in drafters[:methods]:  # SpecDec, the last, keeps the distribution of a sample, not its tokens
            assert generate(model, ids, drafter, sampling, NEW).tokens == plain


def test_prompts_decoded_together_have_their_own_outputs(smollm2):
    model, asked = smollm2
    plain = [generate(model, ids, None, Sampling(), NEW).tokens for ids in asked]
    together = decode_together(model, asked, [Sampling()] * len(asked), NEW, 2)
    assert [run.tokens for run in together] == plain
    assert sum(len(run.steps) for run in together) < sum(map(len, plain)) / 2


def test_transformers_writes_the_same(smollm2):
    model, asked = smollm2
    out = model.generate(torch.tensor([asked[0]]), max_new_tokens=NEW, do_sample=False)[0, len(asked[0]) :]
    assert generate(model, asked[0], None, max_new_tokens=NEW).tokens == out.tolist()
