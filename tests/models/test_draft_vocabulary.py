"""A draft that knows some of the target's tokens: the map, its file, what is drafted and what is refused."""

import pytest
import torch
from safetensors.torch import save_file

from specdec_lib import Sampling, generate, load_model
from specdec_lib.drafters import DraftModel
from specdec_lib.experiments.runs.recorded_runs import load_pair
from specdec_lib.heads.acceptance_data import examples, label
from specdec_lib.models.draft_vocabulary import FILE, DraftVocabulary, draft_vocabulary
from tests.chaos import greedy_agreement
from tests.families import TEXT, VOCABULARY, build, cut, prompt, save

IDS = [token for token in range(TEXT) if token % 3]


def test_every_token_has_one_id_and_those_left_out_the_unknown_one():
    known = DraftVocabulary([2, 3, 7])
    assert known.to_draft([7, 2, 0, 5, 8, 10**6, 3]) == [2, 0, 3, 3, 3, 3, 1]
    assert DraftVocabulary([2, 3, 7], unknown=1).to_draft([0, 2]) == [1, 0]
    assert known.to_target([0, 1, 2]) == [2, 3, 7] and (len(known), known.largest) == (3, 7)
    rows = torch.tensor([[0.5, 0.2, 0.3]])
    assert known.spread(rows, 9).tolist() == [[0, 0, *rows[0, :2].tolist(), 0, 0, 0, rows[0, 2].item(), 0]]


def test_a_large_id_takes_no_more_memory_than_a_small_one():
    known = DraftVocabulary([0, 5, 2**62])
    assert known.to_draft([5, 2**62, 2**40, 0]) == [1, 2, 3, 0]


@pytest.fixture(scope="module")
def folders(tmp_path_factory, llama):
    root = tmp_path_factory.mktemp("pair")
    save(llama, root / "target")
    save(cut(llama, IDS), root / "draft")
    DraftVocabulary(IDS).save(root / "draft")
    return root


def test_a_folder_with_a_vocabulary_is_a_draft_of_the_pair(folders, llama):
    target, draft, _ = load_pair(folders / "target", folders / "draft", "cpu", chat=False)
    known = draft_vocabulary(draft)
    assert known.ids.tolist() == IDS and draft_vocabulary(build("llama")).ids.tolist() == list(range(VOCABULARY))
    start = prompt(3, 20)
    plain = generate(target, start, max_new_tokens=40).tokens
    run = generate(target, start, DraftModel(draft, 3), max_new_tokens=40)
    assert run.tokens == plain
    drafted = {token for step in run.steps for token in step.tree.tokens}
    assert drafted <= set(IDS) and any(step.accepted for step in run.steps)
    # The draft is a copy of the target, so that it agrees wherever the context holds nothing but tokens it knows.
    text = [token for token in start if token in IDS]
    with torch.inference_mode():
        best = llama(torch.tensor([text])).logits[0, :, IDS].argmax(-1)
    expected = [IDS[i] == token for i, token in zip(best[4:-1].tolist(), text[5:], strict=True)]
    assert greedy_agreement(draft, text[:5], text[5:]).tolist() == expected


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.9, 0.9, 30, seed=2)])
def test_acceptance_is_labelled_over_the_targets_tokens(folders, sampling):
    target, draft, _ = load_pair(folders / "target", folders / "draft", "cpu", chat=False)
    start = prompt(3, 20)
    tokens = generate(target, start, None, sampling, 30).tokens
    found = label(target, draft, start, tokens, sampling)
    assert set(found.drawn.tolist()) <= set(IDS) and 0 < found.acceptance.mean() < 1
    assert len(examples(draft, [found])) > 0
    assert len(examples(draft, [found], mixing=None)) == len(tokens)


@pytest.mark.parametrize("rows", [VOCABULARY + 6, VOCABULARY - 4])
def test_a_draft_whose_embedding_is_padded_to_another_length_drafts(rows):
    """As those of Qwen2.5 are; what the target does not have is never drafted."""
    llama = build("llama-gqa")
    kept = list(range(min(rows, VOCABULARY)))
    padded = cut(llama, kept + [kept[-1]] * (rows - len(kept)), unknown=False)
    with torch.no_grad():
        padded.lm_head.weight[VOCABULARY:] *= 100  # the new rows would be chosen always
    start = [token for token in prompt(3, 30) if token < VOCABULARY - 4]
    run = generate(llama, start, DraftModel(padded, 4), max_new_tokens=30)
    assert run.tokens == generate(llama, start, max_new_tokens=30).tokens
    assert sum(step.accepted for step in run.steps) > 10
    sampled = generate(llama, start, DraftModel(padded, 4), Sampling(0.8, seed=1), max_new_tokens=30)
    assert max(token for step in sampled.steps for token in step.tree.tokens) < VOCABULARY
    found = label(llama, padded, start, run.tokens, Sampling())
    assert found.drawn.max() < VOCABULARY and found.acceptance.mean() > 0.5


@pytest.mark.parametrize(
    "tensors, says",
    [
        ({}, "expected a tensor 'ids'"),
        ({"ids": torch.tensor([1.0])}, "ids is torch.float32 .* expected int64"),
        ({"ids": torch.tensor([3, 2])}, "not ascending token ids"),
        ({"ids": torch.tensor([1, 10**5])}, "holds token id 100000, the tokenizer in its folder has"),
        ({"ids": torch.arange(len(IDS) + 1)}, f"a draft vocabulary of {len(IDS) + 1} tokens"),
        ({"ids": torch.tensor([1, 2]), "unknown": torch.tensor(-1)}, "with row -1 for all others does not fit"),
        ({"ids": torch.tensor([1, 2]), "unknown": torch.zeros(2)}, f"{FILE} holds no draft vocabulary"),
        ({"ids": torch.tensor([1, 2]), "unknown": torch.tensor(torch.inf)}, f"{FILE} holds no draft vocabulary"),
    ],
)
def test_a_vocabulary_that_does_not_fit_is_refused(tmp_path, llama, tensors, says):
    save_file(tensors, save(cut(llama, IDS), tmp_path) / FILE)
    with pytest.raises(ValueError, match=says):
        load_model(tmp_path, "cpu")


def test_a_vocabulary_of_another_target_is_refused_before_any_draft(llama):
    other = build("llama", vocab_size=VOCABULARY - 20)
    with pytest.raises(ValueError, match=f"has {IDS[-1] + 1} token ids, the target {VOCABULARY - 20}: they must share"):
        generate(other, [1, 2], DraftModel(cut(llama, IDS), vocabulary=DraftVocabulary(IDS)))
    with pytest.raises(ValueError, match=f"has {VOCABULARY} token ids, the target {VOCABULARY + 8}"):
        generate(build("llama", vocab_size=VOCABULARY + 8), [1, 2], DraftModel(build("llama")))
    with pytest.raises(ValueError, match=f"row {len(IDS)} for all others does not fit a model that embeds {len(IDS)}"):
        DraftModel(cut(llama, IDS, unknown=False), vocabulary=DraftVocabulary(IDS))
