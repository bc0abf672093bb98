"""What chapter 3 records of its experiments: each value under its name, from counts that are known."""

from types import SimpleNamespace

import pandas as pd
import pytest

from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval import findings, measures
from specdec_lib.decoding.results import Generation, Step
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.experiments.retrieval import Bias
from specdec_lib.experiments.statistics import Interval


def counts(tokens, accepted=10, nodes=100, drafts=50, prompts=5):
    """Counts of a few outputs, all alike; every pass is as wide as two tokens."""
    rows = {"tokens": tokens, "passes": 100, "drafts": drafts, "nodes": nodes, "depth": 200, "accepted": accepted}
    rows |= {"row_tokens": 2 * nodes, "draft_seconds": 0.5, **dict.fromkeys(measures.WIDTH_COLUMNS, 0.0), "w2": 100.0}
    return pd.DataFrame([{"prompt": str(p), **rows} for p in range(prompts)])


def pair(before, after):
    return {m: counts(before) for m in ("REST", "DReSD")}, {m: counts(after, accepted=20) for m in ("REST", "DReSD")}


def test_gains_of_alignment_have_both_ends_and_their_ratio():
    rows = findings.alignment({("response", "greedy"): pair(150, 300), ("response_editing", "greedy"): pair(150, 300)})
    found = findings.recorded_alignment(rows)
    assert found["response_dresd_greedy_tpf_gain"] == pytest.approx((2.0,) * 3)
    assert found["response_dresd_greedy_before_tpf"] == pytest.approx(1.5)
    assert found["response_rest_greedy_after"] == pytest.approx(0.1) and found["response_rest_greedy"] == "+100%"
    # On editing prompts the rates are texts of their own names.
    assert found["response_rest_greedy_editing_after"] == "10.0%"
    assert found["response_dresd_greedy_editing_rate_gain"] == pytest.approx((2.0,) * 3)


def test_sampled_stores_are_compared_with_the_greedy_one_and_between_ways():
    def store(method, way, written, tokens, answers=1, accepted=10, own=True):
        aligned = {"prompt_aligned": True, "response_aligned": own, "sampling_aligned": way == written}
        return counts(tokens, accepted).assign(method=method, way=way, answers=answers, **aligned)

    design = pd.concat(
        [
            store("DReSD", "greedy", "greedy", 150),
            store("DReSD", "nucleus", "greedy", 120),
            store("DReSD", "greedy", "nucleus", 300),
            store("DReSD", "nucleus", "nucleus", 240, accepted=15),
            store("DReSD", "greedy", "nucleus", 330, answers=3, accepted=25),
            store("DReSD", "nucleus", "nucleus", 360, answers=3, accepted=20),
            store("REST", "greedy", "greedy", 200),
            store("REST", "nucleus", "greedy", 180),
            store("DReSD", "nucleus", "nucleus", 999, answers=3, accepted=99, own=False),
        ]
    )
    found = findings.recorded_sampled_stores(design)
    assert found["sampling_dresd_nucleus_over_greedy_before"].value == pytest.approx(120 / 150)
    assert found["sampling_rest_nucleus_over_greedy_before"].value == pytest.approx(180 / 200)
    assert found["sampling_nucleus_over_greedy_after"].value == pytest.approx(20 / 25)
    assert found["sampling_nucleus_gain"].value == pytest.approx(15 / 10)
    assert found["coverage_nucleus_over_greedy"].value == pytest.approx((360 / 240) / (330 / 300))


def test_shapes_are_compared_at_a_price_that_cancels_for_equal_widths():
    shapes = {name: counts(200) for name in ("10 x 10", "10 x 6", "REST, 64 nodes", "REST, n from 1")}
    shapes["3 x 20"] = counts(300)
    found = findings.recorded_shapes({"greedy": shapes, "nucleus": shapes})
    assert found["shape_deep_greedy"] == pytest.approx(3.0) and found["shape_rest_nucleus"] == pytest.approx(2.0)
    assert found["shape_deep_over_wide_greedy_gpu"].value == pytest.approx(1.5)
    assert found["best_shape_nucleus_over_rest_from_1_gpu"].value == pytest.approx(1.0)
    assert found["composed_dresd_own_over_rest_own_gpu"].value == pytest.approx(1.5)
    narrow, wide = sorted(findings.gpu_prices())[:2]  # every pass is two tokens wide
    price = 1 + (findings.gpu_prices()[wide] - 1) * (2 - narrow) / (wide - narrow)
    assert found["composed_dresd_own_over_plain_gpu"].value == pytest.approx(3.0 / price)
    rows = findings.shape_rows({"greedy": shapes, "nucleus": shapes})
    assert "REST, n from 1" not in set(rows["shape"]) and set(rows.nodes) == {2.0}


def test_a_joined_tree_is_compared_with_the_better_of_its_sources():
    joined = {"DReSD": counts(200), "PLD": counts(300), "both": counts(330)}
    found = findings.recorded_combined(joined)
    assert found["combined_over_best"].value == pytest.approx(1.1) and found["combined_text"].startswith("1.10")


def test_lengths_have_both_ends_of_the_sweep():
    swept = {
        (what, way): {1: counts(120, 8), 30: counts(240, 20)} for what in ("length", "number") for way in ("greedy",)
    }
    found = findings.recorded_lengths(swept)
    assert (found["length_greedy_first"], found["length_greedy_last"]) == pytest.approx((1.2, 2.4))
    assert found["number_rate_first"] == pytest.approx(8 / 200)
    assert found["length_tpf_last_over_first"].value == pytest.approx(2.0)
    assert found["length_rate_last_over_first"].value == pytest.approx(2.5)


def test_sizes_count_the_steps_that_rise():
    rates = (110, 130, 120)
    grown = {(way, "code"): dict(enumerate(map(counts, rates))) for way in ("greedy", "nucleus")}
    published = {f"rest-{row}": {"value": row} for row in ("t2-09gb-m", "t2-27gb-m", "t3-random-greedy")}
    found = findings.recorded_sizes([10, 20, 30], grown, published)
    assert (found["size_increases"], found["size_steps"]) == (1, 2)
    assert (found["size_first"], found["size_last"], found["size_last_code_nucleus"]) == (10, 30, pytest.approx(1.2))
    assert found["size_greedy_over_nucleus_code"].value == 1.0 and found["published_large"] == "t2-27gb-m"


def test_variants_and_ablations_are_named_by_what_they_vary():
    variants = {name: counts(200, nodes=100 if name != "released selection" else 40) for name in findings.NAMES}
    found = findings.recorded_variants({"greedy": variants, "nucleus": variants})
    assert found["select_released_nodes"] == pytest.approx(0.8)
    assert found["select_released_over_trie_nodes"].value == pytest.approx(0.4)
    assert found["tree_nodes_over_rows"].value == pytest.approx(0.5)
    assert findings.variant_rows({"greedy": variants}).microseconds.iloc[0] == pytest.approx(2500)
    swept = {n: counts(100 + n) for n in (2, 4, 6, 16)}
    by_ngram = {(way, how): swept for way in ("greedy", "nucleus") for how in ("lexicographic", "uniform")}
    by_nodes = {way: {8: counts(110, nodes=50), 64: counts(130, nodes=200)} for way in ("greedy", "nucleus")}
    found = findings.recorded_ablations(by_ngram, by_nodes)
    assert found["ngram_2_over_16_greedy"].value == pytest.approx(102 / 116)
    assert found["ngram_4_nucleus_uniform"] == pytest.approx(1.04) and found["ngram_16_greedy_nodes"] == 2.0
    assert found["nodes_8_over_64_nodes"].value == pytest.approx(0.25) and found["nodes_64_nucleus"] == 1.3


def test_outputs_that_differ_are_counted_by_method_and_reason():
    rows = pd.DataFrame(
        {"method": ["REST", "DReSD", "REST"], "outputs": [5, 5, 5], "differ": [0, 2, 1], "rounding": [0, 1, 1]}
    )
    found = findings.recorded_losslessness(rows, [True, True, False])
    assert (found["lossless_prompts"], found["lossless_mismatches"], found["lossless_unexplained"]) == (15, 3, 1)
    assert (found["rest_unexplained"], found["dresd_unexplained"]) == (0, 1)
    assert (found["replay_runs"], found["replay_mismatches"]) == (3, 1)


def test_bias_and_design_are_recorded_by_rule_and_way():
    mean, accepted, exactly = (Interval(value, value - 0.1, value + 0.1) for value in (0.1, 1.0, 1.1))
    found = findings.recorded_bias({"rest": Bias(3, mean, 0.2, accepted, exactly)})
    assert found == {
        "bias_rest_mean": 0.1,
        "bias_rest_largest": 0.2,
        "bias_rest_accepted": 1.0,
        "bias_rest_accepted_exactly": 1.1,
    }
    effects = {(way, "DReSD"): {"product": way} for way in ("greedy", "nucleus")}
    found = findings.recorded_design(effects, 40)
    assert found == {"alignment_documents": 40, "alignment_product": "greedy", "alignment_product_nucleus": "nucleus"}


def test_times_are_ratios_of_sums_over_all_repeats():
    def run(seconds, drafting=0.0):
        step = Step(DraftTree.chain([]), (), (1,), drafting, seconds - drafting, 0.0)
        return Generation([0, 1, 1], [step, step], "length", 1, 5.0)

    recordings = [
        SimpleNamespace(task="code", looped=False, prompt=SimpleNamespace(id=name)) for name in ("one", "two", "three")
    ]
    timings = {
        "plain": [[run(1.0)] * 3, [run(2.0)] * 3],
        "REST": [[run(0.5, 0.1)] * 3, [run(1.0, 0.1)] * 3],
        "REST, 16 nodes": [[run(0.5)] * 3] * 2,
        "DReSD": [[run(3.0, 1.0)] * 3] * 2,
    }
    rows = findings.times(timings, recordings)
    rest = rows.set_index("method").loc["REST"]
    assert rest.speedup == pytest.approx((2.0, 2.0, 2.0)), "what makes a repeat slow cancels"
    assert rest.rate.value == pytest.approx(2 / 1.5) and rest.rate.low < rest.rate.value < rest.rate.high
    assert rest.draft_share.value == pytest.approx(0.2 / 1.5)
    assert rest.draft_ms.value == pytest.approx(100.0), "of a token after the first"
    found = findings.recorded_times(rows, recordings, timings["REST"])
    assert found["rest_speedup"] == pytest.approx(2.0) and found["said_dresd_speedup"].startswith("0.50")
    assert found["rest_draft_ms_token"].value == pytest.approx(100.0)
    assert found["rest_draft_time_share"].value == pytest.approx(0.2 / 1.5)
