"""Responses of the target: those of plain decoding, kept over interruptions."""

import json

import pytest

from specdec_lib import Sampling, generate, load_model
from specdec_lib.datastores.store_files import BuildLock, StoreBusy
from specdec_lib.experiments import made_tasks, responses
from specdec_lib.experiments.recorded_runs import render
from specdec_lib.experiments.responses import generate_responses


@pytest.fixture(scope="module")
def pocket():
    return load_model("pocket", dtype="float32")


@pytest.fixture(scope="module")
def prompts():
    return made_tasks.prompts("replace-word", 3, split="train") + made_tasks.prompts(
        "code-completion", 2, split="train"
    )


def ask(pocket, prompts, path, **options):
    return generate_responses(*pocket, prompts, path, max_new_tokens=12, progress=False, **options)


def test_greedy_responses_in_a_padded_batch_are_those_of_plain_decoding(pocket, prompts, tmp_path):
    model, tokenizer = pocket
    expected = []
    for ids in sorted((render(prompt, tokenizer) for prompt in prompts), key=len):
        expected.append(ids + generate(model, ids, max_new_tokens=12).tokens)
    assert ask(pocket, prompts, tmp_path / "r.jsonl", batch=4) == expected


def test_samples_of_one_prompt_differ_and_come_again_with_their_seed(pocket, prompts, tmp_path):
    how = {"sampling": Sampling(temperature=1.0, top_p=0.95, seed=3), "samples": 3}
    first, again = (ask(pocket, prompts, tmp_path / name, **how) for name in ("a", "b"))
    other = ask(pocket, prompts, tmp_path / "c", sampling=Sampling(temperature=1.0, top_p=0.95, seed=4), samples=3)
    assert first == again != other
    assert len(first) == 3 * len(prompts) and any(first[i] != first[i + 1] for i in range(0, len(first), 3))


def test_an_interrupted_run_goes_on_after_its_last_whole_batch(pocket, prompts, tmp_path, monkeypatch):
    whole = ask(pocket, prompts, tmp_path / "whole", batch=2)
    calls = []

    def answer(*args, _real=responses._answer):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return _real(*args)

    monkeypatch.setattr(responses, "_answer", answer)
    path = tmp_path / "r.jsonl"
    with pytest.raises(KeyboardInterrupt):
        ask(pocket, prompts, path, batch=2)
    partial = tmp_path / "r.jsonl.partial"
    assert not path.exists()
    # What a kill in the middle of a write leaves.
    partial.write_text(partial.read_text() + "[[1, 2", encoding="utf-8")
    assert ask(pocket, prompts, path, batch=2) == whole and len(calls) == 4
    assert ask(pocket, prompts, path, batch=2) == whole and len(calls) == 4
    assert not partial.exists() and len(path.read_text().splitlines()) == 4


def test_penalties_of_the_checkpoint_do_not_reach_the_responses(pocket, prompts, tmp_path):
    model, tokenizer = pocket
    expected = ask(pocket, prompts, tmp_path / "plain")
    settings = model.generation_config.to_dict()
    try:
        model.generation_config.update(repetition_penalty=1.8, no_repeat_ngram_size=2)
        assert ask(pocket, prompts, tmp_path / "again") == expected
        assert model.generation_config.repetition_penalty == 1.8
    finally:
        model.generation_config = type(model.generation_config).from_dict(settings)


def test_responses_that_were_cut_are_refused(pocket, prompts, tmp_path):
    path = tmp_path / "r.jsonl"
    ask(pocket, prompts, path, batch=2)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]), encoding="utf-8")
    with pytest.raises(ValueError, match="holds 4 responses, expected 5"):
        ask(pocket, prompts, path, batch=2)


def test_a_run_in_progress_is_not_joined_by_another(pocket, prompts, tmp_path):
    path = tmp_path / "r.jsonl"
    with BuildLock(path), pytest.raises(StoreBusy, match="is being built by another process"):
        ask(pocket, prompts, path)
    (tmp_path / "r.jsonl.partial").write_text('"another"\n', encoding="utf-8")
    with pytest.raises(ValueError, match="part of the responses to another request"):
        ask(pocket, prompts, path)


def test_responses_to_another_request_are_not_mistaken_for_these(pocket, prompts, tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps("another") + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match="responses of another model"):
        ask(pocket, prompts, path)


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"samples": 2}, "greedy responses to one prompt are all the same"),
        ({"batch": 0}, "batch is 0"),
        ({"samples": 0}, "samples is 0"),
    ],
)
def test_bad_input_is_refused_before_any_work(pocket, prompts, tmp_path, wrong, message):
    with pytest.raises(ValueError, match=message):
        ask(pocket, prompts, tmp_path / "r", **wrong)
    with pytest.raises(ValueError, match="no prompts"):
        ask(pocket, [], tmp_path / "r")
    assert not list(tmp_path.iterdir())
