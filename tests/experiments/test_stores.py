"""Which text the experiments' stores hold, and that each is built once."""

import pytest
import torch

from specdec_lib import Sampling, generate, load_model
from specdec_lib.experiments import prompts as book_prompts
from specdec_lib.experiments import stores
from specdec_lib.experiments.recorded_runs import render
from specdec_lib.models.draft_vocabulary import DraftVocabulary


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))


def test_a_store_holds_its_texts_and_is_opened_the_second_time(tokenizer, monkeypatch):
    texts = ["def f(x):\n    return x\n", "class Stack:\n    pass\n"]
    index = stores.text_store("mine", tokenizer, 10_000, texts)
    assert [tokenizer.decode(index.store.document(i)) for i in range(2)] == texts
    monkeypatch.setattr(stores, "build_from_texts", None)
    assert stores.text_store("mine", tokenizer, 10_000, texts).store.path == index.store.path
    with pytest.raises(TypeError):
        stores.text_store("mine", tokenizer, 9_999, texts)


def test_the_chat_store_holds_the_answers_of_the_book_s_model_and_an_unknown_one_is_refused_by_name(tokenizer):
    index = stores.text_store("chat", tokenizer, 2_000)
    first = next(iter(stores.chat_texts()))
    assert 1_000 < index.store.count <= 2_000 and tokenizer.decode(index.store.document(0)) == first
    with pytest.raises(ValueError, match="store 'web' is unknown; expected one of stdlib, packages, chat"):
        stores.text_store("web", tokenizer, 100)


def test_a_part_of_a_store_is_its_first_whole_documents(tokenizer):
    documents = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
    index = stores.document_store("three", documents, tokenizer)
    for tokens, count in ((1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3), (100, 3)):
        part = stores.first_part(index, tokens).store
        assert [part.document(i).tolist() for i in range(len(part))] == documents[:count]


def test_states_and_dense_index_are_of_their_store_and_made_once(pocket, monkeypatch):
    model, tokenizer = pocket
    index = stores.document_store("long", [list(range(5, 1500)), [7, 8, 9]], tokenizer)
    states = stores.dense_states(model, index)
    # Windows cover what lies beyond the first 1,024 tokens; the last token of a document has no continuation.
    assert len(states) == 1494 + 2
    found = stores.dense_index(states, index, dims=16)
    assert found.store.path == index.store.path and found.dims == 16
    monkeypatch.setattr(stores, "build_dense_index", None)
    monkeypatch.setattr(stores, "embed_store", None)
    assert len(stores.dense_states(model, index)) == len(states)
    assert stores.dense_index(states, index, dims=16).path == found.path


PROMPTS = book_prompts.load("choose", ("short text editing", "mathematics"), 3)[:5]


def ask(pocket, **options):
    store = stores.response_store(*pocket, PROMPTS, max_new_tokens=12, **options).store
    return [store.document(i).tolist() for i in range(len(store))]


def test_greedy_responses_in_a_padded_batch_are_those_of_plain_decoding(pocket):
    model, tokenizer = pocket
    rendered = sorted((render(prompt, tokenizer) for prompt in PROMPTS), key=len)
    expected = [ids + generate(model, ids, max_new_tokens=12).tokens for ids in rendered]
    settings = model.generation_config.to_dict()
    try:  # penalties of the checkpoint do not reach the responses
        model.generation_config.update(repetition_penalty=1.8, no_repeat_ngram_size=2)
        assert ask(pocket, batch=4) == expected
        assert model.generation_config.repetition_penalty == 1.8
    finally:
        model.generation_config = type(model.generation_config).from_dict(settings)


def test_a_draft_model_of_a_cut_vocabulary_answers_in_the_target_s_tokens():
    model, tokenizer = load_model("pocket-draft", dtype="float32")
    vocabulary = DraftVocabulary([i for i in range(4000) if i % 300], 4000)
    model.draft_vocabulary = vocabulary
    found = stores.response_store(model, tokenizer, PROMPTS[:1], max_new_tokens=6).store.document(0).tolist()
    expected = list(render(PROMPTS[0], tokenizer))
    with torch.inference_mode():
        for _ in range(6):
            logits = model(torch.tensor([vocabulary.to_draft(expected)])).logits[0, -1, : len(vocabulary)]
            expected += vocabulary.to_target([int(logits.argmax())])
    assert found == expected and set(expected) <= set(vocabulary.ids.tolist()) | set(render(PROMPTS[0], tokenizer))


def test_samples_of_one_prompt_differ_and_come_again_with_their_seed(pocket, tmp_path, monkeypatch):
    how, other = ({"sampling": Sampling(1.0, top_p=0.95, seed=seed), "samples": 3} for seed in (3, 4))
    first = ask(pocket, **how)
    assert ask(pocket, **other) != first
    with monkeypatch.context() as patch:
        patch.setattr(stores, "_answer", lambda *_: pytest.fail("answered again"))
        assert ask(pocket, **how) == first
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "another"))
    assert ask(pocket, **how) == first
    assert len(first) == 3 * len(PROMPTS) and any(first[i] != first[i + 1] for i in range(0, len(first), 3))
    with pytest.raises(ValueError, match="greedy responses to one prompt are all the same"):
        ask(pocket, samples=2)


def test_packages_give_files_that_are_neither_small_nor_huge_in_one_order(tmp_path):
    wanted = {f"number_{i} = compute_something({i})\n" * 20 for i in range(5)}
    for i, text in enumerate([*wanted, "x = 1\n", "y = 2\n" * stores.LARGEST_FILE]):
        (tmp_path / f"m{i}.py").write_text(text, encoding="utf-8")
    (tmp_path / "data.txt").write_text("text " * 100, encoding="utf-8")
    texts = stores.package_texts(tmp_path)
    assert set(texts) == wanted and list(texts) == list(stores.package_texts(tmp_path))
    with pytest.raises(FileNotFoundError, match="no Python files under"):
        stores.package_texts(tmp_path / "none")
