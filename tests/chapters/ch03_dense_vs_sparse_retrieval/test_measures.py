"""Rates, prices and lines of replayed outputs: against sums by hand, closed forms and the library's own metrics."""

import gzip
import json

import numpy as np
import pandas as pd
import pytest

from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval import measures
from specdec_lib.decoding.loop import Limits
from specdec_lib.decoding.replay import Trace, replay
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.drafters import PromptLookup
from specdec_lib.experiments import released_rules
from specdec_lib.experiments.metrics import pooled
from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.recorded_runs import Recording
from specdec_lib.models.fingerprint import fingerprint


def recordings(count=6, seed=0):
    rng = np.random.default_rng(seed)
    found = []
    for i in range(count):
        tokens = rng.integers(0, 3, 40).tolist()
        trace = Trace(rng.integers(0, 3, 10).tolist(), tokens, Sampling(), 8, Limits(len(tokens)), "length")
        found.append(Recording(Prompt(str(i), "code", ("?",), chat=False), 0, trace))
    return found


def sized(level, slope, prompts=5, sizes=(1e3, 1e4, 1e6)):
    """Counts whose rate is exactly level + slope * log10(size) for every prompt."""
    return pd.DataFrame(
        {
            "prompt": str(p),
            "stored": int(size),
            "passes": 100.0 * (p + 1),
            "tokens": 100.0 * (p + 1) * (level + slope * np.log10(size)),
        }
        for p in range(prompts)
        for size in sizes
    )


@pytest.mark.parametrize("price", [{1: 1.0, 300: 4.0}, {1: 1.0, 8: 1.5, 64: 2.0, 300: 9.0}])
def test_parts_of_widths_price_every_pass_as_interpolation_does(price):
    widths = np.random.default_rng(1).integers(1, 300, 200)
    known = sorted(price)
    exact = {w: float(np.interp(w, known, [price[k] for k in known])) for w in range(1, 301)}
    at_knots = {w: exact[w] for w in measures.WIDTHS}
    brute = sum(
        np.interp(min(w, 256), sorted(at_knots), [at_knots[k] for k in sorted(at_knots)]) for w in widths if w <= 256
    )
    parts = measures.width_parts([w for w in widths if w <= 256])
    assert parts @ measures.price_at(price) == pytest.approx(brute)
    assert parts.sum() == pytest.approx(sum(widths <= 256))
    assert measures.width_parts([512]) @ np.asarray(measures.WIDTHS, float) == pytest.approx(512)
    with pytest.raises(ValueError, match="0 tokens; expected 1 or more"):
        measures.width_parts([0])


def test_counts_of_replays_are_those_of_the_metrics():
    recorded = recordings()
    frame = measures.outputs(recorded, PromptLookup())
    of = pooled([replay(r.trace, PromptLookup()) for r in recorded])
    for rate, metric in (
        ("tokens_per_pass", "tokens_per_forward"),
        ("accepted_per_draft", "mean_accepted_drafts"),
        ("acceptance_rate", "acceptance_rate"),
    ):
        assert measures.rate(frame, rate).value == pytest.approx(of[metric])
    assert measures.rate(frame, "nodes_per_row_token").value == 1.0, "a chain is one row"
    assert measures.speed(frame, 2.0).value == pytest.approx(of["tokens_per_forward"] / 2)
    price = {1: 1.0, 256: 256.0}
    assert measures.speed(frame, price).value == pytest.approx(frame.tokens.sum() / (frame.passes + frame.nodes).sum())


def test_rows_of_a_tree_are_those_that_the_released_codes_hold():
    trees = [
        DraftTree.from_drafts(lists) for lists in ([], [[1, 2, 3]], [[1, 2], [1, 3], [4]], [[1], [1, 2, 3], [5, 2]])
    ]
    assert [measures.row_tokens(tree) for tree in trees] == [0, 3, 5, 5]
    for tree in trees:
        assert measures.row_tokens(tree) == sum(map(len, released_rules.rows(tree)))


def test_several_drafters_are_counted_as_each_alone(monkeypatch):
    recorded = recordings()
    drafters = {length: PromptLookup(num_tokens=length) for length in (2, 5)}
    monkeypatch.setattr("specdec_lib.experiments.all_cores.ALONE_SECONDS", 0.0)  # in processes of their own
    for length, frame in measures.outputs_each(recorded, drafters).items():
        alone = measures.outputs(recorded, PromptLookup(num_tokens=length))
        pd.testing.assert_frame_equal(frame.drop(columns="draft_seconds"), alone.drop(columns="draft_seconds"))


def test_the_mean_over_outputs_leaves_out_those_without_a_rate():
    frame = pd.DataFrame({"prompt": ["a", "b", "c"], "accepted": [1.0, 3.0, 0.0], "depth": [4.0, 4.0, 0.0]})
    mean = measures.mean_over_outputs(frame, "acceptance_rate")
    assert mean == (pytest.approx(0.5), 0.25, 0.75)
    assert np.isnan(measures.mean_over_outputs(frame[2:], "acceptance_rate").value)


def test_prompts_whose_outputs_have_no_pass_are_not_counted():
    frame = pd.DataFrame({"prompt": ["a", "a", "b", "c"], "passes": [3, 2, 0, 1]})
    assert measures.telling(frame) == 2


def test_a_price_of_drafting_is_added_to_every_token():
    frame = measures.outputs(recordings(), PromptLookup())
    plain = measures.speed(frame, 1.0).value
    assert 1 / measures.speed(frame, 1.0, drafting=0.25).value == pytest.approx(1 / plain + 0.25)


def test_turns_of_one_prompt_are_drawn_together():
    alone = pd.DataFrame({"prompt": ["a", "b", "c"], "tokens": [3.0, 9.0, 4.0], "passes": [2.0, 3.0, 4.0]})
    turns = pd.concat([alone.assign(tokens=alone.tokens / 2, passes=alone.passes / 2)] * 2)
    assert measures.rate(turns) == measures.rate(alone)


def test_a_ratio_of_a_frame_to_itself_is_one_for_certain():
    frame = measures.outputs(recordings(), PromptLookup())
    assert measures.ratio(frame, frame) == (1.0, 1.0, 1.0)
    doubled = frame.assign(tokens=2 * frame.tokens)
    assert measures.ratio(doubled, frame) == pytest.approx((2.0, 2.0, 2.0))
    assert measures.geometric_mean([(doubled, frame), (frame, frame)]) == pytest.approx((2**0.5,) * 3)


def test_a_line_is_found_again_at_any_size():
    frame = sized(0.5, 0.25)
    assert measures.at_size(frame, 1e9) == pytest.approx((2.75,) * 3)
    assert measures.at_size(frame, 1e9, degree=2) == pytest.approx((2.75,) * 3)
    assert measures.at_size(frame, 1e9, then=lambda rate: rate / 1.1).value == pytest.approx(2.5)
    assert [step.value for step in measures.steps(frame)] == pytest.approx([1.5 / 1.25, 2.0 / 1.5])
    assert measures.whole_growth(frame).value == pytest.approx(2.0 / 1.25)
    with pytest.raises(ValueError, match="degree 2 through 2 sizes"):
        measures.at_size(sized(1, 1, sizes=(1e3, 1e4)), 1e9, degree=2)


def test_the_lead_ends_where_the_lines_cross():
    ours, theirs = sized(1.0, 0.1), sized(0.4, 0.25)
    assert measures.lead_ends(ours, theirs) == pytest.approx((4.0,) * 3)
    assert measures.lead_at(ours, theirs, 1e4) == pytest.approx((1.0,) * 3)
    assert measures.lead_at(ours, theirs, 1e8).value == pytest.approx(1.8 / 2.4)


def test_the_fit_follows_the_prompts_that_a_sample_draws():
    rng = np.random.default_rng(3)
    frame = sized(0.5, 0.25, prompts=40)
    frame["tokens"] *= rng.normal(1, 0.1, 40)[frame.prompt.astype(int)]
    interval = measures.at_size(frame, 1e9)
    sizes = np.log10(np.unique(frame.stored))
    rates = frame.groupby("stored")[["tokens", "passes"]].sum()
    slope, level = np.polyfit(sizes, rates.tokens / rates.passes, 1)
    assert interval.value == pytest.approx(level + 9 * slope) and interval.low < interval.value < interval.high


def test_committed_rows_come_with_their_origin(tmp_path):
    assert measures.committed("nothing", tmp_path) is None
    (tmp_path / "some.csv.gz").write_bytes(gzip.compress(b"prompt,tokens\na,1\n"))
    (tmp_path / "some.json").write_text('{"commit": "abc"}')
    frame, about = measures.committed("some", tmp_path)
    assert frame.tokens.tolist() == [1] and about == {"commit": "abc"}


def test_rows_of_one_model_are_not_those_of_another(tmp_path, llama):
    """A page that another target runs must not show the shipped rows as that target's."""
    (tmp_path / "some.csv.gz").write_bytes(gzip.compress(b"prompt,tokens\na,1\n"))
    (tmp_path / "some.json").write_text('{"target": "of another"}')
    assert measures.committed("some", tmp_path, target=llama) is None
    (tmp_path / "some.json").write_text(json.dumps({"target": fingerprint(llama)}))
    assert measures.committed("some", tmp_path, target=llama) is not None
    assert measures.committed("some", tmp_path, target=llama, draft=llama) is None
