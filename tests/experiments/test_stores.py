"""Which text the experiments' stores hold, that each is built once, and what retrieval from them is measured by."""

import pickle
import zipfile
from collections import Counter

import numpy as np
import pytest
import torch

from specdec_lib import Sampling, generate, load_model
from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval.package_files import package_files
from specdec_lib.decoding.contract import LAST, Capture
from specdec_lib.drafters import Dresd, PromptLookup, Rest
from specdec_lib.experiments.checks import comparison
from specdec_lib.experiments.data import prompts as book_prompts
from specdec_lib.experiments.data import stores
from specdec_lib.experiments.data.prompt import Prompt, render
from specdec_lib.experiments.data.published_sets.replies import Reply
from specdec_lib.experiments.runs import recorded_runs, retrieval
from specdec_lib.models.draft_vocabulary import DraftVocabulary
from tests.datastores.stores import build
from tests.datastores.test_sharded import propose
from tests.experiments.made import made_up


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


def test_a_part_of_a_store_has_its_first_tokens(tokenizer):
    documents = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
    index = stores.document_store("three", documents, tokenizer)
    for tokens, last in ((2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 3]), (5, [4, 5]), (8, [6, 7, 8]), (100, [6, 7, 8, 9])):
        part = stores.first_part(index, tokens).store
        assert part.document(len(part) - 1).tolist() == last, "one token alone continues nothing"
        assert [t for i in range(len(part)) for t in part.document(i)] == sum(documents, [])[: part.count]


def test_states_and_dense_index_are_of_their_store_and_made_once(pocket, monkeypatch):
    model, tokenizer = pocket
    index = stores.document_store("long", [list(range(5, 1100)), [7, 8, 9]], tokenizer)
    states = stores.dense_states(model, index)
    # Windows cover what lies beyond the first 1,024 tokens; the last token of a document has no continuation.
    assert len(states) == 1094 + 2
    found = stores.dense_index(states, index, dims=16)
    assert found.store.path == index.store.path and found.dims == 16
    monkeypatch.setattr(stores, "build_dense_index", None)
    monkeypatch.setattr(stores, "embed_store", None)
    assert len(stores.dense_states(model, index)) == len(states)
    assert stores.dense_index(states, index, dims=16).path == found.path


PROMPTS = book_prompts.load("choose", ("short text editing", "mathematics"), 2)[:3]


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
        assert ask(pocket, batch=2) == expected
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


def test_match_lengths_count_the_longest_suffix_at_each_step():
    with build([[1, 2, 3, 4, 5, 6]], 50) as index:
        counts = retrieval.match_lengths([made_up([7, 1], [2, 9, 3, 4, 5, 6])], Rest(index, min_ngram=2))
    # Contexts end with 1 2, with 9, with 9 3 and with 3 4; after the last the draft 5 is kept.
    assert counts == Counter({2: 2, 0: 1, 1: 1})


def test_remembered_neighbours_draft_what_the_index_would(pocket):
    model, tokenizer = pocket
    text = "def add(first, second):\n    return first + second\n\n\n" * 4
    prompts = [Prompt("add", "code", (text,), chat=False)]
    # The prompt's own text, which the model goes on with.
    index = stores.document_store("own", [tokenizer(text * 4)["input_ids"]], tokenizer)
    dense = stores.dense_index(stores.dense_states(model, index), index, dims=32)
    recorded = recorded_runs.record_prompts(model, tokenizer, prompts, None, 24, Capture(layers=(LAST,)))
    remembered = retrieval.CachedNeighbours(dense, recorded, 20)
    for shape in ((3, 6), (10, 2)):
        drafters = (Dresd(index, *shape, neighbours=20) for index in (remembered, dense))
        ours, theirs = (recorded_runs.replay_all(recorded, drafter) for drafter in drafters)
        assert comparison.same_steps(ours[0], theirs[0]) and any(step.drafted for step in ours[0].steps)
    states = recorded[0].trace.hidden[LAST][len(recorded[0].trace.prompt) - 1 :].float()
    for known, looked_up in zip(remembered.search(states.numpy(), 7), dense.search(states, 7), strict=True):
        assert np.allclose(known, looked_up, atol=1e-6)
    again = retrieval.cached_neighbours(dense, recorded, 20)
    assert retrieval.cached_neighbours(dense, list(recorded), 20) is again, "looked up once"
    assert retrieval.cached_neighbours(dense, recorded, 10) is not again
    with pytest.raises(ValueError, match="k is 21, but 20 neighbours"):
        remembered.search(recorded[0].trace.hidden[LAST][-1:], 21)
    with pytest.raises(KeyError):
        remembered.search(torch.zeros(1, remembered.width), 1)


def test_recorded_text_is_replayed_whole(pocket):
    tokenizer = pocket[1]
    text = "for i in range(10):\n    print(i)\nfor i in range(10):\n    print(i)\n"
    replies = [Reply("a", "someone", "Write a loop twice.", text), Reply("b", "someone", "Say nothing.", "")]
    recorded = retrieval.record_replies(replies, tokenizer)
    assert [r.prompt.id for r in recorded] == ["a"]
    assert tokenizer.decode(recorded[0].trace.tokens) == text
    runs = recorded_runs.replay_all(recorded, PromptLookup())
    assert runs[0].tokens == recorded[0].trace.tokens and len(runs[0].steps) < len(runs[0].tokens) - 1


def body(i: int) -> str:
    return "".join(f"def function_{i}_{j}(x):\r\n    return x + {i * j}\r\n" for j in range(20))


@pytest.fixture
def folders(tmp_path):
    """Installed files 0 to 5, and a wheel with files 4 to 9 and one file that is too small."""
    installed, wheels = tmp_path / "site-packages", tmp_path / "wheels"
    (installed / "a").mkdir(parents=True)
    wheels.mkdir()
    for i in range(6):
        (installed / "a" / f"m{i}.py").write_bytes(body(i).encode())
    with zipfile.ZipFile(wheels / "b-1.0-py3-none-any.whl", "w") as wheel:
        for i in range(4, 10):
            wheel.writestr(f"b/n{i}.py", body(i).encode())
        wheel.writestr("b/small.py", "x = 1\n")
        wheel.writestr("b/data.txt", "text " * 100)
    return installed, wheels


def test_each_content_is_taken_once_parts_are_all_files_in_order_and_a_folder_without_wheels_is_refused(folders):
    installed, wheels = folders
    texts = package_files([wheels], [installed])
    expected = {body(i).replace("\r\n", "\n") for i in range(10)}
    assert set(texts) == expected and len(list(texts)) == 10
    assert sum(file.packed for file in texts.files) == 4
    assert len(list(package_files(installed=[installed]))) == 6
    # Texts go to other processes.
    assert list(pickle.loads(pickle.dumps(texts))) == list(texts)
    for count in (1, 2, 3, 7):
        parts = texts.split(count)
        assert len(parts) == count and [file for part in parts for file in part.files] == list(texts.files)
    with pytest.raises(FileNotFoundError, match="no wheels in"):
        package_files([installed], [installed])
    with pytest.raises(FileNotFoundError, match="no Python files in"):
        package_files([], [wheels])


def test_a_store_of_shards_is_built_once_and_its_first_shards_are_a_store(folders, monkeypatch):
    installed, wheels = folders
    tokenizer = load_model("pocket")[1]
    texts = package_files([wheels], [installed])
    index = stores.text_shards("packages", tokenizer, 3000, texts, shard_tokens=1000)
    counts = [shard.store.count for shard in index.shards]
    assert len(counts) == 3 and max(counts) <= 1000 and index.store.count == sum(counts)
    monkeypatch.setattr(stores, "build_sharded", lambda *_, **__: pytest.fail("built a second time"))
    again = stores.text_shards("packages", tokenizer, 3000, texts, shard_tokens=1000)
    first = again.first(1)
    assert first.store.count == counts[0] and len(first.shards) == 1
    whole = again.shards[0]
    context, vocabulary = whole.store.document(0)[:9].tolist(), whole.store.vocabulary
    assert propose(Rest(first), context, vocabulary) == propose(Rest(whole), context, vocabulary)
    with pytest.raises(ValueError, match="the first 4 of 3 shards"):
        again.first(4)
