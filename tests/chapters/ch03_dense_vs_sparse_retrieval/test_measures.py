"""Rates, prices and curves of replayed outputs: against sums by hand, closed forms and the library's own metrics."""

import gzip
import itertools
import json

import numpy as np
import pandas as pd
import pytest

from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval import measures
from specdec_lib.decoding.replay import replay
from specdec_lib.drafters import PromptLookup
from specdec_lib.experiments.metrics import pooled
from specdec_lib.experiments.results import ACCEPTANCE, PER_PASS, priced
from specdec_lib.models.fingerprint import fingerprint
from tests.experiments.made import made_up


def recordings():
    texts = np.random.default_rng(0).integers(0, 3, (6, 50)).tolist()
    return [made_up(text[:10], text[10:], str(i), "code") for i, text in enumerate(texts)]


def outputs(length=10):
    return measures.outputs(recordings(), {"PLD": PromptLookup(num_tokens=length)})


def sized(level, slope, prompts=5, sizes=(1e3, 1e4, 1e6)):
    """Counts whose rate is exactly level + slope * log10(size) for every prompt."""
    rows = [(p, size, 100.0 * (p + 1)) for p in range(prompts) for size in sizes]
    frame = pd.DataFrame({"prompt": str(p), "stored": int(size), "passes": passes} for p, size, passes in rows)
    return frame.assign(tokens=frame.passes * (level + slope * np.log10(frame.stored)))


@pytest.mark.parametrize("price", [{1: 1.0, 300: 4.0}, {1: 1.0, 8: 1.5, 64: 2.0, 300: 9.0}])
def test_committed_widths_price_every_pass_as_interpolation_does(price, tmp_path):
    """What is written counts passes at a few widths; every price that is linear between them is exact."""
    widths = np.random.default_rng(1).integers(1, 257, 200)
    curve = measures.curve_at(price)
    brute = sum(np.interp(width, list(curve), list(curve.values())) for width in widths)
    rows = pd.DataFrame({"prompt": ["a"], "tokens": [7], "drafted": [3], "widths": [np.bincount(widths)]})
    measures.write("some", rows.assign(draft_s=0.5), {"what": "a test"}, tmp_path)
    (back, about) = measures.committed("some", tmp_path)
    assert about["what"] == "a test" and "draft_s" not in back and back.tokens.tolist() == [7]
    for frame in (rows, back):
        assert priced(frame, curve).price[0] == pytest.approx(brute, abs=0.1)
    assert back.widths[0].sum() == pytest.approx(len(widths), abs=0.05)
    assert measures.speed(rows, price).value == pytest.approx(7 / brute)


def test_counts_of_replays_are_those_of_the_metrics():
    of, frame = pooled([replay(r.trace, PromptLookup()) for r in recordings()]), outputs()
    assert measures.rate(frame, PER_PASS).value == pytest.approx(of["tokens_per_forward"])
    assert measures.rate(frame, measures.LENGTH).value == pytest.approx(of["mean_accepted_drafts"])
    assert measures.rate(frame, ACCEPTANCE).value == pytest.approx(of["acceptance_rate"])
    expected = frame.tokens.sum() / (frame.passes + frame.drafted).sum()
    assert measures.speed(frame, {1: 1.0, 256: 256.0}).value == pytest.approx(expected)


def test_several_drafters_are_counted_as_each_alone(monkeypatch):
    drafters = {length: PromptLookup(num_tokens=length) for length in (2, 5)}
    monkeypatch.setattr("specdec_lib.experiments.all_cores.ALONE_SECONDS", 0.0)  # in processes of their own
    rows = measures.outputs(recordings(), drafters)
    for length in drafters:
        found, alone = rows[rows.method == length], outputs(length)
        assert found.prompt.tolist() == alone.prompt.tolist() == [f"code {i}" for i in range(6)]
        counted = ["tokens", "passes", "accepted", "depth"]
        assert found[counted].values.tolist() == alone[counted].values.tolist()


def test_a_ratio_of_a_frame_to_itself_is_one_for_certain():
    frame = outputs()
    assert measures.ratio(frame, frame) == (1.0, 1.0, 1.0)
    doubled = frame.assign(tokens=2 * frame.tokens)
    assert measures.ratio(doubled, frame) == pytest.approx((2.0, 2.0, 2.0))
    assert measures.geometric_mean([(doubled, frame), (frame, frame)]) == pytest.approx((2**0.5,) * 3)


def test_settings_pair_the_same_store_size_way_and_group():
    axes = {"store": ("a", "b"), "stored": (1, 2), "way": ("x", "y"), "group": ("code",), "method": ("ours", "theirs")}
    rows = [dict(zip(axes, each, strict=True)) for each in itertools.product(*axes.values())]
    pairs = measures.settings(pd.DataFrame(rows), "ours", "theirs")
    assert len(pairs) == 8
    for ours, theirs in pairs:
        assert (ours.method.item(), theirs.method.item()) == ("ours", "theirs")
        assert ours.drop(columns="method").values.tolist() == theirs.drop(columns="method").values.tolist()
    assert len(measures.settings(pd.DataFrame(rows), "ours", "theirs", ["store"])) == 2


def test_a_line_is_found_again_at_any_size():
    frame = sized(0.5, 0.25)
    assert measures.at_size(frame, 1e9) == pytest.approx((2.75,) * 3)
    assert measures.at_size(frame, 1e9, degree=2) == pytest.approx((2.75,) * 3)
    assert measures.at_size(frame, 1e9, then=lambda rate: rate / 1.1).value == pytest.approx(2.5)
    assert [step.value for step in measures.steps(frame)] == pytest.approx([1.5 / 1.25, 2.0 / 1.5])
    with pytest.raises(ValueError, match="degree 2 through 2 sizes"):
        measures.at_size(sized(1, 1, sizes=(1e3, 1e4)), 1e9, degree=2)


def test_the_fit_follows_the_prompts_that_a_sample_draws():
    rng = np.random.default_rng(3)
    frame = sized(0.5, 0.25, prompts=40)
    frame["tokens"] *= rng.normal(1, 0.1, 40)[frame.prompt.astype(int)]
    interval = measures.at_size(frame, 1e9)
    sizes = np.log10(np.unique(frame.stored))
    rates = frame.groupby("stored")[["tokens", "passes"]].sum()
    slope, level = np.polyfit(sizes, rates.tokens / rates.passes, 1)
    assert interval.value == pytest.approx(level + 9 * slope) and interval.low < interval.value < interval.high


def test_rows_of_one_model_are_not_those_of_another(tmp_path, llama, monkeypatch):
    """A page that another target runs must not show the shipped rows as that target's."""
    assert measures.committed("nothing", tmp_path) is None
    rows = b"prompt,tokens,w1,w2,w4,w8,w16,w32,w64,w128,w256\na,1" + b",0" * 9
    (tmp_path / "some.csv.gz").write_bytes(gzip.compress(rows))
    (tmp_path / "some.json").write_text('{"target": "of another"}')
    assert measures.committed("some", tmp_path, target=llama) is None
    (tmp_path / "some.json").write_text(json.dumps({"target": fingerprint(llama)}))
    assert measures.committed("some", tmp_path, target=llama) is not None
    assert measures.committed("some", tmp_path, target=llama, draft=llama) is None
    monkeypatch.setattr(measures, "committed", lambda name, **models: ("kept", {}) if not models else None)
    written = []
    monkeypatch.setattr(measures, "write", lambda *args, **models: written.append(args[:2]))
    assert measures.study("some", lambda: ("made", {}), False) == ("kept", {})
    assert measures.study("some", lambda: ("made", {}), False, target=llama) == ("made", {}) and not written
    assert measures.study("some", lambda: ("made", {}), True) == ("made", {}) and written == [("some", "made")]
