"""Published prompts and their rows: sets as they are asked, every method, counts that agree with decoding, what is kept."""

import os

import published_prompts
import published_rows
import pytest

from specdec_lib import generate, load_model
from specdec_lib.drafters import PromptLookup
from specdec_lib.experiments.data.prompt import Prompt, render
from specdec_lib.experiments.runs import papers_prompts, row_files
from specdec_lib.experiments.runs.recordings import record_once
from specdec_lib.models.fingerprint import fingerprint
from tests.experiments.published_formats import HUMANEVAL, jsonl, write

#: One that reads the text, states, a datastore, and a draft model, which is verified by replay only in greedy decoding.
METHODS = ["PLD", "Medusa", "REST", "SpecDec"]
#: Read here, because the rows of this module are counted in a folder of their own.
DATASETS = os.environ.get("SPECDEC_DATASETS")
COPY = 'def shift(x):\n    """Add one."""\n    return x + 1\n\n\ndef shift_two(x):\n    """Add one'


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    """Two problems, recorded and counted with some methods; the options of the command."""
    folder = tmp_path_factory.mktemp("published")
    problems = [HUMANEVAL | {"task_id": f"HumanEval/{k}", "prompt": COPY + end} for k, end in enumerate((" ", " to"))]
    write(folder / "humaneval/HumanEval.jsonl", jsonl(*problems))
    options = {"target": "pocket", "device": "cpu", "sets": ["humaneval"], "store_tokens": 20000, "dense_tokens": 2000}
    options |= {"kept": folder / "kept", "out": folder / "out"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECDEC_DATASETS", str(folder))
        patch.setenv("SPECDEC_CACHE", str(folder / "cache"))
        patch.setattr(published_rows, "LENGTH", 24)
        patch.setattr(published_rows, "REPLAYED", METHODS)
        model, tokenizer = load_model("pocket", "cpu")
        asked = published_prompts.load("humaneval", tokenizer)
        for prompt, samplings in asked:
            for sampling in samplings:
                record_once(model, tokenizer, [prompt], sampling, 24)
        published_rows.main(**options)
        yield folder, options, model, [render(prompt, tokenizer) for prompt, _ in asked]


def test_every_method_that_can_be_replayed_has_a_row_of_each_output(counted):
    folder, _, model, _ = counted
    rows, about = row_files.read("papers_prompts", folder / "out")
    assert about["models"] == {"target": fingerprint(model)}
    greedy, sampled = rows[rows.temperature == 0], rows[rows.temperature > 0]
    expected = {*METHODS, "PLD, 70", "PLD, partial drafts, 10", "PLD, partial drafts, 70"}
    assert set(greedy.method) == expected and len(greedy) == 2 * 7
    assert set(sampled.method) == expected - {"SpecDec"} and len(sampled) == 2 * 3 * 6
    assert rows.same.all() and (rows.passes <= rows.tokens).all()
    assert about["notes"]["code tokens"] <= 20000 and set(rows.set) == {"humaneval"}
    assert not {"text", "ids"} & set(rows.columns)


def test_a_row_counts_what_decoding_does(counted):
    folder, _, model, prompts = counted
    rows, _ = row_files.read("papers_prompts", folder / "out")
    rows = rows[(rows.temperature == 0) & (rows.method == "PLD")].set_index("prompt")
    for place, ids in enumerate(prompts):
        run = generate(model, ids, PromptLookup(3, 10), max_new_tokens=24)
        row = rows.loc[f"HumanEval/{place}"]
        assert (row.tokens, row.passes) == (len(run.tokens) - 1, len(run.steps))
        assert row.accepted == sum(step.accepted for step in run.steps)
        assert row.prompt_tokens == len(ids) and row.widths.sum() == pytest.approx(row.passes, abs=0.05)


def test_a_second_run_adds_the_named_method_alone_and_loses_nothing(counted, monkeypatch):
    folder, options, model, _ = counted
    published_rows.main(**options, method=["Lookahead"], only="greedy", prompts=1)
    before, _ = row_files.read("papers_prompts", folder / "out")
    assert list(before[before.method == "Lookahead"].temperature) == [0.0]
    made, rows_of = [], published_rows.rows_of
    assert "Token Recycling" not in set(before.method) | set(published_rows.REPLAYED)
    monkeypatch.setattr(published_rows, "rows_of", lambda *a: made.append(set(a[2])) or rows_of(*a))
    published_rows.main(**options, method=["Token Recycling", "PLD"])
    after, _ = row_files.read("papers_prompts", folder / "out")
    assert made == [{"Token Recycling"}] * 4
    new = after[after.method == "Token Recycling"]
    assert len(new) == 8 and new.same.all() and len(after) == len(before) + 8


def test_prompts_without_a_recorded_answer_are_counted_and_nothing_is_made_up(counted, capsys, monkeypatch, tmp_path):
    _, options, _, _ = counted
    monkeypatch.setattr(published_rows.recordings, "lookup", lambda key: None)
    with pytest.raises(SystemExit, match="no answer is recorded"):
        published_rows.main(**options | {"kept": tmp_path / "kept", "out": tmp_path / "out"})
    assert "0 answers are recorded, 8 are not" in capsys.readouterr().out
    assert not list(tmp_path.rglob("*.csv.gz"))


def test_humaneval_is_continued_for_rest_asked_in_a_chat_for_specdec_pp_and_an_unknown_set_refused(tmp_path, tokenizer):
    count = published_prompts.SETS["humaneval"][0].sampled[0.8, 0.95] + 1
    rows = [HUMANEVAL | {"task_id": f"HumanEval/{k}"} for k in range(count)]
    write(tmp_path / "humaneval/HumanEval.jsonl", jsonl(*rows))
    plain, chat = (published_prompts.load(name, tokenizer, tmp_path) for name in ("humaneval", "humaneval-chat"))
    assert [p.text for p, _ in plain] == [HUMANEVAL["prompt"]] * count and not any(p.chat for p, _ in plain)
    assert all(p.chat and HUMANEVAL["prompt"] in p.text and "### Response:" in p.text for p, _ in chat)
    # The first are also sampled, as the paper samples.
    *first, last = (samplings for _, samplings in plain)
    assert [s.greedy for s in last] == [True]
    for samplings in first:
        assert samplings[0].greedy
        assert [(s.temperature, s.top_p, s.seed) for s in samplings[1:]] == [(0.8, 0.95, seed) for seed in range(3)]
    with pytest.raises(ValueError, match="'mt-bench'; expected one of spec-bench, humaneval"):
        published_prompts.load("mt-bench", tokenizer)


def test_prompts_are_left_out_above_the_longest_length_alone(monkeypatch, tokenizer):
    prompts = [Prompt(f"{count}", "words", ("a " * count,), chat=False) for count in (3, 40)]
    longest = len(tokenizer(prompts[1].text)["input_ids"])
    for most, kept in ((longest, prompts), (longest - 1, prompts[:1])):
        monkeypatch.setattr(published_prompts, "LONGEST", most)
        assert published_prompts.short_enough(prompts, tokenizer) == kept


@pytest.mark.realdata
@pytest.mark.parametrize("name", published_prompts.SETS)
def test_a_real_set_has_distinct_prompts_and_no_more_than_its_limits(name, tokenizer, monkeypatch):
    monkeypatch.setattr(published_prompts, "LONGEST", 10**6)
    prompts = [prompt for prompt, _ in published_prompts.load(name, tokenizer, DATASETS)]
    parts = published_prompts.SETS[name]
    assert len({(p.task, p.id) for p in prompts}) == len(prompts)
    assert {p.task for p in prompts} == {part.task for part in parts}
    for part in parts:
        count = sum(p.task == part.task for p in prompts)
        assert count == part.limit or part.limit is None


def test_answers_have_the_names_of_tasks_and_humaneval_asked_as_a_chat_is_left_out():
    rows = papers_prompts.on_published_prompts()
    assert set(rows.task) == set(papers_prompts.TASKS.values())
    assert "humaneval" in set(rows["set"]) and "humaneval-chat" not in set(rows["set"])
    editing = rows.task.isin(papers_prompts.INPUT_GUIDED.values())
    assert rows[editing].index.equals(papers_prompts.on_pld_plus_prompts().index)
