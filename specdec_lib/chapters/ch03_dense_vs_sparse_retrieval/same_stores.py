"""REST and DReSD on the same stores: which rows are compared with which, and how far one method leads the other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval import measures
from specdec_lib.datastores import SuffixIndex
from specdec_lib.experiments.statistics import Interval

#: Versions of REST that DReSD is compared with, by their names in recorded values.
REST_VERSIONS = {"rest": "REST", "rest_from_1": "REST, n from 1", "as_run": "REST, as DReSD ran it"}
#: Those whose leads and lines are recorded, by the name in what is recorded.
VERSIONS = (("rest", "REST"), ("from_1", "REST, n from 1"))
#: Of the sizes at which lines may cross, as a logarithm.
LARGEST = 12
#: Stores of ordinary text; the others hold answers.
TEXT_STORES = ("packages", "stdlib")
#: What a setting is: a store of some size, how the outputs were decoded, and the kind of prompts.
SETTING = ["stored", "store", "way", "group"]

Pairs = list[tuple[pd.DataFrame, pd.DataFrame]]


class Quantity(NamedTuple):
    """What two methods are compared in: a rate of :data:`.measures.RATES`, and whether drafts of equal depth are needed."""

    rate: str
    equal_depth: bool


#: By words. A rate that is taken over drafts alone compares only where the drafts have the same depth.
QUANTITIES = {
    "acceptance rate": Quantity("acceptance_rate", True),
    "accepted tokens a draft": Quantity("accepted_per_draft", True),
    "passes with a draft": Quantity("share_with_draft", False),
    "tokens per pass": Quantity("tokens_per_pass", False),
}


def of_method(counts: pd.DataFrame, method: str) -> pd.DataFrame:
    """The rows of one method."""
    return counts[counts.method == method]


def at_largest(counts: pd.DataFrame) -> pd.DataFrame:
    """The rows of every store at its largest size."""
    return counts[counts.stored == counts.groupby("store").stored.transform("max")]


def of_setting(
    counts: pd.DataFrame, index: SuffixIndex, store: str, way: str, group: str
) -> dict[str, pd.DataFrame] | None:
    """The rows of REST and of DReSD with all of a store; None where they were not counted."""
    rows = counts[(counts.store == store) & (counts.stored == index.store.count)]
    rows = rows[(rows.way == way) & (rows.group == group)]
    return {method: of_method(rows, method) for method in ("REST", "DReSD")} if len(rows) else None


def settings(counts: pd.DataFrame, ours: str, theirs: str) -> Pairs:
    """The rows of two methods, one pair a setting (:data:`SETTING`)."""
    by_setting = [dict(list(of_method(counts, method).groupby(SETTING))) for method in (ours, theirs)]
    return [(by_setting[0][key], by_setting[1][key]) for key in by_setting[0]]


def against(counts: pd.DataFrame, version: str, words: str) -> Interval:
    """DReSD over a version of REST in one of :data:`QUANTITIES`, the geometric mean over the settings."""
    quantity = QUANTITIES[words]
    theirs = f"{version}, 6 deep" if quantity.equal_depth else version
    return measures.geometric_mean(settings(counts, "DReSD", theirs), quantity.rate)


def ratios(counts: pd.DataFrame) -> dict[str, dict[str, Interval]]:
    """DReSD over every version of REST, by words of the quantity and by version."""
    return {words: {name: against(counts, name, words) for name in REST_VERSIONS.values()} for words in QUANTITIES}


def rates(counts: pd.DataFrame) -> pd.DataFrame:
    """One row a setting and method: the number of ``prompts`` that count, tokens per pass, acceptance ``rate`` and share of
    passes with a draft."""
    return pd.DataFrame(
        {
            "group": group,
            "way": way,
            "store": store,
            "method": method,
            "prompts": measures.telling(rows),
            "tokens_per_pass": measures.rate(rows),
            "rate": measures.rate(rows, "acceptance_rate"),
            "drafting": measures.rate(rows, "share_with_draft"),
        }
        for (group, way, store, method), rows in counts.groupby(["group", "way", "store", "method"], sort=False)
    )


def leads(counts: pd.DataFrame, version: str) -> list[Interval]:
    """Tokens per pass of DReSD over those of a version of REST, one ratio a setting."""
    return [measures.ratio(*pair) for pair in settings(counts, "DReSD", version)]


def lead_by_size(counts: pd.DataFrame, version: str = "REST") -> tuple[list[int], list[Interval]]:
    """Sizes of a store, and DReSD's tokens per pass over those of a version of REST with each."""
    by_size = list(counts.groupby("stored"))
    ratio_at = [measures.ratio(of_method(rows, "DReSD"), of_method(rows, version)) for _, rows in by_size]
    return [int(size) for size, _ in by_size], ratio_at


def lead_rows(counts: pd.DataFrame) -> pd.DataFrame:
    """One row a store, way of decoding and size with the number of prompts that count and the lead over two versions of
    REST."""
    found = []
    for (store, way), rows in counts.groupby(["store", "way"], sort=False):
        sizes, over_rest = lead_by_size(rows)
        _, over_one = lead_by_size(rows, "REST, n from 1")
        prompts = [measures.telling(of_method(part, "DReSD")) for _, part in rows.groupby("stored")]
        for size, count, rest, one in zip(sizes, prompts, over_rest, over_one, strict=True):
            found.append({"store": store, "way": way, "size": size, "prompts": count, "rest": rest, "one": one})
    return pd.DataFrame(found)


# What the chapter records ----------------------------------------------------------------------------------------


def _percent(ratio: Interval) -> float | None:
    """How much more than 1 a ratio is, in percent; None where there is no ratio."""
    percent = 100 * (ratio.value - 1)
    return percent if abs(percent) < float("inf") else None


def _recorded_gain(name: str, ratio: Interval) -> dict[str, float | str]:
    """A gain as a number, as a text with its unit, and as a text with its sign."""
    percent = _percent(ratio)
    if percent is None:
        return {f"gain_{name}": "not available", f"gain_{name}_text": "(no rate)", f"said_{name}": "not available"}
    return {f"gain_{name}": percent, f"gain_{name}_text": f"{percent:.0f} %", f"said_{name}": f"{percent:+.0f}"}


def recorded_ratios(counts: pd.DataFrame) -> dict[str, Interval | float | str]:
    """What is recorded of :func:`ratios` with the largest stores."""
    found: dict[str, Interval | float | str] = {}
    for key, version in REST_VERSIONS.items():
        rate, length, drafting, tokens = (against(counts, version, words) for words in QUANTITIES)
        found |= {f"equal_rate_dresd_over_{key}": rate, f"equal_length_dresd_over_{key}": length}
        found[f"drafting_dresd_over_{key}"] = drafting
        found[f"said_ratio_{key}"] = f"{tokens:.2f}"
        for what, ratio in (("rate", rate), ("length", length), ("tpf", tokens)):
            found |= _recorded_gain(f"{what}_{key}", ratio)
    return found


def recorded_filter(counts: pd.DataFrame, ways: Sequence[str], group: str) -> dict[str, Interval]:
    """With DReSD's next-token filter over without it, and its tokens per pass from the target's own answers."""
    found = {}
    for way in ways:
        rows = counts[counts.way == way]
        pairs = settings(rows, "DReSD", "DReSD, no filter")
        found[f"filter_on_over_off_{way}"] = measures.geometric_mean(pairs)
        found[f"filter_accuracy_{way}"] = measures.geometric_mean(pairs, "accepted_per_node")
        own = rows[(rows.store == "own") & (rows.group == group)]
        found[f"dresd_own_{way}_tpf"] = measures.rate(of_method(own, "DReSD"))
    return found


def recorded_leads(counts: pd.DataFrame) -> dict[str, Interval | int | str]:
    """In how many settings one method leads with its whole interval, and the mean and the least lead."""
    found: dict[str, Interval | int | str] = {"dense_largest": int(counts.stored.max())}
    for key, version in VERSIONS:
        each, suffix = leads(counts, version), "" if key == "rest" else f"_{key}"
        found |= {
            f"lead_mean_{key}": measures.geometric_mean(settings(counts, "DReSD", version)),
            f"lead_least_{key}": measures.least(each),
            f"dresd_leads{suffix}": sum(lead.low > 1 for lead in each),
            f"dresd_behind{suffix}": sum(lead.high < 1 for lead in each),
            "dresd_settings": len(each),
        }
    return found


def recorded_growth(counts: pd.DataFrame) -> dict[str, Interval | int | str]:
    """DReSD over REST with stores of ordinary text at their smallest and at their largest size: the geometric mean over
    stores and ways of decoding, all prompts together; and the ends of every store's sizes."""
    rows = counts[counts.store.isin(TEXT_STORES)]
    found: dict[str, Interval | int | str] = {}
    for store, each in counts.groupby("store"):
        name = str(store).replace(" ", "_")
        found |= {f"stored_least_{name}": int(each.stored.min()), f"stored_most_{name}": int(each.stored.max())}
    for end, which in (("first", "min"), ("last", "max")):
        there = rows[rows.stored == rows.groupby("store").stored.transform(which)]
        found |= {f"growth_{end}_least": int(there.stored.min()), f"growth_{end}_most": int(there.stored.max())}
        for key, version in VERSIONS:
            each = [part for _, part in there.groupby(["store", "way"])]
            mean = measures.geometric_mean([(of_method(part, "DReSD"), of_method(part, version)) for part in each])
            found |= {f"growth_{end}_{key}": mean, f"said_growth_{end}_{key}": f"{mean:.2f}"}
    return found


def recorded_lines(counts: pd.DataFrame, published: Mapping[str, str]) -> dict[str, Interval | int | str]:
    """Where straight lines through the rates in the logarithm of the size lead: the ratio at the size of DReSD's code store,
    and the logarithm of the size at which the lines cross.

    The lines are those of one store of ordinary text. For the target's own answers, which DReSD's code store holds, there is
    the ratio alone. Without several sizes there is no line.
    """
    size = 1e6 * float(published["store-code-tokens"])
    rows = counts[counts.store == "stdlib"]
    found: dict[str, Interval | int | str] = {
        "lead_sizes": rows.stored.nunique(),
        "lead_line_from": int(rows.stored.max()),
    }
    own = counts[counts.store == "own"]
    for key, version in VERSIONS:
        name, several = f"said_lead_line_own_{key}", own.stored.nunique() > 1
        line = measures.lead_at(of_method(own, "DReSD"), of_method(own, version), size) if several else None
        found[name] = "not available" if line is None else f"{line:.2f}"
        names = (f"lead_line_19m_{key}", f"lead_ends_{key}", f"said_lead_line_{key}", f"lead_ends_tokens_{key}")
        if rows.stored.nunique() < 2:
            found |= dict.fromkeys(names, "not available")
            continue
        pair = of_method(rows, "DReSD"), of_method(rows, version)
        line, ends = measures.lead_at(*pair, size), measures.lead_ends(*pair)
        # The size itself to two digits, from its logarithm; lines that hardly differ cross nowhere that counts.
        tokens = Interval(*(float(f"{10**end:.2g}") if 0 <= end < LARGEST else math.nan for end in ends))
        crossing = tokens if tokens.known else "not available"
        found |= dict(zip(names, (line, ends, f"{line:.2f}", crossing), strict=True))
    return found
