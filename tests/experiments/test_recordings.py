"""Runs that chapters share: the tokens of plain decoding, decoded once, and never those of another model."""

import json
from operator import attrgetter

import pytest
import torch

from specdec_lib import Sampling, paths, record
from specdec_lib.decoding.contract import LAST, Capture
from specdec_lib.decoding.teacher_forcing import record_known
from specdec_lib.experiments import recorded_runs, recordings
from specdec_lib.experiments.recordings import Answer, RecordingError, record_once
from tests.experiments.test_recorded_runs import GREEDY, PROMPTS, SAMPLED, tiny
from tests.experiments.test_recorded_runs import model as model

TRACED = ("prompt", "tokens", "finish_reason", "limits", "sampling", "vocabulary")
EVERYTHING = Capture((0, 1, LAST), ((0, 1), (1, 3)))


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(recordings.FRESH, raising=False)
    monkeypatch.setattr(paths, "RECORDINGS", tmp_path / "committed.npz")
    monkeypatch.setattr(recordings, "_checked", set())
    recordings._committed.cache_clear()


@pytest.fixture
def decoded(monkeypatch):
    """Prompts that are decoded."""
    prompts = []

    def counting(model, ids, *args, **kwargs):
        prompts.append(ids)
        return record(model, ids, *args, **kwargs)

    monkeypatch.setattr(recordings, "record", counting)
    return prompts


def same_tokens(ours, theirs):
    told = attrgetter("prompt.id", "turn", *(f"trace.{part}" for part in TRACED))
    assert list(map(told, ours)) == list(map(told, theirs))


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_the_second_chapter_decodes_nothing_and_has_the_same_runs(model, tokenizer, decoded, sampling):
    expected = recorded_runs.record_prompts(model, tokenizer, PROMPTS, sampling, 24)
    for _ in range(2):
        same_tokens(record_once(model, tokenizer, PROMPTS, sampling, 24), expected)
        assert len(decoded) == len(expected)


def test_a_shorter_run_is_the_beginning_of_a_longer_one_and_a_longer_one_is_decoded(model, tokenizer, decoded):
    record_once(model, tokenizer, PROMPTS, GREEDY, 24)
    before = len(decoded)
    short = [PROMPTS[0], PROMPTS[1]]  # a second turn has another prompt, because the first answer is shorter
    for count in (9, 30):
        expected = recorded_runs.record_prompts(model, tokenizer, short, GREEDY, count)
        same_tokens(record_once(model, tokenizer, short, GREEDY, count), expected)
        assert (len(decoded) > before) == (count == 30)


@pytest.mark.parametrize(("tokens", "reason", "count", "cut"), [
    ([1, 2, 0], "eos", 5, ([1, 2, 0], "eos")), ([1, 2, 0], "eos", 3, ([1, 2, 0], "eos")),
    ([1, 2, 0], "eos", 2, ([1, 2], "length")), ([1, 2, 3], "length", 4, None),
    ([1, 2, 3], "context", 4, ([1, 2, 3], "context")),
])  # fmt: skip
def test_what_tokens_tell_about_another_length(tokens, reason, count, cut):
    assert Answer(tokens, reason).cut(count) == cut


def test_another_seed_another_model_and_another_type_are_other_recordings(model, tokenizer, decoded):
    record_once(model, tokenizer, PROMPTS[:1], SAMPLED, 8)
    for other, sampling in (
        (model, Sampling(0.7, top_p=0.9, seed=4)),
        (tiny(5, model.config.vocab_size), SAMPLED),
        (tiny(0, model.config.vocab_size).double(), SAMPLED),
    ):
        before = len(decoded)
        expected = recorded_runs.record_prompts(other, tokenizer, PROMPTS[:1], sampling, 8)
        same_tokens(record_once(other, tokenizer, PROMPTS[:1], sampling, 8), expected)
        assert len(decoded) == before + 1


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_one_pass_gives_the_states_and_rows_of_token_by_token(model, tokenizer, sampling):
    for recording in recorded_runs.record_prompts(model, tokenizer, PROMPTS, sampling, 24, EVERYTHING):
        slow = recording.trace
        fast, written = record_known(model, slow.prompt, slow.tokens, slow.finish_reason, sampling, 24, EVERYTHING)
        assert written == slow.tokens
        assert fast.hidden.keys() == slow.hidden.keys()
        for layer, states in slow.hidden.items():
            torch.testing.assert_close(fast.hidden[layer], states, rtol=1e-4, atol=1e-4)
        assert [rows.shape for rows in fast.attention] == [rows.shape for rows in slow.attention]
        for ours, theirs in zip(fast.attention, slow.attention, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.fixture
def altered(model, tokenizer):
    """A prompt is recorded, and another token stands in the file."""
    record_once(model, tokenizer, PROMPTS[:1], GREEDY, 12)
    (path,) = recordings.folder().glob("*.json")
    about = json.loads(path.read_text())
    about["tokens"][5] = (about["tokens"][5] + 7) % 100 + 1
    path.write_text(json.dumps(about))
    recordings._checked.clear()


@pytest.mark.usefixtures("altered")
@pytest.mark.parametrize(("sample", "capture"), [(1, Capture()), (10**9, Capture((1,)))])
def test_a_recording_that_the_model_does_not_write_names_its_prompt(model, tokenizer, monkeypatch, sample, capture):
    monkeypatch.setattr(recordings, "SAMPLE", sample)
    with pytest.raises(RecordingError, match=r"prompt 'one' of task 'code': token 5 .* --fresh"):
        record_once(model, tokenizer, PROMPTS[:1], GREEDY, 12, capture)


@pytest.mark.usefixtures("altered")
def test_a_fresh_run_reads_nothing_and_what_it_decodes_takes_the_place_of_the_rest(model, tokenizer, decoded):
    expected = recorded_runs.record_prompts(model, tokenizer, PROMPTS[:1], GREEDY, 12)
    with recordings.fresh_folder() as folder:
        same_tokens(record_once(model, tokenizer, PROMPTS[:1], GREEDY, 12), expected)
        before = len(decoded)
        same_tokens(record_once(model, tokenizer, PROMPTS[:1], GREEDY, 12), expected)
        assert len(decoded) == before
    same_tokens(record_once(model, tokenizer, PROMPTS[:1], GREEDY, 12), expected)
    assert len(decoded) == before and not folder.exists()


def test_committed_tokens_are_used_for_their_models_alone_to_which_later_ones_are_added(
    model, tokenizer, monkeypatch, decoded, tmp_path
):
    other = tiny(5, model.config.vocab_size)
    mine, others = [[recordings.identity(one)] for one in (model, other)]
    for one in (model, other):
        record_once(one, tokenizer, PROMPTS[:1], SAMPLED, 16)
    assert recordings.commit(recordings.folder(), paths.RECORDINGS, mine, {}) == 1
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "later"))
    record_once(model, tokenizer, PROMPTS[1:], SAMPLED, 16)
    expected = recorded_runs.record_prompts(model, tokenizer, PROMPTS, SAMPLED, 16)
    count = recordings.commit(recordings.folder(), paths.RECORDINGS, mine, {"command": "python -m a_test"})
    about = json.loads(paths.RECORDINGS.with_suffix(".json").read_text())
    assert about["outputs"] == count == len(expected) and about["command"] == "python -m a_test"
    assert about["tokens"] == sum(len(r.trace.tokens) for r in expected)
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "empty"))
    before = len(decoded)
    same_tokens(record_once(model, tokenizer, PROMPTS, SAMPLED, 16), expected)
    assert len(decoded) == before
    record_once(other, tokenizer, PROMPTS[:1], SAMPLED, 16)
    assert len(decoded) == before + 1
    assert recordings.commit(recordings.folder(), paths.RECORDINGS, others, {}) == 1


def test_damaged_files_and_a_length_in_place_of_the_sampling_are_named(model, tokenizer):
    with pytest.raises(TypeError, match="sampling is 128"):
        record_once(model, tokenizer, PROMPTS, 128)
    record_once(model, tokenizer, PROMPTS[:1], GREEDY, 4)
    (path,) = recordings.folder().glob("*.json")
    path.write_text("{}")
    with pytest.raises(RecordingError, match=f"{path.name} is no recording"):
        record_once(model, tokenizer, PROMPTS[:1], GREEDY, 4)
    path.unlink()
    paths.RECORDINGS.write_bytes(b"nothing")
    with pytest.raises(RecordingError, match="committed.npz is no file of recordings"):
        record_once(model, tokenizer, PROMPTS[:1], GREEDY, 4)


@pytest.mark.parametrize(("prompt", "tokens", "words"), [
    ([5, 6], [], "0 tokens are given"), ([], [1], "input_ids is empty"), ([5, 10**6], [1], "vocabulary"),
    ([5] * 10**4, [1], "the model's context is"), ([5, 6], [1, 2, 3], "3 tokens are given"),
])  # fmt: skip
def test_tokens_that_cannot_be_a_run_are_refused(model, prompt, tokens, words):
    with pytest.raises(ValueError, match=words):
        record_known(model, prompt, tokens, "length", max_new_tokens=2)
