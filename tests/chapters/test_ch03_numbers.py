"""The numbers of chapter 3 from made-up rows: each is the ratio of sums that its key says, and a row counts where it belongs."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest

from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval import alpaca, codealpaca, duplicates, numbers
from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval import growing_stores as retrieval
from specdec_lib.experiments.data.published_numbers import published_draft_step
from specdec_lib.experiments.runs import papers_prompts
from specdec_lib.experiments.statistics.intervals import Interval
from specdec_lib.report import numbers as tables

COUNTS = (
    *("tokens", "passes", "drafts", "drafted", "accepted", "depth", "row_tokens", "characters", "cut"),
    *("matched_2", "matched_10", "matched_17"),
)
GROUPS = {"code completion": "code", "long text editing": "editing"}
COSTS = {1: 1.0, 4: 1.5, 12: 4.0}
WAYS, PROMPTS = ("greedy", "nucleus"), ("a", "b", "c", "d")
AUTHORS = {name: Interval(value, value, value) for name, value in
           {"speed_up": 1.7, "characters_per_token": 4.0, "step": 1.25}.items()}  # fmt: skip


def rows(seed, **columns):
    """A row for every combination of the columns' values, with counts of its own."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(itertools.product(*columns.values(), PROMPTS), columns=[*columns, "prompt"])
    counts = {name: rng.integers(50, 100, len(frame)) for name in COUNTS}
    widths = [np.bincount(rng.integers(1, 10, 20)) for _ in frame.index]
    return frame.assign(turn=0, seed=0, temperature=0.0, widths=widths, **counts)


def grouped(frame):
    return frame.assign(group=frame.task.map(GROUPS))


def total(frame, column, **where):
    """A column's sum over the rows that have some values; ``cost`` is what the passes cost."""
    for name, value in where.items():
        frame = frame[frame[name] == value]
    if column == "cost":
        passes = [width for counts in frame.widths for width, count in enumerate(counts) for _ in range(count)]
        return sum(np.interp(width, list(COSTS), list(COSTS.values())) for width in passes)
    return sum(frame[column].tolist())


def per(frame, above="tokens", below="passes", **where):
    return total(frame, above, **where) / total(frame, below, **where)


def changed(of, frame, column="tokens", **where):
    """The keys of a function's numbers that change with one row."""
    other = frame.reset_index(drop=True)
    place = next(i for i in other.index if all(other.at[i, name] == value for name, value in where.items()))
    other.loc[place, column] += 17
    before, after = of(frame), of(other)
    return {key for key in before if before[key] != after[key]}


# The same stores, and growing ones -------------------------------------------------------------------------------

LARGEST = {"packages": 1000, "own": 500}


def compared():
    both = {"task": tuple(GROUPS), "way": WAYS}
    small = rows(0, store=tuple(LARGEST), stored=(100,), method=retrieval.LEADING, **both)
    large = [
        rows(size, store=(store,), stored=(size,), method=tuple(retrieval.METHODS), **both)
        for store, size in LARGEST.items()
    ]
    return grouped(pd.concat([small, *large], ignore_index=True))


def mean_over(frame, theirs, above, below, stores=tuple(LARGEST.items()), ways=WAYS):
    """The geometric mean over settings of DReSD's rate over another's."""
    logs = []
    for (store, stored), way, group in itertools.product(stores, ways, GROUPS.values()):
        here = {"store": store, "stored": stored, "way": way, "group": group}
        ours, other = (per(frame, above, below, method=method, **here) for method in ("DReSD", theirs))
        logs.append(math.log(ours / other))
    return math.exp(sum(logs) / len(logs))


def test_dresd_is_compared_with_each_version_of_rest_on_the_largest_store_of_each_text():
    frame = compared()
    found = numbers.same_stores(frame)
    assert found["outputs"] == len(GROUPS) * len(WAYS) * len(PROMPTS)
    for version, name in numbers.NAMES.items():
        assert found[f"tpf_dresd_over_{name}"].value == pytest.approx(mean_over(frame, version, "tokens", "passes"))
    equal_rate = mean_over(frame, "REST, 6 deep", "accepted", "depth")
    assert found["equal_rate_dresd_over_rest"].value == pytest.approx(equal_rate)


def test_a_row_of_a_version_of_rest_changes_what_is_said_of_this_version_alone():
    frame, of = compared(), numbers.same_stores
    where = {"way": "greedy", "group": "code", "store": "packages", "stored": 1000}
    as_run = "REST, as DReSD ran it"
    assert changed(of, frame, method=as_run, **where) == {"tpf_dresd_over_as_run"}
    assert changed(of, frame, method="REST, n from 1", **where | {"stored": 100}) <= {
        "dresd_leads_from_1",
        "dresd_behind_from_1",
    }
    assert changed(numbers.growing_stores, frame, method="REST", **where) == {"growth_last_rest", "growth_change_rest"}
    assert changed(numbers.growing_stores, frame, method="REST", **where | {"store": "own", "stored": 500}) == set()


def test_settings_are_counted_in_which_the_whole_interval_is_on_one_side():
    frame = compared()
    lead = {100: 1.5, 500: 1.0, 1000: 0.9}
    rates = np.where(frame.method == "DReSD", frame.stored.map(lead), np.where(frame.method == "REST, n from 1", 2, 1))
    frame["tokens"] = frame.passes * rates
    found = numbers.same_stores(frame)
    assert found["dresd_settings"] == 16
    assert (found["dresd_leads"], found["dresd_behind"]) == (8, 4)
    assert (found["dresd_leads_from_1"], found["dresd_behind_from_1"]) == (0, 16)
    grown = numbers.growing_stores(frame)
    values = {key: getattr(number, "value", number) for key, number in grown.items()}
    assert values == pytest.approx({
        "growth_first_rest": 1.5, "growth_last_rest": 0.9, "growth_last_from_1": 0.45, "growth_change_rest": 0.6,
        "growth_last_most": 1000,
    })  # fmt: skip


# Whose text ------------------------------------------------------------------------------------------------------


def design():
    axes = {f"{axis}_aligned": (True, False) for axis in retrieval.AXES}
    columns = {"task": tuple(GROUPS), "way": WAYS, "method": retrieval.LEADING}
    one, several = (
        rows(answers, answers=(answers,), **columns, **axes | {"response_aligned": either})
        for answers, either in ((1, (True, False)), (retrieval.SEVERAL, (True,)))
    )
    frame = grouped(pd.concat([one, several], ignore_index=True))
    return frame.assign(stored=np.where(frame.response_aligned, 700, 600) + frame.prompt_aligned)


def in_store(frame, way, method, group="code", answers=1, above="tokens", below="passes", **alignment):
    aligned = {f"{axis}_aligned": alignment.get(axis, True) for axis in retrieval.AXES}
    return per(frame, above, below, way=way, method=method, group=group, answers=answers, **aligned)


def test_a_gain_is_the_rate_with_the_aligned_store_over_that_with_one_that_differs_in_one_axis():
    frame = design()
    found = numbers.whose_text(frame)
    columns = {"rate": ("accepted", "depth"), "tpf": ("tokens", "passes")}
    gains = [key for key in found if key.endswith("_gain") and key != "sampling_nucleus_gain"]
    gains = [key for key in gains if not key.startswith("kind_")]
    assert len(gains) == 2
    for key in gains:
        axis, method, way, value, _ = key.split("_")
        where = {"way": way, "method": {"rest": "REST", "dresd": "DReSD"}[method]}
        above, below = columns[value]
        good, poor = (
            in_store(frame, above=above, below=below, **where, **poor) for poor in ({}, {axis: False})
        )  # fmt: skip
        assert found[key].value == pytest.approx(good / poor), key


def test_text_of_the_prompts_kind_is_compared_over_both_kinds():
    frame = design()
    found = {key: number.value for key, number in numbers.whose_text(frame).items() if key.startswith("kind_")}
    aligned = {f"{axis}_aligned": True for axis in retrieval.AXES} | {"answers": 1}
    expected = {}
    for way, method, (name, columns) in itertools.product(
        WAYS, ("REST", "DReSD"), {"rate": ("accepted", "depth"), "tpf": ("tokens", "passes")}.items()
    ):
        same, other = (
            per(frame, *columns, way=way, method=method, **aligned | {"prompt_aligned": kind}) for kind in (True, False)
        )
        expected[f"kind_{method.lower()}_{way}_{name}_gain"] = same / other
    assert found == pytest.approx(expected)


def test_sampled_answers_are_aligned_with_sampled_outputs_alone():
    frame = design()
    found = numbers.whose_text(frame)
    rate = {"above": "accepted", "below": "depth"}
    # The stores of several answers are sampled, so that those of greedy outputs are not aligned.
    three, one = (
        {way: in_store(frame, way, "DReSD", answers=count, sampling=way == "nucleus") for way in WAYS}
        for count in (retrieval.SEVERAL, 1)
    )
    accepted = {
        way: in_store(frame, way, "DReSD", answers=retrieval.SEVERAL, sampling=way == "nucleus", **rate) for way in WAYS
    }
    expected = {
        "sampling_nucleus_over_greedy_after": accepted["nucleus"] / accepted["greedy"],
        "coverage_nucleus_over_greedy": three["nucleus"] / one["nucleus"] / (three["greedy"] / one["greedy"]),
        "sampling_nucleus_gain": in_store(frame, "nucleus", "DReSD", **rate)
        / in_store(frame, "nucleus", "DReSD", sampling=False, **rate),
    }
    good = in_store(frame, "greedy", "DReSD")
    for axis in ("prompt", "sampling"):
        expected[f"alignment_without_{axis}"] = in_store(frame, "greedy", "DReSD", **{axis: False}) / good
    none = dict.fromkeys(retrieval.AXES, False)
    alone = [in_store(frame, "greedy", "DReSD", **none | {axis: True}) for axis in retrieval.AXES]
    expected["alignment_product"] = good * in_store(frame, "greedy", "DReSD", **none) ** 2 / math.prod(alone)
    assert {key: found[key].value for key in expected} == pytest.approx(expected)


def test_a_row_of_a_store_of_answers_changes_the_gains_of_its_group_way_and_method_alone():
    frame, of = design(), numbers.whose_text
    good = {f"{axis}_aligned": True for axis in retrieval.AXES} | {"answers": 1}
    other = good | {"prompt_aligned": False}
    for group in GROUPS.values():
        assert changed(of, frame, way="greedy", method="REST", group=group, **other) == {"kind_rest_greedy_tpf_gain"}
    assert changed(of, frame, "depth", way="greedy", method="DReSD", group="code", **other) == {
        "kind_dresd_greedy_rate_gain"
    }
    other = good | {"sampling_aligned": False}
    assert changed(of, frame, way="nucleus", method="DReSD", group="editing", **other) == set()
    assert "sampling_dresd_nucleus_tpf_gain" in changed(of, frame, way="nucleus", method="DReSD", group="code", **other)


def alpaca_rows():
    where = {"task": ("alpaca",), "way": WAYS, "method": ("REST", "DReSD")}
    held = ((alpaca.THEIRS, 500), (alpaca.OWN, 499))
    return pd.concat([rows(stored, answers=(whose,), stored=(stored,), **where) for whose, stored in held])


def test_on_alpaca_a_store_of_own_answers_is_compared_with_one_of_those_that_come_with_it():
    frame = alpaca_rows()
    found = numbers.whose_answers(frame)
    assert found.pop("alpaca_prompts") == len(PROMPTS)
    assert (found.pop("alpaca_own_tokens"), found.pop("alpaca_their_tokens")) == (499, 500)
    gains = {key: number for key, number in found.items() if key.endswith("_gain")}
    assert len(gains) == 8 and len(found) == 12
    for key, number in gains.items():
        _, method, way, value, _ = key.split("_")
        above, below = {"rate": ("accepted", "depth"), "tpf": ("tokens", "passes")}[value]
        where = {"way": way, "method": {"rest": "REST", "dresd": "DReSD"}[method]}
        own, theirs = (per(frame, above, below, answers=whose, **where) for whose in (alpaca.OWN, alpaca.THEIRS))
        assert number.value == pytest.approx(own / theirs), key


def test_sampled_outputs_on_alpaca_are_compared_with_greedy_ones_of_the_same_prompts():
    frame = alpaca_rows()
    frame = frame[(frame.way == "greedy") | frame.prompt.isin(["a", "b"])]
    found = numbers.whose_answers(frame)
    for (method, name), (whose, said) in itertools.product(
        {"REST": "rest", "DReSD": "dresd"}.items(), {alpaca.OWN: "own", alpaca.THEIRS: "their"}.items()
    ):
        same = frame[frame.prompt.isin(["a", "b"])]
        sampled, greedy = (per(same, method=method, answers=whose, way=way) for way in ("nucleus", "greedy"))
        assert found[f"alpaca_{name}_nucleus_over_greedy_{said}"].value == pytest.approx(sampled / greedy)


def test_on_alpaca_own_answers_have_a_speed_at_the_cost_of_the_passes():
    frame = alpaca_rows()

    def of(method, way):
        return per(frame, below="cost", answers=alpaca.OWN, method=method, way=way)

    expected = {f"alpaca_own_{name.lower()}_over_plain_gpu": of(name, "greedy") for name in ("DReSD", "REST")} | {
        f"alpaca_own_{way}_dresd_over_rest_gpu": of("DReSD", way) / of("REST", way) for way in WAYS
    }
    found = {key: number.value for key, number in numbers.own_answers(frame, COSTS).items()}
    assert found == pytest.approx(expected)


# DReSD's own setting ---------------------------------------------------------------------------------------------


def code_alpaca():
    methods = [(stored, WAYS, (*codealpaca.DENSE, *codealpaca.SPARSE)) for stored in (100, 1000)]
    methods += [(0, WAYS, ("PLD",)), (0, ("greedy",), ("SpecDec",))]
    frame = pd.concat(
        rows(seed, task=("codealpaca",), stored=(stored,), way=ways, method=names)
        for seed, (stored, ways, names) in enumerate(methods)
    )
    return codealpaca.named(frame.assign(temperature=np.where(frame.way == "greedy", 0.0, 0.7)))


def test_dresd_is_judged_on_its_own_prompts_with_the_largest_store_and_a_draft_model_pays_for_its_steps():
    frame = code_alpaca()
    found = numbers.on_code_alpaca(frame, COSTS, 1.5)
    assert found.pop("codealpaca_prompts") == len(PROMPTS) and found.pop("codealpaca_stored") == 1000
    assert found.pop("codealpaca_draft_step") == 1.5
    found = {key: number for key, number in found.items() if "long_over_short" not in key}

    def of(method, above, below, way):
        stored = 0 if method in ("PLD", "SpecDec") else 1000
        return per(frame, above, below, method=method, way=way, stored=stored)

    def over(ours, theirs, above="tokens", below="cost", ways=WAYS):
        ratios = [of(ours, above, below, way) / of(theirs, above, below, way) for way in ways]
        return math.prod(ratios) ** (1 / len(ratios))

    expected = {}
    for version, name in numbers.NAMES.items():
        expected |= {
            f"rate_dresd_over_{name}": over("DReSD", f"{version}, 6 deep", "accepted", "depth"),
            f"length_dresd_over_{name}": over("DReSD", f"{version}, 6 deep", "accepted", "drafts"),
            f"drafting_dresd_over_{name}": over("DReSD", version, "drafts", "passes"),
            f"tpf_dresd_over_{name}": over("DReSD", version, "tokens", "passes"),
        }
    for version, name in numbers.NAMES.items():
        expected[f"speed_dresd_over_{name}_gpu"] = over("DReSD", version)
        # What all passes cost with a search, over what they cost without.
        searches = [1 + codealpaca.SEARCH * of("DReSD", "passes", "cost", way) for way in WAYS]
        expected[f"speed_searched_dresd_over_{name}_gpu"] = over("DReSD", version) / math.sqrt(math.prod(searches))
        if name != "rest_from_1":
            expected |= {f"speed_{way}_dresd_over_{name}_gpu": over("DReSD", version, ways=(way,)) for way in WAYS}
    for way in WAYS:
        expected[f"filter_{way}"] = over("DReSD", "DReSD, no filter", "accepted", "drafted", (way,))
        expected[f"filter_rate_{way}"] = over("DReSD", "DReSD, no filter", "accepted", "depth", (way,))
    expected["deep_over_wide_greedy_gpu"] = over("DReSD, 3 x 20", "DReSD, 10 x 10", ways=("greedy",))
    expected["wide_over_deep_nucleus_gpu"] = over("DReSD, 10 x 10", "DReSD, 3 x 20", ways=("nucleus",))
    expected["deep_over_matched_greedy_gpu"] = over("DReSD, 3 x 20", "DReSD", ways=("greedy",))
    expected["wide_over_matched_nucleus_gpu"] = over("DReSD, 10 x 10", "DReSD", ways=("nucleus",))
    expected["wide_over_rest_nucleus_gpu"] = over("DReSD, 10 x 10", "REST", ways=("nucleus",))
    speeds = {name: of(name, "tokens", "cost", "greedy") for name in ("DReSD, 3 x 20", "PLD", "REST")}
    where = {"method": "SpecDec", "way": "greedy"}
    speeds["SpecDec"] = total(frame, "tokens", **where) / (1.5 * total(frame, "passes", **where))
    for rival in ("PLD", "SpecDec"):
        expected[f"matched_dresd_over_{rival.lower()}_gpu"] = of("DReSD", "tokens", "cost", "greedy") / speeds[rival]
    best = expected["dresd_over_plain_gpu"] = speeds.pop("DReSD, 3 x 20")
    for rival, speed in speeds.items():
        expected |= {f"{rival.lower()}_over_plain_gpu": speed, f"best_dresd_over_{rival.lower()}_gpu": best / speed}
    assert {key: number.value for key, number in found.items()} == pytest.approx(
        {f"codealpaca_{key}": value for key, value in expected.items()}
    )


def test_a_step_with_a_draft_model_costs_what_spec_bench_accepts_over_what_it_gains():
    assert published_draft_step() == pytest.approx(2.28 / 1.52)


def test_longer_drafts_are_compared_where_more_is_accepted_and_where_less_is():
    frame = code_alpaca()
    found = {key: number.value for key, number in numbers.on_code_alpaca(frame, COSTS, 1.5).items() if "long" in key}
    greedy = frame[frame.way == "greedy"]
    matched = greedy[(greedy.method == "DReSD") & (greedy.stored == 1000)]
    rates = (matched.accepted / matched.depth).tolist()
    above = [prompt for prompt, rate in zip(matched.prompt, rates, strict=True) if rate > np.median(rates)]
    assert 0 < len(above) < len(PROMPTS)

    def longer(rows, stored=1000):
        long, short = (per(rows, below="cost", method=f"DReSD, 1 x {n}", stored=stored) for n in (20, 6))
        return long / short

    high, low = longer(greedy[greedy.prompt.isin(above)]), longer(greedy[~greedy.prompt.isin(above)])
    expected = {"high": high, "low": low, "high_over_low": high / low}
    expected["large_over_small"] = longer(greedy) / longer(greedy, 100)
    assert found == pytest.approx({f"codealpaca_long_over_short_{key}_gpu": value for key, value in expected.items()})


def stored_twice():
    """Rows with each document once, with a tenth of them twice, and of the documents of both stores."""
    frame = code_alpaca()
    once = frame[frame.stored == 1000].assign(stored=duplicates.SIZE)
    again = once[once.method.isin(["REST", "DReSD"])]
    again = again.assign(tokens=2 * again.tokens + np.arange(len(again)), stored=1.1 * duplicates.SIZE)
    found = rows(9, task=("store",), method=(duplicates.ONCE, duplicates.TWICE), document=(0, 1, 2))
    found = found[found.prompt == "a"].rename(columns={"accepted": "rank", "depth": "states"})
    return pd.concat([frame, once]), again, found


def test_a_store_with_documents_twice_is_compared_with_the_same_text_once():
    once, twice, found = stored_twice()
    values = {key: number.value for key, number in numbers.stored_twice(once, twice, found).items()}
    where = {method: [{"method": method, "way": way} for way in WAYS] for method in ("REST", "DReSD")}
    expected = {
        f"twice_{method.lower()}_tpf": math.sqrt(
            math.prod(per(twice, **one) / per(once, stored=duplicates.SIZE, **one) for one in each)
        )
        for method, each in where.items()
    }
    for name, method in {"once": duplicates.ONCE, "twice": duplicates.TWICE}.items():
        expected[f"{name}_mrr"] = per(found, "rank", "states", method=method)
    assert values == pytest.approx(expected)


# Shapes, and REST by itself --------------------------------------------------------------------------------------


def shapes():
    names = {(10, length) for length in retrieval.LENGTHS} | {(3, 20)}
    methods = (*(f"{number} x {length}" for number, length in sorted(names)), "REST", "REST, n from 1", "PLD", "both")
    return rows(5, task=("code completion",), way=WAYS, method=methods)


def of_shapes(frame):
    return numbers.draft_shapes(retrieval.by_way_and_method(frame), COSTS)


def test_shapes_are_compared_by_their_speed_at_the_cost_of_their_passes():
    frame = shapes()
    found = {key: number.value for key, number in of_shapes(frame).items()}

    def speed(way, method):
        return per(frame, below="cost", way=way, method=method)

    expected = {
        "shape_deep_over_wide_greedy_gpu": speed("greedy", "3 x 20") / speed("greedy", "10 x 10"),
        "shape_wide_over_deep_nucleus_gpu": speed("nucleus", "10 x 10") / speed("nucleus", "3 x 20"),
        "best_shape_greedy_over_rest_gpu": speed("greedy", "3 x 20") / speed("greedy", "REST"),
        "best_shape_greedy_over_rest_from_1_gpu": speed("greedy", "3 x 20") / speed("greedy", "REST, n from 1"),
        "best_shape_nucleus_over_rest_gpu": speed("nucleus", "10 x 10") / speed("nucleus", "REST"),
        "best_shape_nucleus_over_rest_from_1_gpu": speed("nucleus", "10 x 10") / speed("nucleus", "REST, n from 1"),
        **{
            f"combined_{way}_over_{name}_gpu": speed(way, "both") / speed(way, source)
            for way in WAYS
            for name, source in {"dresd": "10 x 6", "pld": "PLD"}.items()
        },
        "composed_dresd_own_over_plain_gpu": speed("greedy", "3 x 20"),
        "composed_rest_own_over_plain_gpu": speed("greedy", "REST"),
        "composed_dresd_own_over_rest_own_gpu": speed("greedy", "3 x 20") / speed("greedy", "REST"),
    }
    for key, above, below in (("rate", "accepted", "depth"), ("tpf", "tokens", "passes")):
        longest, shortest = (per(frame, above, below, way="greedy", method=f"10 x {n}") for n in (20, 1))
        expected[f"length_{key}_last_over_first"] = longest / shortest
    assert found == pytest.approx(expected)
    assert changed(of_shapes, frame, way="greedy", method="REST") == {
        "best_shape_greedy_over_rest_gpu",
        "composed_rest_own_over_plain_gpu",
        "composed_dresd_own_over_rest_own_gpu",
    }
    assert changed(of_shapes, frame, "accepted", way="greedy", method="10 x 20") == {"length_rate_last_over_first"}


def alone():
    both = {"task": tuple(GROUPS), "way": WAYS}
    small = rows(6, stored=(100,), method=(retrieval.PUBLISHED,), **both)
    large = rows(7, stored=(1000,), method=(retrieval.PUBLISHED, *retrieval.REST_VARIANTS), **both)
    return grouped(pd.concat([small, large], ignore_index=True))


def test_rest_alone_is_measured_with_the_largest_store_of_code_and_grows_from_the_smallest(monkeypatch):
    monkeypatch.setattr(retrieval, "own_pass_costs", lambda: COSTS)
    frame = alone()
    found = {key: getattr(number, "value", number) for key, number in numbers.rest_alone(frame).items()}

    def tried(method, above="tokens", below="passes", way="greedy", group="code", stored=1000):
        return per(frame, above, below, method=method, way=way, group=group, stored=stored)

    published, drawn, released = retrieval.PUBLISHED, "random selection, 8 x 8", "released selection"
    nodes = {"above": "drafted", "below": "drafts"}
    expected = {
        "size_first_code_greedy": tried(published, stored=100),
        "size_last_code_greedy": tried(published),
        "rest_code_tpf": tried(published),
        "rest_editing_tpf": tried(published, group="editing"),
        "select_trie_over_random_greedy": tried(published) / tried(drawn),
        "select_trie_over_random_nucleus_rest": tried(published, below="cost", way="nucleus")
        / tried(drawn, below="cost", way="nucleus"),
        "select_released_over_trie_greedy": tried(released) / tried(published),
        "select_released_over_trie_nodes": tried(released, **nodes) / tried(published, **nodes),
        "tree_nodes_over_rows": tried(published, "drafted", "row_tokens"),
        "nodes_8_over_64_nodes": tried("8 nodes", **nodes) / tried("64 nodes", **nodes),
    }
    short, whole = (tried(f"suffixes up to {n}, lexicographic") for n in (2, 16))
    expected["ngram_2_over_16_greedy"] = short / whole
    assert found == pytest.approx(expected)
    where = {"way": "greedy", "group": "code", "stored": 1000}
    two = changed(numbers.rest_alone, frame, method="suffixes up to 2, lexicographic", **where)
    assert two == {"ngram_2_over_16_greedy"}
    assert changed(numbers.rest_alone, frame, method="suffixes up to 2, uniform", **where) == set()
    first = changed(numbers.rest_alone, frame, method=published, **where | {"stored": 100})
    assert first == {"size_first_code_greedy"}


# Recorded outputs of large models --------------------------------------------------------------------------------

LLAMA = "Llama-2-7B-chat, AlpacaEval"
KINDS = {retrieval.CHAT: "chat", LLAMA: "chat", retrieval.CODE: "code", retrieval.CODE_SAMPLED: "code"}
#: Of the stores of each kind; the second of code is 27 / 12 times as large as the largest of chats, as in REST's paper.
SIZES = {"code": (100_000, 1_000_000, 2_000_000), "chat": (4_500, 45_000, 450_000)}


def at_scale():
    found = []
    for seed, (task, kind) in enumerate(KINDS.items()):
        one = {"task": (task,), "kind": (kind,)}
        found.append(rows(seed, store=(kind,), stored=SIZES[kind], method=(retrieval.PUBLISHED,), **one))
        if kind == "chat":
            texts = (f"{kind}, as many tokens", retrieval.OWN_TEXT, retrieval.GPT4_TEXT)
            found.append(rows(seed + 10, store=texts, stored=(500_000,), method=(retrieval.PUBLISHED,), **one))
        if task == retrieval.CODE:
            found.append(rows(20, store=(kind,), stored=SIZES[kind][-1:], method=tuple(retrieval.VARIANTS), **one))
    return pd.concat(found, ignore_index=True)


def of_case(frame, task, above="tokens", below="passes", stored=None, method=retrieval.PUBLISHED, store=None):
    where = {"stored": stored or SIZES[KINDS[task]][-1], "store": store or KINDS[task]}
    return per(frame, above, below, task=task, method=method, **where)


def on_line(frame, task, tokens, above="tokens"):
    """The straight line through the rates at three sizes, at another size."""
    sizes = SIZES[KINDS[task]]
    rates = [of_case(frame, task, above, stored=size) for size in sizes]
    return np.polyval(np.polyfit(np.log10(sizes), rates, 1), math.log10(tokens))


def test_recorded_outputs_have_a_speed_with_the_largest_store_and_on_the_line_to_rests_own():
    frame = at_scale()
    found = {key: number.value for key, number in numbers.recorded_speeds(frame, AUTHORS).items()}
    step, in_one_token = retrieval.own_step_cost(), 4.0  # characters
    grown = {"task": retrieval.CHAT, "store": "chat", "method": retrieval.PUBLISHED}
    ours_for_theirs = total(frame, "tokens", **grown) / (total(frame, "characters", **grown) / in_one_token)
    code_27 = on_line(frame, retrieval.CODE, 27e9 / 6)
    expected = {
        "real_authors_speedup": 1.7,
        "real_code_speedup_rest": of_case(frame, retrieval.CODE) / step,
        "real_code_nucleus_speedup_rest": of_case(frame, retrieval.CODE_SAMPLED) / step,
        "real_chat_speedup_rest": of_case(frame, retrieval.CHAT, "characters") / in_one_token / 1.25,
        "real_chat_nucleus_speedup_rest": of_case(frame, LLAMA) / 1.25,
        "real_code_line_09gb": on_line(frame, retrieval.CODE, 0.9e9 / 6),
        "real_code_line_27gb": code_27,
        "real_code_line_speedup_rest": code_27 / step,
        "real_code_nucleus_line_speedup_rest": on_line(frame, retrieval.CODE_SAMPLED, 27e9 / 6) / step,
    }
    for name, size in (("real_chat_line_speedup_rest", 12e9), ("real_chat_line_465mb_speedup_rest", 0.465e9)):
        characters = on_line(frame, retrieval.CHAT, size / 6 * ours_for_theirs, "characters")
        expected[name] = characters / in_one_token / 1.25
    assert found == pytest.approx(expected)


def test_recorded_outputs_grow_with_the_store_in_tokens_and_in_speed(monkeypatch):
    monkeypatch.setattr(retrieval, "own_pass_costs", lambda: {width: cost**2 for width, cost in COSTS.items()})
    frame = at_scale()
    found = {key: number.value for key, number in numbers.recorded_growth(frame, COSTS).items()}
    expected = {}
    steps = {}
    for kind, task in (("code", retrieval.CODE), ("chat", retrieval.CHAT)):
        rates = [of_case(frame, task, stored=size) for size in SIZES[kind]]
        steps[kind] = [rates[1] / rates[0], rates[2] / rates[1]]
        expected[f"real_{kind}_last_step"] = steps[kind][-1]
        if kind == "code":
            expected["real_code_growth"] = rates[2] / rates[0]
    expected["real_code_step_least"] = min(steps["code"])
    for ending, (code, chat) in {
        "": (retrieval.CODE, retrieval.CHAT), "_nucleus": (retrieval.CODE_SAMPLED, LLAMA),
    }.items():  # fmt: skip
        in_proportion = of_case(frame, code, stored=SIZES["code"][1])
        expected[f"real_code_over_chat{ending}"] = in_proportion / of_case(frame, chat)
    expected["real_gain_least"] = min(of_case(frame, task) for task in KINDS)
    expected["real_speedup_least_rest"] = expected["real_gain_least"] / retrieval.own_step_cost()
    assert {key: found[key] for key in expected} == pytest.approx(expected)
    speeds, cost = (
        [of_case(frame, retrieval.CODE, above, "cost", stored=size) for size in (SIZES["code"][0], SIZES["code"][-1])]
        for above in ("tokens", "passes")
    )
    assert found["real_code_growth_speed_gpu"] == pytest.approx(speeds[1] / speeds[0])
    assert found["real_code_growth_speed_over_tokens_gpu"] == pytest.approx(cost[1] / cost[0])
    assert found["real_code_growth_speed_rest"] == pytest.approx(
        found["real_code_growth"] * found["real_code_growth_speed_over_tokens_rest"]
    )
    assert found["real_code_growth_speed_rest"] != pytest.approx(found["real_code_growth_speed_gpu"])
    # Costs as they are, for what is read at those of REST's own card.
    monkeypatch.setattr(retrieval, "own_pass_costs", lambda: COSTS)
    own = numbers.recorded_growth(frame, COSTS)
    for ending, task in {"": retrieval.CHAT, "_nucleus": LLAMA}.items():
        first, last = (of_case(frame, task, below="cost", stored=SIZES["chat"][place]) for place in (0, -1))
        assert own[f"real_chat{ending}_growth_speed_rest"].value == pytest.approx(last / first)
    middle = {"task": retrieval.CHAT, "store": "chat", "stored": SIZES["chat"][1]}
    assert changed(lambda rows: numbers.recorded_growth(rows, COSTS), frame, **middle) == {"real_chat_last_step"}


def of_variants(frame):
    return numbers.recorded_variants(frame)


def test_variants_on_recorded_outputs_are_those_of_code_and_stored_answers_are_compared_in_characters(monkeypatch):
    monkeypatch.setattr(retrieval, "own_pass_costs", lambda: COSTS)
    frame = at_scale()
    found = {key: getattr(number, "value", number) for key, number in of_variants(frame).items()}
    code, size = retrieval.CODE, {"stored": 500_000}
    matched = {n: of_case(frame, code, f"matched_{n}") for n in (2, 10, 17)}
    expected = {
        "real_code_share_short": matched[2] / sum(matched.values()),
        "real_code_share_matched": sum(matched.values()),
        "real_code_share_beyond_16": of_case(frame, code, "matched_17", method="suffixes up to 32"),
    }
    suffixes = {n: {"method": f"suffixes up to {n}"} for n in (2, 4, 6)}
    expected["real_code_ngram_2_over_16"] = of_case(frame, code, **suffixes[2]) / of_case(frame, code)
    for n, method in suffixes.items():
        speed, whole = (of_case(frame, code, below="cost", **which) for which in (method, {}))
        expected[f"real_code_ngram_{n}_over_16_rest"] = speed / whole
    for many, few in ((48, 8), (256, 48)):
        larger, smaller = (of_case(frame, code, method=f"{n} nodes") for n in (many, few))
        expected[f"real_code_nodes_{many}_over_{few}"] = larger / smaller
    for many, few in ((48, 8), (192, 48), (256, 192)):
        larger, smaller = (of_case(frame, code, below="cost", method=f"{n} nodes") for n in (many, few))
        expected[f"real_code_nodes_{many}_over_{few}_rest"] = larger / smaller
    for name, task in (("vicuna", retrieval.CHAT), ("llama", LLAMA)):
        own, gpt4 = (
            of_case(frame, task, "characters", store=store, **size)
            for store in (retrieval.OWN_TEXT, retrieval.GPT4_TEXT)
        )
        expected[f"real_{name}_own_over_gpt4"] = own / gpt4
    drawn = of_case(frame, code, below="cost", method="random selection")
    expected["real_code_trie_over_random_rest"] = of_case(frame, code, below="cost") / drawn
    nodes = {"above": "drafted", "below": "drafts"}
    expected["real_code_released_over_trie_nodes"] = of_case(
        frame, code, **nodes, method="released selection"
    ) / of_case(frame, code, **nodes)
    for key, column in (("matches_cut", "cut"), ("matches_looked_up", "passes")):
        expected[key] = sum(
            total(frame, column, task=task, store=kind, stored=SIZES[kind][-1], method=retrieval.PUBLISHED)
            for task, kind in ((code, "code"), (retrieval.CHAT, "chat"))
        )
    assert found == pytest.approx(expected)
    assert changed(of_variants, frame, task=code, method="192 nodes") == {
        "real_code_nodes_192_over_48_rest",
        "real_code_nodes_256_over_192_rest",
    }
    assert changed(of_variants, frame, "characters", task=LLAMA, store=retrieval.GPT4_TEXT) == {
        "real_llama_own_over_gpt4"
    }


# What is decoded for real, the papers' own prompts, and what is saved --------------------------------------------


def checked():
    frame = rows(30, task=tuple(GROUPS), method=("REST", "DReSD"))
    unexplained = [1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1]
    return frame.assign(unexplained=unexplained, other_steps=[0.0, 2.0, np.nan, np.nan] * 4)


def released():
    frame = rows(31, task=tuple(GROUPS), method=("rest", "dresd"))
    largest = np.where(frame.method == "rest", frame.index / 100, 0.9)
    sums = {"steps": frame.passes, "distance": frame.drafts / 100, "largest": largest, "accepted_exactly": frame.depth}
    return frame.assign(**sums)


def test_real_runs_are_counted_by_method_and_the_bias_is_a_mean_over_steps():
    rules, real = released(), checked()
    found = numbers.whose_output(rules, real)
    bias = {f"bias_{rule}_mean": per(rules, "distance", "steps", method=rule) for rule in ("rest", "dresd")}
    assert found == pytest.approx(bias | {
        "bias_rest_largest": rules.largest[rules.method == "rest"].max(),
        "lossless_prompts": 16, "lossless_unexplained": 4, "rest_unexplained": 1, "dresd_unexplained": 3,
        "replay_runs": 8, "replay_mismatches": 8,
    })  # fmt: skip


def test_on_the_papers_own_prompts_a_draft_model_pays_for_its_passes():
    found = {key: number.value for key, number in numbers.papers_own_prompts(COSTS, 1.4).items()}
    published = papers_prompts.all_rows()
    costs = np.array([0.0, *np.interp(range(1, 257), list(COSTS), list(COSTS.values()))])
    slope = (COSTS[12] - COSTS[4]) / 8
    costs[12:] = COSTS[12] + slope * np.arange(257 - 12)  # the last line goes on
    for kind, part in (("code", published["set"] == "humaneval"), ("chat", published.task == "spec-bench/mt_bench")):
        own = published[part & (published.temperature == 0)]
        outputs = ["task", "prompt", "turn", "seed"]
        speeds = {}
        shared = set.intersection(
            *(set(map(tuple, own[own.method == name][outputs].to_numpy())) for name in ("REST", "SpecDec"))
        )
        for name in ("REST", "SpecDec"):
            runs = [
                row for row in own[own.method == name].to_dict("records") if tuple(row[c] for c in outputs) in shared
            ]
            of_step = 1.4 * sum(row["passes"] for row in runs)
            of_widths = sum(row["widths"] @ costs[: len(row["widths"])] for row in runs)
            speeds[name] = sum(row["tokens"] for row in runs) / (of_step if name == "SpecDec" else of_widths)
        expected = speeds["REST"] / speeds["SpecDec"]
        assert found[f"public_rest_over_specdec_{kind}_gpu"] == pytest.approx(expected)


def timed():
    frame = rows(32, task=tuple(GROUPS), method=("plain", "REST"))
    return frame.assign(seconds=frame.drafts / 10, draft_s=frame.drafted / 1e4)


def test_what_drafting_takes_is_that_of_rest():
    frame = timed()
    found = {key: number.value for key, number in numbers.drafting_times(frame).items()}
    share, token = (per(frame, "draft_s", below, method="REST") for below in ("seconds", "tokens"))
    assert found == pytest.approx({"rest_draft_time_share": share, "rest_draft_ms_token": 1e3 * token})


def test_the_functions_give_the_numbers_that_the_chapter_publishes():
    both, recorded = compared(), at_scale()
    given = [
        numbers.same_stores(both),
        numbers.growing_stores(both),
        numbers.whose_text(design()),
        numbers.whose_answers(alpaca_rows()),
        numbers.own_answers(alpaca_rows(), COSTS),
        of_shapes(shapes()),
        numbers.on_code_alpaca(code_alpaca(), COSTS, 0.5),
        numbers.stored_twice(*stored_twice()),
        numbers.rest_alone(alone()),
        numbers.recorded_speeds(recorded, AUTHORS),
        numbers.recorded_growth(recorded, COSTS),
        of_variants(recorded),
        numbers.whose_output(released(), checked()),
        numbers.papers_own_prompts(COSTS, 1.4),
        numbers.drafting_times(timed()),
    ]
    keys = [key for table in given for key in table]
    assert len(keys) == len(set(keys))
    assert set(keys) | {"alignment_documents", "alpaca_answered", "combined_over_best"} == set(tables.tables()["03"])
