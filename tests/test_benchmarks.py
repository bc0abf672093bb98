"""The sums of the measurements, on times that are given."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import library as benchmarks
from benchmarks import seconds
from specdec_lib import DraftTree, Generation
from specdec_lib.decoding.results import Step
from specdec_lib.models.draft_vocabulary import DraftVocabulary
from specdec_lib.report import numbers
from specdec_lib.report.claims import pictures
from tests.families import TEXT, VOCABULARY, build, cut, prompt


def test_the_overhead_is_what_steps_take_beyond_their_calls_of_the_model(monkeypatch):
    """One token a step: a run of n tokens more than another has n steps more, whatever came from the prefill."""
    run = Generation([5] * 9, [Step(DraftTree.chain([]), (), (5,), 0.0, 0.002, 0.0)] * 8, "length", 128, 1.0)
    models = []

    def generated(model, *args, **kwargs):
        models.append(model)
        model.calls = [1.0] + [0.0015] * 8  # the prefill's call comes first
        return run

    monkeypatch.setattr(benchmarks, "generate", generated)
    # 30 s of what comes once, then 4 ms a token, 2.5 of them in the model.
    lengths = iter([32, 128] * 2)

    def timed(call):
        count = next(lengths)
        models[-1].calls = [0.0025] * count
        return 30 + 0.004 * count, None

    monkeypatch.setattr(benchmarks, "_seconds", timed)
    (row,) = benchmarks.loop(True)
    assert row["value"] == pytest.approx(2 - 1.5)
    assert row["peer_value"] == pytest.approx(4 - 2.5)


def test_one_trees_own_work_is_measured_on_drafts_that_overlap():
    """Three drafts of 64 tokens share some: fewer nodes than tokens are merged, and more than one draft has."""
    rows = benchmarks.tree(True)
    assert [row["work"].split(": ")[1] for row in rows] == ["merge, score, choose", "judge and learn"]
    assert all(row["value"] > 0 and row["unit"] == "µs" and 64 < row["merged_nodes"] < 192 for row in rows)


@pytest.fixture
def counted(monkeypatch):
    """Sections whose only row is how often they were measured."""
    calls = {"loop": 0, "dense": 0}

    def measuring(name):
        def rows(quick):
            calls[name] += 1
            return [benchmarks.row(name, "ms", [calls[name]] * 2, [2, 4], "a peer")]

        return rows

    monkeypatch.setattr(benchmarks, "SECTIONS", {name: measuring(name) for name in calls})
    return calls


def test_only_measures_one_section_again_and_leaves_the_others_as_they_are(counted, tmp_path):
    out = tmp_path / "bench.json"
    benchmarks.main(["--out", str(out)])
    before = json.loads(out.read_text())["sections"]
    benchmarks.main(["--out", str(out), "--only", "dense"])
    after = json.loads(out.read_text())["sections"]
    assert after["loop"] == before["loop"] and counted == {"loop": 1, "dense": 2} and list(after) == ["loop", "dense"]
    assert after["dense"]["provenance"]["command"].endswith("--only dense")
    page = out.with_suffix(".md").read_text()
    assert "| loop | 1 ms | 1 ms | 3 ms: a peer | 2.7 (2.1–3.6) |" in page
    assert {"commit", "date", "load", "machine", "seconds", "versions"} <= set(after["dense"]["provenance"])


@pytest.mark.parametrize("words", [["--only", "wide"], ["--quick"]])
def test_what_would_spoil_the_file_is_refused_before_anything_is_measured(counted, words, capsys):
    with pytest.raises(SystemExit, match="2"):
        benchmarks.main(words)
    assert counted == {"loop": 0, "dense": 0}
    assert ("wide" if "wide" in words else "--out") in capsys.readouterr().err


def test_transformers_assists_with_a_draft_of_a_cut_vocabulary():
    target, ids = build("llama"), [token for token in range(TEXT) if token % 3]
    draft = cut(target, ids)
    draft.draft_vocabulary = DraftVocabulary(ids)
    wrapped, text = seconds.with_ids_of(draft, VOCABULARY), torch.tensor([prompt(3, 20)])
    with torch.inference_mode():
        logits = wrapped(input_ids=text).logits[0]
        own = draft(input_ids=torch.tensor([draft.draft_vocabulary.to_draft(text[0].tolist())])).logits[0]
    assert torch.equal(logits[:, ids], own[:, : len(ids)]) and logits.isinf().sum() == len(text[0]) * (
        VOCABULARY - len(ids)
    )
    plain, assisted = (
        seconds.of_transformers(target, 12, **options)(text[0].tolist(), lambda: None)
        for options in ({}, {"assistant_model": wrapped})
    )
    assert assisted == plain and len(plain) == 12


def test_speeds_are_ratios_within_a_round_and_what_did_not_run_is_not_available(monkeypatch, tmp_path):
    """A way takes as many seconds a token as its number says; the first token costs ten."""
    now = [0.0]
    monkeypatch.setattr(seconds, "clock", lambda: now[0])

    def way(price):
        def run(ids, note):
            for cost in (10, price, price):
                now[0] += cost
                note()
            return [1, 2, 3]

        return run

    prices = {"plain": 2, "pld": 1, "transformers": 4, "transformers_lookup": 3}
    asked = {kind: [1] for kind in seconds.KINDS}
    found = seconds.speeds({name: way(price) for name, price in prices.items()}, asked, 3)
    assert found["summary_plain_tokens_per_s"].value == 0.5 and found["chat_pld_first_token_s"].value == 10
    assert found["rename_pld_over_plain"].value == 2 and found["chat_plain_over_transformers"].value == 2
    assert found["chat_pld_over_transformers_lookup"].value == 3 and found["chat_pld_equal"]
    assert found["chat_llama_over_plain"] is None
    monkeypatch.chdir(tmp_path)
    figure = pictures.tokens_per_second(numbers.read(numbers.save("seconds", {}, found)))
    assert [text.get_text() for text in figure.legends[0].texts] == [
        "transformers", "transformers, prompt lookup", "plain", "PLD",
    ]  # fmt: skip
