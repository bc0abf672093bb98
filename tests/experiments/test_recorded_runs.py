"""Between prompts and tables: runs recorded once, decoded never again, replayed, timed and summed; never those of another model."""

import json
import os
import signal
from dataclasses import replace
from operator import attrgetter

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from specdec_lib import Drafter, DraftTree, Sampling, generate, paths, record, replay
from specdec_lib.chapters import ch01_speculative_decoding as chapter
from specdec_lib.decoding.contract import LAST, Capture
from specdec_lib.decoding.teacher_forcing import record_known
from specdec_lib.drafters import DraftModel, PromptLookup
from specdec_lib.drafters.token_recycling import TokenRecycling
from specdec_lib.experiments.checks import comparison
from specdec_lib.experiments.data.prompt import Prompt, render
from specdec_lib.experiments.runs import all_cores, recorded_runs, recordings
from specdec_lib.experiments.runs.recordings import Answer, RecordingError, record_once
from tests import families

TEXT = "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n" * 3
PROMPTS = [
    Prompt("one", "code", (TEXT,), chat=False),
    Prompt("two", "chat", ("Rename `a` to `c`.\n\n" + TEXT,)),
    Prompt("three", "talk", ("Say add.", "Say it again.")),
]
GREEDY, SAMPLED = Sampling(), Sampling(0.7, top_p=0.9, seed=3)


def tiny(seed: int, vocabulary: int):
    return families.build("llama-gqa", seed, vocab_size=vocabulary, max_position_embeddings=512, eos_token_id=0)


@pytest.fixture(scope="module")
def model(tokenizer):
    return tiny(0, len(tokenizer))


@pytest.fixture(scope="module")
def draft(model):
    """It agrees with the target at some positions and not at others."""
    return families.perturbed(model)


@pytest.fixture(scope="module")
def recorded(model, tokenizer):
    return recorded_runs.record_prompts(model, tokenizer, PROMPTS, GREEDY, 40)


def test_a_chat_is_rendered_as_the_pocket_pair_was_trained_on_it_and_without_a_template_refused_by_name(tokenizer):
    prompt = Prompt("p", "t", ("Say add.", "Say sub."))
    first = "<|user|>Say add.<|assistant|>"
    second = first + "add<|end|><|user|>Say sub.<|assistant|>"
    assert render(prompt, tokenizer) == tokenizer.encode(first)
    assert render(prompt, tokenizer, ("add",)) == tokenizer.encode(second)
    bare = PreTrainedTokenizerFast.from_pretrained(paths.POCKET / "target")
    bare.chat_template = None
    with pytest.raises(ValueError, match="'two' is a chat .* no chat template"):
        render(PROMPTS[1], bare)
    assert bare.decode(render(PROMPTS[0], bare)) == TEXT


def test_a_second_turn_has_the_models_own_first_answer_in_its_history(model, tokenizer, recorded):
    first, second = [r for r in recorded if r.task == "talk"]
    assert (first.turn, second.turn) == (0, 1)
    said = tokenizer.decode(first.trace.tokens, skip_special_tokens=True)
    assert said and second.trace.prompt == render(first.prompt, tokenizer, [said])
    assert first.trace.tokens == generate(model, first.trace.prompt, max_new_tokens=40).tokens


def test_the_sweep_of_a_draft_model_is_a_replay_at_every_length(draft, recorded):
    lengths = [1, 3, 8, 20]
    runs = recorded_runs.sweep_draft_model(recorded, draft, lengths)
    assert list(runs) == lengths
    for length in lengths:
        for run, recording in zip(runs[length], recorded, strict=True):
            assert comparison.same_steps(run, replay(recording.trace, DraftModel(draft, length)))
    accepted = sum(step.accepted for run in runs[8] for step in run.steps)
    assert 0 < accepted < sum(step.drafted for run in runs[8] for step in run.steps)


def test_drafted_and_verified_balance_emitted_and_discarded_also_where_a_run_ends_inside_its_draft(draft, recorded):
    runs = [run for some in recorded_runs.sweep_draft_model(recorded, draft, [1, 4, 9]).values() for run in some]
    for drafter in (PromptLookup(num_tokens=6), None):
        runs += recorded_runs.replay_all(recorded, drafter)
    assert [chapter.count_imbalance(run) for run in runs] == [0] * len(runs)
    lost = max(runs, key=lambda run: len(run.steps))
    assert chapter.count_imbalance(replace(lost, steps=lost.steps[:-1])) != 0
    trace = replace(recorded[0].trace, prompt=[9, 10, 11, 0, 9], tokens=[10, 11, 0], finish_reason="eos")
    run = replay(trace, PromptLookup(num_tokens=2))
    assert run.steps[-1].tokens == (11, 0) and run.steps[-1].accepted == 2
    assert chapter.count_imbalance(run) == 0
    assert chapter.ends_inside(run) and not chapter.ends_inside(replace(run, steps=run.steps[:-1]))


class Learns(Drafter):
    """Drafts what followed the last token in any earlier text; notes how much it knew as each prompt began."""

    def __init__(self):
        self.began: list[int] = []
        self.reset()

    def reset(self):
        self.following: dict[int, int] = {}

    def start(self, context):
        self.began.append(len(self.following))
        self.context = context

    def verified(self, tree, path, outputs):
        tokens = self.context.tokens
        for pair in zip(tokens[:-1], tokens[1:], strict=True):
            self.following.setdefault(*pair)

    def propose(self, context, limit):
        draft = [context.tokens[-1]]
        while len(draft) <= min(limit, 6) and draft[-1] in self.following:
            draft.append(self.following[draft[-1]])
        return DraftTree.chain(draft[1:])


def test_a_cold_drafter_knows_nothing_of_other_prompts_and_a_warm_one_what_came_before(model, recorded):
    some = [recorded[0], recorded[1], recorded[0]]
    for state in recorded_runs.STATES:
        # By hand: the same drafter, in the same order, with reset() where it belongs.
        drafter, expected = Learns(), []
        for recording in some:
            if state == "cold":
                drafter.reset()
            expected.append(replay(recording.trace, drafter))
        for run_all in (
            lambda d, s: recorded_runs.replay_all(some, d, s),
            lambda d, s: recorded_runs.run_again(model, some, d, state=s),
        ):
            drafter = Learns()
            recorded_runs.replay_all(some[::-1], drafter)  # what it knows from before must not matter
            drafter.began.clear()
            runs = run_all(drafter, state)
            assert all(comparison.same_steps(*pair) for pair in zip(runs, expected, strict=True))
            assert [run.state for run in runs] == [state] * 3
            assert drafter.began[0] == 0
            assert (drafter.began[1:] == [0, 0]) == (state == "cold")
    assert [run.state for run in recorded_runs.replay_all(some, None)] == ["cold"] * 3


def test_no_timing_shows_a_drafter_the_answers_of_an_earlier_repeat(model, recorded):
    for state in recorded_runs.STATES:
        drafter = Learns()
        timed = recorded_runs.time_methods(model, recorded[:2], {"plain": None, "learns": drafter}, 2, state=state)
        # The first generation warms the machine up.
        began = [drafter.began[1 + 2 * repeat : 3 + 2 * repeat] for repeat in range(2)]
        assert began[0] == began[1] and began[0][0] == 0
        assert (began[0][1] == 0) == (state == "cold")
        for runs in timed["learns"]:
            assert all(comparison.same_steps(*pair) for pair in zip(runs, timed["learns"][0], strict=True))
            assert [run.state for run in runs] == [state] * 2


HOT = "state is 'hot'; expected one of cold, warm"


@pytest.mark.parametrize("run, says", [
    (lambda m, recorded, d: recorded_runs.replay_all(recorded, d, "hot"), HOT),
    (lambda m, recorded, d: recorded_runs.run_again(m, recorded, d, state="hot"), HOT),
    (lambda m, recorded, d: recorded_runs.time_methods(m, recorded, {"a": d}, 1, state="hot"), HOT),
    (lambda m, recorded, d: recorded_runs.time_methods(m, recorded, {"a": d, "b": d}, 1, "warm"), "two methods share one drafter"),
    (lambda m, recorded, d: chapter.forward_times(*[[[replay(recorded[0].trace, None)]]] * 2), "no draft was verified"),
    (lambda m, recorded, d: record_known(m, [5, 6], [], "length", None, 2), "0 tokens are given"),
    (lambda m, recorded, d: record_known(m, [], [1], "length", None, 2), "input_ids is empty"),
    (lambda m, recorded, d: record_known(m, [5, 10**6], [1], "length", None, 2), "vocabulary"),
    (lambda m, recorded, d: record_known(m, [5] * 10**4, [1], "length", None, 2), "the model's context is"),
    (lambda m, recorded, d: record_known(m, [5, 6], [1, 2, 3], "length", None, 2), "3 tokens are given"),
    (lambda m, recorded, d: recorded_runs.sweep_draft_model([replace(recorded[0], trace=replace(recorded[0].trace, sampling=SAMPLED))], m, [2]), "verified by rejection"),
    (lambda m, recorded, d: render(PROMPTS[0], None, ["done"]), "1 turns and 1 answers"),
])  # fmt: skip
def test_what_is_refused_before_any_work(model, recorded, run, says):
    drafter = Learns()
    with pytest.raises(ValueError, match=says):
        run(model, recorded, drafter)
    assert drafter.began == []


def test_a_pair_with_two_tokenizers_is_refused(tmp_path, model, tokenizer):
    for name, own in (("a", tokenizer), ("b", families.tokenizer())):
        model.save_pretrained(tmp_path / name)
        own.save_pretrained(tmp_path / name)
    with pytest.raises(ValueError, match="tokenizers of target .* differ"):
        recorded_runs.load_pair(str(tmp_path / "a"), str(tmp_path / "b"), "cpu")
    loaded, small, _ = recorded_runs.load_pair(str(tmp_path / "a"), str(tmp_path / "a"), "cpu")
    assert loaded is not small


def test_a_target_without_a_chat_template_is_refused_before_its_weights_are_read(tmp_path, model, monkeypatch):
    model.save_pretrained(tmp_path)
    families.tokenizer().save_pretrained(tmp_path)
    assert recorded_runs.load_pair(tmp_path, tmp_path, "cpu", chat=False)
    monkeypatch.setattr(recorded_runs, "load_model", lambda *options: pytest.fail("weights were read"))
    with pytest.raises(ValueError, match="the prompts are chats and the tokenizer of .* has no chat template"):
        recorded_runs.load_pair(tmp_path, tmp_path, "cpu")


@pytest.mark.parametrize("begins", [False, True], ids=["bare", "with a token for the beginning"])
def test_a_model_without_a_chat_template_is_given_prompts_as_plain_text(tmp_path, model, begins):
    """Oracle: the tokenizer on the text that a reader would type."""
    bare = PreTrainedTokenizerFast.from_pretrained(paths.POCKET / "target")
    bare.chat_template = None
    if begins:
        bare.bos_token = "<|user|>"
        one = [(bare.bos_token, bare.bos_token_id)]
        bare.backend_tokenizer.post_processor = TemplateProcessing(f"{bare.bos_token} $A", None, one)
    model.save_pretrained(tmp_path)
    bare.save_pretrained(tmp_path)
    loaded, _, tokenizer = recorded_runs.load_pair(tmp_path, tmp_path, "cpu", plain_text=True)
    prompt = Prompt("p", "t", ("Say  add.\n", "Say sub."))
    assert render(prompt, tokenizer) == bare("Say  add.\n")["input_ids"]
    assert render(prompt, tokenizer, ("add",)) == bare("Say  add.\n\n\nadd\n\nSay sub.")["input_ids"]
    assert (render(prompt, tokenizer)[0] == bare.bos_token_id) == begins
    (recording, _) = recorded_runs.record_prompts(loaded, tokenizer, [prompt], GREEDY, 4)
    assert recording.trace.tokens == generate(loaded, bare(prompt.text)["input_ids"], max_new_tokens=4).tokens


def test_forward_times_are_medians_of_the_repeats(recorded):
    def repeat(draft, verify):
        run = replay(recorded[0].trace, PromptLookup(num_tokens=3))
        steps = [replace(s, draft_seconds=draft * s.drafted, verify_seconds=verify) for s in run.steps]
        return [replace(run, steps=steps)]

    plain = [repeat(0.0, verify) for verify in (9.0, 1.0, 2.0)]
    drafted = [repeat(draft, verify) for draft, verify in ((0.5, 3.0), (0.1, 4.0), (0.2, 8.0))]
    assert chapter.forward_times(plain, drafted) == pytest.approx((0.2, 2.0, 4.0))


def test_real_runs_in_several_processes_are_those_of_one_cold_and_warm(model, recorded, monkeypatch):
    monkeypatch.setattr(all_cores, "ALONE_SECONDS", 0.0)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    drafters = {"plain": None, "PLD": PromptLookup(), "cold": TokenRecycling(), "warm": TokenRecycling()}
    state = {"warm": "warm"}
    runs = recorded_runs.run_each_again(model, recorded, drafters, state)
    assert list(runs) == list(drafters)
    for name, drafter in drafters.items():
        expected = recorded_runs.run_again(model, recorded, drafter, state=state.get(name, "cold"))
        assert all(comparison.same_steps(a, b) for a, b in zip(runs[name], expected, strict=True))
        assert {run.state for run in runs[name]} == {state.get(name, "cold")}
    assert [len(run.steps) for run in runs["warm"]] != [len(run.steps) for run in runs["cold"]]


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


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("count", range(8))
def test_a_kill_between_two_files_of_recordings_loses_nothing(tmp_path, count):
    source, target = tmp_path / "source", tmp_path / "out" / "m.npz"
    source.mkdir()
    one, two = ({"weights": name, "dtype": "float32", "device": "cpu"} for name in ("a", "b"))

    def keep(number: int, weights: dict) -> None:
        about = {"tokens": [1, number], "finish_reason": "eos"} | weights
        (source / f"{number:032x}.json").write_text(json.dumps(about))

    def killed_at_rename(weights: dict) -> None:
        if (pid := os.fork()) == 0:
            left, rename = count % 4, os.replace

            def counted(*args, **options):
                nonlocal left
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
                rename(*args, **options)

            os.replace = counted
            recordings.pack_answers(source, target, [weights], {})
            os._exit(0)
        os.waitpid(pid, 0)

    keep(1, one)
    if count < 4:
        killed_at_rename(one)
        assert recordings.pack_answers(source, target, [one], {}) == 1
    else:
        recordings.pack_answers(source, target, [one], {})
    (source / f"{1:032x}.json").unlink()
    keep(2, one)
    killed_at_rename(one)
    assert recordings.pack_answers(source, target, [one], {}) == 2
    keep(3, two)
    killed_at_rename(two)
    assert recordings.pack_answers(source, target, [two], {}) == 1
    assert json.loads(target.with_suffix(".json").read_text())["models"] == [two]
    assert sorted(path.name for path in target.parent.iterdir()) == ["m.json", "m.npz"]


def test_committed_tokens_are_used_for_their_models_alone_to_which_later_ones_are_added(
    model, tokenizer, monkeypatch, decoded, tmp_path
):
    other = tiny(5, model.config.vocab_size)
    mine, others = [[recordings.identity(one)] for one in (model, other)]
    for one in (model, other):
        record_once(one, tokenizer, PROMPTS[:1], SAMPLED, 16)
    assert recordings.pack_answers(recordings.folder(), paths.RECORDINGS, mine, {}) == 1
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "later"))
    record_once(model, tokenizer, PROMPTS[1:], SAMPLED, 16)
    expected = recorded_runs.record_prompts(model, tokenizer, PROMPTS, SAMPLED, 16)
    count = recordings.pack_answers(recordings.folder(), paths.RECORDINGS, mine, {"command": "python -m a_test"})
    about = json.loads(paths.RECORDINGS.with_suffix(".json").read_text())
    assert about["outputs"] == count == len(expected) and about["command"] == "python -m a_test"
    assert about["tokens"] == sum(len(r.trace.tokens) for r in expected)
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "empty"))
    before = len(decoded)
    same_tokens(record_once(model, tokenizer, PROMPTS, SAMPLED, 16), expected)
    assert len(decoded) == before
    record_once(other, tokenizer, PROMPTS[:1], SAMPLED, 16)
    assert len(decoded) == before + 1
    assert recordings.pack_answers(recordings.folder(), paths.RECORDINGS, others, {}) == 1


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
