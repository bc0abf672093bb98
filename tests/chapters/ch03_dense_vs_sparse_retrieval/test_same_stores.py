"""Which rows are compared with which, and what the chapter records of the comparison."""

import itertools
import math
from types import SimpleNamespace

import pandas as pd
import pytest

from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval import measures, same_stores

METHODS = ("DReSD", *same_stores.REST_VERSIONS.values(), *(f"{v}, 6 deep" for v in same_stores.REST_VERSIONS.values()))


def counted(rate, sizes=(1_000, 10_000), prompts=6):
    """Counts of every method whose tokens per pass are a function of method, store and size."""
    return pd.DataFrame(
        {
            "prompt": str(prompt),
            "method": method,
            "store": store,
            "stored": size,
            "way": way,
            "group": "code",
            "passes": 100,
            "tokens": 100 * rate(method, store, size),
            "drafts": 50 if method == "DReSD" else 25,
            "depth": 300,
            "nodes": 900,
            "accepted": 60 if method == "DReSD" else 30,
        }
        for prompt, method, store, size, way in itertools.product(
            range(prompts), METHODS, ("stdlib", "own"), sizes, ("greedy", "nucleus")
        )
    )


def test_settings_pair_the_same_store_size_way_and_group():
    counts = counted(lambda method, store, size: 1 + size / 1e4 + (store == "own") + (method == "DReSD"))
    pairs = same_stores.settings(counts, "DReSD", "REST")
    assert len(pairs) == 2 * 2 * 2
    for ours, theirs in pairs:
        assert set(ours.method) == {"DReSD"} and set(theirs.method) == {"REST"}
        for name in same_stores.SETTING:
            assert set(ours[name]) == set(theirs[name]) and ours[name].nunique() == 1


def test_rows_of_a_setting_are_those_of_the_whole_store():
    counts = counted(lambda method, store, size: size / 1e3 + (method == "DReSD"))
    whole, part = (SimpleNamespace(store=SimpleNamespace(count=count)) for count in (10_000, 20_000))
    found = same_stores.of_setting(counts, whole, "own", "nucleus", "code")
    assert set(found) == {"REST", "DReSD"} and len(found["DReSD"]) == 6
    assert measures.rate(found["DReSD"]).value == pytest.approx(11) and set(found["REST"].way) == {"nucleus"}
    assert same_stores.of_setting(counts, part, "own", "nucleus", "code") is None, "a part of it was counted"
    assert same_stores.of_setting(counts, whole, "prose", "nucleus", "code") is None


def test_the_largest_size_is_that_of_each_store():
    counts = counted(lambda *_: 1.0)
    counts = counts[(counts.store == "own") | (counts.stored == 1_000)]
    largest = same_stores.at_largest(counts)
    assert set(zip(largest.store, largest.stored, strict=True)) == {("own", 10_000), ("stdlib", 1_000)}


def test_rates_of_drafts_compare_at_equal_depth_and_tokens_per_pass_at_the_usual_one():
    def rate(method, *_):
        return {"DReSD": 3.0, "REST": 2.0, "REST, 6 deep": 1.0}.get(method, 1.5)

    counts = counted(rate)
    deep = counts.method == "REST, 6 deep"
    counts.loc[deep, ["accepted", "drafts"]] = 20, 10
    ratios = same_stores.ratios(counts)
    assert ratios["tokens per pass"]["REST"].value == pytest.approx(3.0 / 2.0)
    assert ratios["passes with a draft"]["REST"].value == pytest.approx(50 / 25)
    assert ratios["acceptance rate"]["REST"].value == pytest.approx(60 / 20)
    assert ratios["accepted tokens a draft"]["REST"].value == pytest.approx((60 / 50) / (20 / 10))
    assert set(ratios) == set(same_stores.QUANTITIES)


def test_recorded_gains_are_the_ratios_in_percent():
    counts = counted(lambda method, *_: 3.0 if method == "DReSD" else 2.0)
    found = same_stores.recorded_ratios(counts)
    for key in same_stores.REST_VERSIONS:
        assert found[f"gain_tpf_{key}"] == pytest.approx(50.0) and found[f"said_tpf_{key}"] == "+50"
        assert found[f"gain_tpf_{key}_text"] == "50 %" and found[f"said_ratio_{key}"].startswith("1.50")
        assert found[f"equal_rate_dresd_over_{key}"].value == pytest.approx(2.0)
        assert found[f"said_rate_{key}"] == "+100" and found[f"said_length_{key}"] == "+0"


def test_a_ratio_of_nothing_is_not_available():
    counts = counted(lambda *_: 1.0)
    counts.loc[counts.method != "DReSD", ["accepted", "drafts", "depth"]] = 0
    found = same_stores.recorded_ratios(counts)
    assert found["gain_rate_rest"] == found["said_rate_rest"] == "not available"
    assert found["gain_rate_rest_text"] == "(no rate)" and found["said_tpf_rest"] == "+0"


def test_leads_count_settings_whose_whole_interval_lies_on_one_side():
    def rate(method, store, size):
        return 2.0 if method == "DReSD" and store == "own" else 1.0 if method == "DReSD" else 1.5

    found = same_stores.recorded_leads(counted(rate))
    assert (found["dresd_leads"], found["dresd_behind"], found["dresd_settings"]) == (4, 4, 8)
    assert found["dresd_leads_from_1"] == 4 and found["dense_largest"] == 10_000
    assert found["lead_least_rest"].value == pytest.approx(1 / 1.5)
    assert found["lead_mean_rest"].value == pytest.approx(math.sqrt(2.0 / 1.5 * 1 / 1.5))


def test_lines_need_several_sizes_of_the_store_of_python():
    published = {"store-code-tokens": "19"}

    def rate(method, store, size):
        return 1 + 0.1 * math.log10(size) + (0.5 if method == "DReSD" else 0.0)

    found = same_stores.recorded_lines(counted(rate), published)
    level = 1 + 0.1 * math.log10(19e6)
    assert found["lead_line_19m_rest"].value == pytest.approx((level + 0.5) / level)
    # Every store has the same line here, that of the target's own answers too.
    assert found["said_lead_line_own_rest"] == found["said_lead_line_rest"]
    alone = same_stores.recorded_lines(counted(rate, sizes=(1_000,)), published)
    assert (alone.pop("lead_sizes"), alone.pop("lead_line_from")) == (1, 1_000)
    assert set(alone.values()) == {"not available"}


def test_growth_compares_the_ends_of_stores_of_text_alone():
    lead = {("stdlib", 1_000): 1.2, ("stdlib", 10_000): 0.9, ("packages", 500): 1.5, ("packages", 20_000): 1.0}
    from_1 = {"REST, n from 1": 1.1}

    def rate(method, store, size):
        return 2.0 * (lead.get((store, size), 9.0) if method == "DReSD" else from_1.get(method, 1.0))

    packages = counted(lambda method, _, size: rate(method, "packages", size), sizes=(500, 20_000))
    packages = packages[packages.store == "own"].assign(store="packages")
    found = same_stores.recorded_growth(pd.concat([counted(rate, sizes=(1_000, 3_000, 10_000)), packages]))
    assert found["growth_first_rest"].value == pytest.approx(math.sqrt(1.2 * 1.5))
    assert found["growth_last_from_1"].value == pytest.approx(math.sqrt(0.9 * 1.0) / 1.1)
    assert (found["growth_first_least"], found["growth_first_most"]) == (500, 1_000)
    assert (found["growth_last_least"], found["growth_last_most"]) == (10_000, 20_000)
    assert (found["stored_least_packages"], found["stored_most_own"]) == (500, 10_000)


@pytest.mark.parametrize(
    ("slope", "tokens"),
    [
        (0.3, (10_000.0,) * 3),  # 1 + 0.1 x meets 0.2 + 0.3 x at x = 4
        (0.1 + 1e-4, "not available"),  # they meet at 10 to the power of 8,000
        (0.1, "not available"),
        (0.05, "not available"),  # at 10 to the power of -16
    ],
)
def test_a_size_where_lines_cross_is_recorded_only_if_it_can_be_one(slope, tokens):
    def rate(method, store, size):
        return 0.2 + slope * math.log10(size) if method == "REST" else 1 + 0.1 * math.log10(size)

    found = same_stores.recorded_lines(counted(rate), {"store-code-tokens": "19"})
    assert found["lead_ends_tokens_rest"] == tokens


def test_rows_by_size_have_the_lead_at_each_size_and_the_number_of_prompts():
    counts = counted(lambda method, store, size: (2.0 if method == "DReSD" else 1.0) + size / 1e4)
    rows = same_stores.lead_rows(counts)
    assert len(rows) == 2 * 2 * 2 and set(rows.prompts) == {6}
    assert rows[rows["size"] == 1_000].rest.iloc[0].value == pytest.approx(2.1 / 1.1)
    rates = same_stores.rates(counts[counts.stored == 1_000])
    assert len(rates) == 2 * 2 * len(METHODS)
    assert rates[rates.method == "DReSD"].drafting.iloc[0] == measures.rate(
        counts[(counts.stored == 1_000) & (counts.method == "DReSD")], "share_with_draft"
    )


def test_the_filter_is_compared_setting_by_setting():
    counts = counted(lambda method, *_: 2.0)
    with_filter = same_stores.of_method(counts, "DReSD")
    unfiltered = with_filter.assign(method="DReSD, no filter", tokens=160, nodes=3 * with_filter.nodes)
    found = same_stores.recorded_filter(pd.concat([counts, unfiltered]), ["greedy", "nucleus"], "code")
    assert found["filter_on_over_off_greedy"].value == pytest.approx(200 / 160)
    assert found["filter_accuracy_nucleus"].value == pytest.approx(3)  # as many accepted of a third of the nodes
    assert found["dresd_own_nucleus_tpf"].value == pytest.approx(2.0)
