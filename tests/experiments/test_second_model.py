"""The copying methods on a second model, here the pocket model: what it is asked, its rows, and the numbers that claims read."""

import numpy as np
import pandas as pd
import pytest

from specdec_lib.drafters import PromptLookup, Rest
from specdec_lib.experiments.data import stores
from specdec_lib.experiments.data.prompt import Prompt
from specdec_lib.experiments.runs import checked_rows, recorded_runs, results, row_files, second_model
from specdec_lib.experiments.runs.checked_rows import CheckedRows
from specdec_lib.experiments.runs.papers_prompts import INPUT_GUIDED
from specdec_lib.experiments.statistics.intervals import Interval
from specdec_lib.models import gemma3
from specdec_lib.report.claims.rules import load_claims

TEXT = "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n" * 2


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(second_model, "LENGTH", 12)


def test_each_task_is_asked_the_first_turns_of_its_sets_in_turns(monkeypatch):
    texts = {"xatu/asset": ["a1", "a2", "a3"], "xatu/jfleg": ["j1"], "xatu/defacto": ["d1", "d2"]}

    def load(name, root, limit):
        return [Prompt(text, name, (text, "And then?")) for text in texts[name][:limit]]

    monkeypatch.setattr(second_model, "load_task", load)
    found = second_model.prompts("short text editing", 5)
    assert [one.text for one in found] == ["a1", "j1", "d1", "a2", "d2"] and {len(one.turns) for one in found} == {1}
    assert [one.task for one in found[:3]] == list(texts)
    assert second_model.prompts("short text editing", 2) == found[:2]


@pytest.fixture
def model(pocket):
    return pocket[0]


@pytest.fixture
def asked(model, tokenizer):
    words = {"code": [TEXT * 3], "chats": ["Once upon a time there was a cat. " * 20]}
    searched = {kind: stores.text_store(f"own-{kind}", tokenizer, 4000, texts) for kind, texts in words.items()}
    prompts = [
        Prompt("h", "humanevalpack/python", (TEXT,), chat=False),
        Prompt("x", "xatu/asset", ("Say: a cat. A cat",), chat=False),
    ]
    copying = second_model.drafters(1, [(0, 0), (1, 1)])
    return copying, searched, prompts, lambda some: second_model.made(model, tokenizer, copying, searched, some)


def test_rows_are_replays_of_each_method_and_rest_searches_code_for_code(asked, model, tokenizer):
    copying, searched, prompts, make = asked
    rows = make(prompts)
    assert len(rows) == 2 * (len(copying) + 1)
    for prompt, index in zip(prompts, searched.values(), strict=True):
        recording = recorded_runs.record_prompts(model, tokenizer, [prompt], None, 12)
        expected = {"REST": Rest(index), "PLD": PromptLookup(3, 10)}
        runs = {name: recorded_runs.replay_all(recording, drafter) for name, drafter in expected.items()}
        own = rows[(rows.prompt == prompt.id) & rows.method.isin(expected)]
        columns = [name for name in own if not name.endswith("_s")]
        assert row_files.differences(results.table(recording, runs)[columns], own[columns], columns) == {}


def test_rows_are_checked_with_the_model_and_read_without_it(asked, model, tokenizer, tmp_path, monkeypatch):
    copying, searched, prompts, make = asked
    digests = {kind: (index.store.digest, ["REST"]) for kind, index in searched.items()}
    monkeypatch.setenv(checked_rows.MAKE, "04/second_model")
    CheckedRows("04", {"second": model}, folder=tmp_path).rows("second_model", make, prompts, digests)
    monkeypatch.delenv(checked_rows.MAKE)
    book = CheckedRows("04", {"target": None}, own=["target"], folder=tmp_path)
    alone = second_model.read(book)
    assert book.outcomes[0].again == 0 and book.outcomes[0].unchecked == {"the second model is not at hand": ["all"]}
    gemma3.path().parent.mkdir(parents=True)
    gemma3.path().touch()
    monkeypatch.setattr(second_model, "load_model", lambda *given: (model, tokenizer))
    monkeypatch.setattr(second_model, "drafters", lambda layer, heads: copying)
    monkeypatch.setattr(second_model, "prompts", lambda task: prompts[:1] if task == "code editing" else [])
    monkeypatch.setattr(stores, "text_store", lambda name, *given: searched["code" if name == "stdlib" else "chats"])
    pd.testing.assert_frame_equal(alone, second_model.read(book))
    assert (book.outcomes[1].again, book.outcomes[1].unchecked) == (1, {})


def test_both_models_are_compared_on_the_same_first_turns_decoded_greedily():
    base = {"task": "argrewrite", "set": "argrewrite", "prompt": "1", "turn": 0, "temperature": 0.0}
    others = [
        {"prompt": "2"},
        {"turn": 1},
        {"temperature": 1.0},
        {"task": "xatu/asset", "set": "xatu"},
    ]
    published = pd.DataFrame([base, *(base | other for other in others)]).assign(tokens=range(5))
    second = pd.DataFrame([base, base]).drop(columns="set").assign(method=["PLD", "REST"])
    both = second_model.of_both(second, published)
    assert both["SmolLM2"].tokens.tolist() == [0] and both["Gemma 3 270M"].method.tolist() == ["PLD", "REST"]
    assert {task for rows in both.values() for task in rows.task} == {"long text editing"}


def counted(passes):
    """Rows of 100 tokens on two prompts of each task, by the passes of each method; every pass has one token."""
    about = {"turn": 0, "seed": 0, "temperature": 0.0, "looped": False, "tokens": 100}
    return pd.DataFrame([
        about | {"task": task, "prompt": str(i), "method": method, "passes": count, "widths": np.array([0, count])}
        for task in second_model.TASKS for i in range(2) for method, count in passes.items()
    ])  # fmt: skip


def test_numbers_are_ratios_of_rates_and_every_claim_finds_its_twin():
    names = [*second_model.drafters(0, [(0, 0)]), "REST"]
    passes = {name: 50 for name in names} | {"PLD": 80, "PLD+ (a)": 40, "PLD+ (h), 100": 20, "REST": 200}
    rows = counted(passes)
    looping = rows.assign(looped=(rows.prompt == "1") & (rows.task == "conversation"))
    found = second_model.numbers(looping, {1: 1.0, 2: 2.0})
    values = {name.removeprefix("second_"): getattr(value, "value", value) for name, value in found.items()}
    assert values["prompts"] == 10 and values["looped"] == pytest.approx(0.1)
    expected = {
        "h_over_pld_short_gpu": 1.6, "h_over_pld_all_gpu": 1.6, "h_over_a_turns": 0.8, "rest_over_pld_code": 0.4,
        "k_last_over_first_h": 2.5, "rest_over_plain_gpu": 0.5, "h_over_pld_all_unlooped_gpu": 1.6,
        "h_over_rest_summarisation_gpu": 4.0,
    }  # fmt: skip
    assert {name: values[name] for name in expected} == pytest.approx(expected)
    claims = [claim for claim in load_claims() if claim.second]
    twins = {key for claim in claims for c in claim.of_second_model().conditions for key in c.keys}
    assert len(claims) > 5 and twins <= {f"04/{name}" for name in found}


def test_the_five_tasks_have_the_names_of_the_other_rows():
    assert set(second_model.KEYS) == set(INPUT_GUIDED.values()) == set(second_model.TASKS)


@pytest.mark.parametrize("first, second, same", [
    ((1.1, 1.3), (1.2, 2.0), "yes"), ((0.8, 0.9), (0.5, 0.99), "yes"), ((1.1, 1.3), (0.5, 0.9), "no"),
    ((1.1, 1.3), (0.9, 1.1), "open"), ((0.9, 1.1), (0.9, 1.1), "open"), ((1.0, 1.3), (1.1, 1.3), "open"),
])  # fmt: skip
def test_two_models_are_on_the_same_side_with_their_whole_intervals(first, second, same):
    assert second_model.same_side(*(Interval(sum(ends) / 2, *ends) for ends in (first, second))) == same


def test_the_table_compares_speeds_over_plain_decoding_and_over_pld_with_and_without_loops():
    names = [*second_model.drafters(0, [(0, 0)]), "REST"]
    rows = counted({name: 50 for name in names} | {"PLD": 80, "REST": 200})
    looped = rows.assign(looped=rows.prompt == "1")
    looped.loc[looped.looped & (looped.method == "PLD"), "widths"] = pd.Series([np.array([0, 400])] * len(looped))
    table = second_model.compared({"a": rows, "b": looped}, {1: 1.0, 2: 2.0}).set_index("comparison")
    assert table.loc["PLD over plain", "a"].value == pytest.approx(1.25)
    assert table.loc["PLD over plain", "b"].value == pytest.approx(200 / 480)
    assert table.loc["PLD over plain", "b, no loops"].value == pytest.approx(1.25)
    assert table.loc["REST over PLD", "a"].value == pytest.approx(0.4)
    assert (table.loc["REST over plain", ["agree", "agree, no loops"]] == "yes").all()
