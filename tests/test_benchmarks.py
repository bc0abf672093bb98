"""The sums of the measurements, on times that are given."""

import json
from functools import partial

import numpy as np
import pytest
import torch
import typer
from gguf import quants

from benchmarks import big_file, replayed_batches, seconds, serving
from benchmarks import library as benchmarks
from specdec_lib import DraftTree, Generation
from specdec_lib.decoding.results import Step
from specdec_lib.experiments.statistics.intervals import Interval
from specdec_lib.models.draft_vocabulary import DraftVocabulary
from specdec_lib.report import numbers
from specdec_lib.report import serving as shown
from specdec_lib.report.claims import pictures
from specdec_lib.vllm import BatchCosts
from tests.families import TEXT, VOCABULARY, build, cut, prompt


def test_the_overhead_is_what_steps_take_beyond_their_calls_of_the_model(monkeypatch):
    """One token per step: a run of n tokens more than another has n steps more, whatever came from the prefill."""
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


@pytest.fixture
def counted(monkeypatch):
    """Sections whose only row is how often they were measured."""
    calls = {"loop": 0, "dense": 0}

    def measured(name, quick):
        calls[name] += 1
        return [benchmarks.row(name, "ms", [calls[name]] * 2, [2, 4], "a peer")]

    monkeypatch.setattr(benchmarks, "SECTIONS", {name: partial(measured, name) for name in calls})
    return calls


def test_only_measures_one_section_again_and_leaves_the_others_as_they_are(counted, monkeypatch, tmp_path):
    out = tmp_path / "bench.json"
    benchmarks.main(out)
    before = json.loads(out.read_text())["sections"]
    monkeypatch.setattr("sys.argv", ["", "--out", str(out), "--only", "dense"])
    with pytest.raises(SystemExit, match="0"):
        typer.run(benchmarks.main)
    after = json.loads(out.read_text())["sections"]
    assert after["loop"] == before["loop"] and counted == {"loop": 1, "dense": 2} and list(after) == ["loop", "dense"]
    assert after["dense"]["provenance"]["command"].endswith("--only dense")
    page = out.with_suffix(".md").read_text()
    assert "| loop | 1 ms | 1 ms | 3 ms: a peer | 2.7 (2.1–3.6) |" in page
    assert {"commit", "date", "load", "machine", "seconds", "versions"} <= set(after["dense"]["provenance"])


@pytest.mark.parametrize(
    ("words", "told"), [(["--only", "wide"], "expected one of loop, dense"), (["--quick"], "name another file")]
)
def test_what_would_spoil_the_file_is_refused_before_anything_is_measured(counted, words, told, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["", *words])
    with pytest.raises(SystemExit, match="2"):
        typer.run(benchmarks.main)
    assert counted == {"loop": 0, "dense": 0}
    assert told in capsys.readouterr().err


def test_transformers_assists_with_a_draft_of_a_cut_vocabulary():
    target, ids = build("llama"), [token for token in range(TEXT) if token % 3]
    draft = cut(target, ids)
    draft.draft_vocabulary = DraftVocabulary(ids)
    wrapped, text = seconds.with_ids_of(draft, VOCABULARY), torch.tensor([prompt(3, 20)])
    with torch.inference_mode():
        logits = wrapped(input_ids=text).logits[0]
        own = draft(input_ids=torch.tensor([draft.draft_vocabulary.to_draft(text[0].tolist())])).logits[0]
    assert torch.equal(logits[:, ids], own[:, : len(ids)])
    assert logits.isinf().sum() == len(text[0]) * (VOCABULARY - len(ids))
    ways = (seconds.of_transformers(target, 12, **options) for options in ({}, {"assistant_model": wrapped}))
    plain, assisted = (way(text[0].tolist(), lambda: None) for way in ways)
    assert assisted == plain and len(plain) == 12


def test_speeds_are_ratios_within_a_round_and_what_did_not_run_is_not_available(monkeypatch, tmp_path):
    """A way takes as many seconds a token as its number says; the first token costs ten."""
    now = [0.0]
    monkeypatch.setattr(seconds, "clock", lambda: now[0])

    def way(cost):
        def run(ids, note):
            for spent in (10, cost, cost):
                now[0] += spent
                note()
            return [1, 2, 3]

        return run

    costs = {"plain": 2, "pld": 1, "transformers": 4, "transformers_lookup": 3}
    asked = {kind: [1] for kind in seconds.KINDS}
    rate, first, tokens = seconds.speeds({name: way(cost) for name, cost in costs.items()}, asked, 3)
    found = seconds.numbers_of_speeds(rate, first)
    assert found["summary_plain_tokens_per_s"].value == 0.5 and found["summary_plain_first_token_s"].value == 10
    assert found["rename_pld_over_plain"].value == 2 and found["summary_plain_over_transformers"].value == 2
    assert found["summary_pld_over_transformers_lookup"].value == 3 and tokens["chat", "pld"] == [1, 2, 3]
    assert found["chat_llama_over_plain"] is None
    monkeypatch.chdir(tmp_path)
    figure = pictures.tokens_per_second(numbers.read(numbers.save("seconds", {}, found)))
    told = [text.get_text() for text in figure.legends[0].texts]
    assert told == ["transformers", "transformers, prompt lookup", "plain", "PLD"]


@pytest.mark.parametrize("kind", [big_file.Q4_K, big_file.Q6_K], ids=lambda kind: kind.name)
def test_weights_of_the_big_file_are_spread_around_0(kind):
    weights = quants.dequantize(big_file.blocks(kind, 16, 1024, np.random.default_rng(1)), kind)
    assert abs(weights.mean()) < 1e-3 and weights.std() == pytest.approx(big_file.SPREAD, rel=0.05)


def test_numbers_in_a_server_are_ratios_within_rounds(tmp_path, monkeypatch):
    """The figure reads them, and has no line for what was left out."""
    monkeypatch.chdir(tmp_path)
    speeds = {
        "plain": [10.0, 20.0, 10.0],
        "ngram": [12.0, 22.0, 9.0],
        "ours": [13.0, 26.0, 13.0],
        "fixed2": [6.5, 13.0, 6.5],
    }
    measured = {(way, size, "tokens_per_s"): each for way, each in speeds.items() for size in serving.SIZES}
    measured["ours", 4, "drafted"] = [3, 3, 3]
    for size in serving.SIZES:  # milliseconds: the answers to code are twice as fast
        measured["plain", size, "code editing"], measured["ours", size, "code editing"] = [90, 80, 70], [45, 40, 35]
    found = serving.numbers_of(measured)
    assert found["ours_over_plain_b8"][:3] == (1.3, 1.3, 1.3)
    assert found["ours_over_fixed2_b4"][:3] == (2.0, 2.0, 2.0)
    assert found["ngram_over_plain_b1"].value == 1.1 and found["ngram_over_plain_b1"].low == 0.9
    assert not any("drafted" in key for key in found)
    table = numbers.read(numbers.save("serving", {}, found | serving.marks(found)))
    figure = shown.figure(table)
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == [
        "vLLM's ngram", "SuffixDecoding, sized by cost",
    ]  # fmt: skip
    rows = shown.by_batch(table)
    assert rows.Requests.tolist() == list(serving.SIZES)
    tasks = shown.by_task(table)
    assert tasks.Task.tolist() == ["code editing"] and all(tasks[str(n)][0][:3] == (2, 2, 2) for n in serving.SIZES)
    lengths = shown.by_length(table, {"ours_over_fixed2_b4": table["ours_over_plain_b8"]})
    assert lengths["Ours over it, timed"][1][:3] == (2, 2, 2)
    assert lengths["Ours over it, replayed"][1][:3] == (1.3, 1.3, 1.3)
    rivals = shown.by_rival(table, {"ours_over_ngram_b2": table["ours_over_plain_b8"]})
    assert rivals["over ngram, replayed"][1][:3] == rivals["over plain, timed"][3][:3] == (1.3, 1.3, 1.3)
    assert rows["ours over plain"].tolist()[3][:3] == (1.3, 1.3, 1.3) and rows["TPOT (ms), ours"].isna().all()


def replayed(asked, said, cost):
    """Batches of four-token answers, of which each token of a pass takes its share of a second."""
    made = replayed_batches.Replay(asked, said, BatchCosts({1: {0: 1.0, 8: 1.0 + 8 * cost}}), 8)
    made.config.scheduler_config.max_num_seqs = 4
    return made


def test_a_replayed_batch_takes_what_its_passes_cost(monkeypatch):
    monkeypatch.setattr(replayed_batches, "DRAFTING", 0.0)
    asked, said = [[1, 2, 3, 4, 5, 6]] * 2, [[7, 8, 9, 7, 8, 9, 7, 8, 9, 7, 8, 9]] * 2
    free = replayed(asked, said, 0.0)
    assert free.speed([0, 1], 1, None) == 1.0  # a token a pass, a second each
    # The first request says 4 tokens and the second 4 + 7 % 5 = 6. All of a draft is right: passes over 3 + 1 tokens.
    right = free.speed([0, 1], 1, lambda sampled, counts, rows: [said[0][rows_said(rows, counts) :][:3]])
    assert right == 10 / (2 + 3)
    dear = replayed(asked, said, 0.5)
    wrong = dear.speed([0, 1], 1, lambda *_: [[0, 0]])
    assert wrong == 10 / (2 + 8 * 2.0)  # the first pass of a request has no draft


def rows_said(rows, counts):
    """Tokens that the only request has said."""
    return int(counts[0]) - 6


def test_a_replayed_ngram_drafts_what_followed_the_first_occurrence():
    row = np.array([[1, 2, 3, 4, 50, 1, 2, 3, 4, 60, 1, 2, 3, 4, 0, 0]])
    assert replayed_batches.ngram([[4]], np.array([14]), row) == [[50, 1, 2, 3, 4]]
    assert replayed_batches.ngram([[4]], np.array([5]), row) == [[]]


def test_nothing_measured_is_an_empty_figure_and_table():
    assert shown.figure({}).axes[0].get_legend() is None and shown.by_batch({}).empty
    assert shown.by_task({}).empty


def test_marks_of_a_server_rest_on_the_lower_ends():
    def interval(low):
        return Interval(low + 0.1, low, low + 0.2)

    found = {f"ours_over_plain_b{size}": interval(1.25 if size == 1 else 0.98) for size in serving.SIZES}
    found |= {f"ours_over_fixed{n}_b4": interval(1.01) for n in range(1, serving.MOST + 1)}
    found |= {f"ours_over_ngram_b{size}": interval(1.01) for size in serving.SIZES}
    assert serving.marks(found) == {
        "mark_one_request": True, "mark_every_batch": True, "mark_fixed_lengths": True, "mark_ngram": True, "pays_up_to": 1,
    }  # fmt: skip
    worse = found | {
        "ours_over_plain_b1": interval(1.24), "ours_over_plain_b32": interval(0.97), "ours_over_fixed8_b4": interval(1.0),
    }  # fmt: skip
    assert [*serving.marks(worse).values()] == [False, False, False, True, 1]
    del worse["ours_over_ngram_b8"]
    worse["ours_over_plain_b1"] = Interval(2.0, float("nan"), float("nan"))
    assert [*serving.marks(worse).values()] == [None, None, False, None, 0]


def test_runs_of_a_server_are_kept_and_only_whole_rounds_count(tmp_path):
    path = tmp_path / "serving.part.json"
    parts = serving.Parts(path, {"tokens": 40, "sizes": (1, 2)})
    for round, way in ((0, "plain"), (0, "ours"), (1, "plain")):
        parts.add((round, 1, way), {"tokens_per_s": 10.0 + round})
    again = serving.Parts(path, {"tokens": 40, "sizes": (1, 2)})
    assert (1, 1, "plain") in again and (1, 1, "ours") not in again
    assert again.measured(1) == {("plain", 1, "tokens_per_s"): [10.0], ("ours", 1, "tokens_per_s"): [10.0]}
    with pytest.raises(ValueError, match="is of a run with"):
        serving.Parts(path, {"tokens": 20})
