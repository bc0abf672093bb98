"""What chapter 3 records of its experiments on alignment, shape and the variants of REST, by name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval import dense_at_scale, measures, rest_at_scale
from specdec_lib.decoding.results import Generation, sums
from specdec_lib.experiments.published_numbers import gpu_prices
from specdec_lib.experiments.recorded_runs import Recording, gain, interval, prompts_of
from specdec_lib.experiments.retrieval import Bias
from specdec_lib.experiments.statistics import Counts, Interval, pooled_rate

Values = dict[str, Any]
#: Counts of both methods by name, with a store that lacks an alignment and with one that has it.
Pair = tuple[Mapping[str, pd.DataFrame], Mapping[str, pd.DataFrame]]


def text(value: float, spec: str) -> str:
    """A number for prose, or "not available" where there is none."""
    return format(value, spec) if math.isfinite(value) else "not available"


# Whose text ------------------------------------------------------------------------------------------------------


def alignment(pairs: Mapping[tuple[str, str], Pair]) -> pd.DataFrame:
    """One row an axis, way of decoding and method: both rates before and after, and the ratios.

    Parameters
    ----------
    pairs : mapping
        By axis and way of decoding.
    """
    rows = []
    for (axis, way), (before, after) in pairs.items():
        for method in before:
            old, new = before[method], after[method]
            rows.append(
                {
                    "axis": axis,
                    "way": way,
                    "method": method,
                    "before": measures.rate(old, "acceptance_rate"),
                    "after": measures.rate(new, "acceptance_rate"),
                    "gain": measures.ratio(new, old, "acceptance_rate"),
                    "before_tpf": measures.rate(old),
                    "after_tpf": measures.rate(new),
                    "gain_tpf": measures.ratio(new, old),
                }
            )
    return pd.DataFrame(rows)


def recorded_alignment(rows: pd.DataFrame) -> Values:
    """The gains of :func:`alignment` as ratios and as texts, and the rates themselves."""
    found: Values = {}
    for row in rows.itertuples():
        axis, _, editing = row.axis.partition("_")
        end = f"_{editing}" if editing else ""
        key = f"{axis}_{row.method.lower()}_{row.way}{end}"
        found |= {f"{key}_rate_gain": row.gain, f"{key}_tpf_gain": row.gain_tpf}
        found[key] = text(row.gain.value - 1, "+.0%")
        found[f"{key}_tpf_text"] = f"{row.gain_tpf:.2f}"
        for when in ("before", "after"):
            share = getattr(row, when).value
            found[f"{key}_{when}"] = text(share, ".1%") if editing else float(np.nan_to_num(share))
            found[f"{key}_{when}_tpf"] = getattr(row, f"{when}_tpf").value
    return found


def recorded_sampled_stores(design: pd.DataFrame) -> Values:
    """What sampled answers in the store give to sampled and to greedy decoding, with the target's own answers to prompts of
    the replayed kind.

    Parameters
    ----------
    design : DataFrame
        Of :func:`.dense_at_scale.alignment_counts`, for the ways ``greedy`` and ``nucleus``.
    """
    own = design[design.prompt_aligned & design.response_aligned]

    def counts(method: str, way: str, written: str, answers: int = 1) -> pd.DataFrame:
        """Outputs decoded in one way, with a store of answers that were written in one way."""
        rows = own[(own.method == method) & (own.way == way) & (own.answers == answers)]
        return rows[rows.sampling_aligned == (way == written)]

    several = {way: counts("DReSD", way, "nucleus", dense_at_scale.SEVERAL) for way in ("greedy", "nucleus")}
    once = {way: counts("DReSD", way, "nucleus") for way in several}
    after = measures.ratio(several["nucleus"], several["greedy"], "acceptance_rate")
    found: Values = {
        "sampling_nucleus_over_greedy_after": after,
        "said_sampling_after": f"{after:.2f}",
        "sampling_nucleus_gain": measures.ratio(
            once["nucleus"], counts("DReSD", "nucleus", "greedy"), "acceptance_rate"
        ),
        "coverage_nucleus_over_greedy": measures.of_rates(
            [several["nucleus"], once["nucleus"], several["greedy"], once["greedy"]],
            lambda more, one, more_greedy, one_greedy: (more / one) / (more_greedy / one_greedy),
        ),
    }
    for method in ("REST", "DReSD"):
        found[f"sampling_{method.lower()}_nucleus_over_greedy_before"] = measures.ratio(
            counts(method, "nucleus", "greedy"), counts(method, "greedy", "greedy")
        )
    return found


def effects(design: pd.DataFrame) -> dict[tuple[str, str], dict[str, Interval]]:
    """:func:`.dense_at_scale.alignment_effects` by way of decoding and method."""
    return {
        (way, method): dense_at_scale.alignment_effects(rows)
        for (way, method), rows in design[design.answers == 1].groupby(["way", "method"], sort=False)
    }


def recorded_design(found: Mapping[tuple[str, str], Mapping[str, Interval]], documents: int) -> Values:
    """The effects on DReSD, and the number of prompts that each store answers."""
    values: Values = {"alignment_documents": documents}
    for way, end in (("greedy", ""), ("nucleus", "_nucleus")):
        values |= {f"alignment_{name}{end}": effect for name, effect in found[way, "DReSD"].items()}
    return values


# Shape -----------------------------------------------------------------------------------------------------------

#: Names of the shapes in recorded values.
SHAPES = {"3 x 20": "deep", "10 x 10": "wide", "REST, 64 nodes": "rest"}


def shape_rows(by_way: Mapping[str, Mapping[str, pd.DataFrame]]) -> pd.DataFrame:
    """One row a way of decoding and shape; the acceptance rate is the mean over outputs, as in DReSD's tables."""
    return pd.DataFrame(
        {
            "way": way,
            "shape": shape,
            "prompts": measures.telling(counts),
            "nodes": measures.rate(counts, "nodes_per_draft").value,
            "prompt_rate": measures.mean_over_outputs(counts, "acceptance_rate"),
            "accepted": measures.rate(counts, "accepted_per_draft"),
            "tokens_per_pass": measures.rate(counts),
        }
        for way, counts_of in by_way.items()
        for shape, counts in counts_of.items()
        if shape != "REST, n from 1"
    )


def recorded_shapes(by_way: Mapping[str, Mapping[str, pd.DataFrame]]) -> Values:
    """Tokens per pass of each shape, and ratios of speeds at a GPU's prices of passes."""
    price, found = gpu_prices(), {}
    for way, counts in by_way.items():
        for shape, name in SHAPES.items():
            found[f"shape_{name}_{way}"] = measures.rate(counts[shape]).value
    greedy, nucleus = by_way["greedy"], by_way["nucleus"]
    deep, wide, rest, from_1 = "3 x 20", "10 x 10", "REST, 64 nodes", "REST, n from 1"
    pairs = {
        "shape_deep_over_wide_greedy": (greedy[deep], greedy[wide]),
        "shape_wide_over_deep_nucleus": (nucleus[wide], nucleus[deep]),
        "best_shape_greedy_over_rest": (greedy[deep], greedy[rest]),
        "best_shape_nucleus_over_rest": (nucleus[wide], nucleus[rest]),
        "best_shape_greedy_over_rest_from_1": (greedy[deep], greedy[from_1]),
        "best_shape_nucleus_over_rest_from_1": (nucleus[wide], nucleus[from_1]),
    }
    found |= {f"{name}_gpu": measures.speed_ratio(*pair, price) for name, pair in pairs.items()}
    for way, counts in by_way.items():
        found[f"shape_deep_over_wide_{way}"] = f"{measures.ratio(counts[deep], counts[wide]):.3f}"
    return found | {
        "composed_dresd_own_over_plain_gpu": measures.speed(greedy[deep], price),
        "composed_rest_own_over_plain_gpu": measures.speed(greedy[rest], price),
        "composed_rest_own_from_1_over_plain_gpu": measures.speed(greedy[from_1], price),
        "composed_dresd_own_over_rest_own_gpu": measures.speed_ratio(greedy[deep], greedy[rest], price),
        "composed_dresd_own_over_rest_own_from_1_gpu": measures.speed_ratio(greedy[deep], greedy[from_1], price),
    }


def recorded_combined(joined: Mapping[str, pd.DataFrame]) -> Values:
    """Tokens per pass of one tree of both sources over those of the better one (``"both"`` over the best other)."""
    alone = max((rows for name, rows in joined.items() if name != "both"), key=lambda rows: measures.rate(rows).value)
    gain = measures.ratio(joined["both"], alone)
    return {"combined_over_best": gain, "combined_text": f"{gain:.2f}"}


def recorded_lengths(swept: Mapping[tuple[str, str], Mapping[int, pd.DataFrame]]) -> Values:
    """Both ends of the sweeps over length and number of drafts.

    Parameters
    ----------
    swept : mapping
        By what grows, ``"length"`` or ``"number"``, and way of decoding: counts by length or number.
    """
    found: Values = {}
    for (what, way), counts in swept.items():
        first, last = list(counts.values())[0], list(counts.values())[-1]
        found |= {f"{what}_{way}_first": measures.rate(first).value, f"{what}_{way}_last": measures.rate(last).value}
        if way == "greedy":
            for end, rows in (("first", first), ("last", last)):
                share = measures.mean_over_outputs(rows, "acceptance_rate").value
                found[f"{what}_rate_{end}"] = float(np.nan_to_num(share))
    first, *_, last = swept["length", "greedy"].values()
    found["length_rate_last_over_first"] = measures.ratio(last, first, "acceptance_rate")
    found["length_tpf_last_over_first"] = measures.ratio(last, first)
    return found


# REST by itself --------------------------------------------------------------------------------------------------

#: Names of the variants in recorded values.
NAMES = {
    "as published": "trie",
    "random selection, 8 x 8": "random",
    "released selection": "released",
    "n from 1": "from_1",
    "as DReSD ran it": "as_dresd",
    "uniform subsample": "uniform",
}


def recorded_sizes(
    stored: Sequence[int], grown: Mapping[tuple[str, str], Mapping[int, pd.DataFrame]], published: Mapping[str, Any]
) -> Values:
    """REST with stores of growing size.

    Parameters
    ----------
    stored : sequence of int
        Tokens of each store.
    grown : mapping
        By way of decoding and kind of prompts, counts by size.
    published : mapping
        Rows of REST's numbers.
    """
    found: Values = {"size_first": stored[0], "size_last": stored[-1]}
    for (way, kind), counts in grown.items():
        rates = [measures.rate(rows).value for rows in counts.values()]
        found |= {f"size_first_{kind}_{way}": rates[0], f"size_last_{kind}_{way}": rates[-1]}
        if (way, kind) == ("greedy", "code"):
            found["size_increases"] = sum(b > a for a, b in zip(rates, rates[1:], strict=False))
            found["size_steps"] = len(rates) - 1
    for kind in dict.fromkeys(kind for _, kind in grown):
        greedy, nucleus = (list(grown[way, kind].values())[-1] for way in ("greedy", "nucleus"))
        found[f"size_greedy_over_nucleus_{kind}"] = measures.ratio(greedy, nucleus)
        found[f"rest_{kind}_tpf"] = measures.rate(greedy)
    for name, row in (("small", "t2-09gb-m"), ("large", "t2-27gb-m"), ("random", "t3-random-greedy")):
        found[f"published_{name}"] = published[f"rest-{row}"]["value"]
    return found


def variant_rows(tried: Mapping[str, Mapping[str, pd.DataFrame]]) -> pd.DataFrame:
    """One row a variant of REST with its rates by way of decoding, and the microseconds that drafting takes."""
    return pd.DataFrame(
        {
            "variant": variant,
            **{way: measures.rate(tried[way][variant]) for way in tried},
            **{f"{way}_prompts": measures.telling(tried[way][variant]) for way in tried},
            **{f"{way}_nodes": measures.rate(tried[way][variant], "nodes_per_draft").value for way in tried},
            "microseconds": 1e6 * measures.rate(tried["greedy"][variant], "draft_seconds_per_token").value,
        }
        for variant in tried["greedy"]
    )


def recorded_variants(tried: Mapping[str, Mapping[str, pd.DataFrame]]) -> Values:
    """Tokens per pass and nodes of the variants of REST, and their ratios."""
    found: Values = {}
    for variant, name in NAMES.items():
        for way in tried:
            found[f"select_{name}_{way}"] = measures.rate(tried[way][variant]).value
        found[f"select_{name}_nodes"] = float(
            np.nan_to_num(measures.rate(tried["greedy"][variant], "nodes_per_draft").value)
        )
    published, random = "as published", "random selection, 8 x 8"
    for way in tried:
        found[f"select_trie_over_random_{way}"] = measures.ratio(tried[way][published], tried[way][random])
    released, exact = tried["greedy"]["released selection"], tried["greedy"][published]
    found["select_released_over_trie_greedy"] = measures.ratio(released, exact)
    found["select_released_over_trie_nodes"] = measures.ratio(released, exact, "nodes_per_draft")
    found["tree_nodes_over_rows"] = measures.rate(exact, "nodes_per_row_token")
    return found


def recorded_ablations(
    by_ngram: Mapping[tuple[str, str], Mapping[int, pd.DataFrame]],
    by_nodes: Mapping[str, Mapping[int, pd.DataFrame]],
) -> Values:
    """REST by the longest suffix that is looked up and by the number of nodes.

    Parameters
    ----------
    by_ngram : mapping
        By way of decoding and choice among too many occurrences, counts by the longest suffix.
    by_nodes : mapping
        By way of decoding, counts by the number of nodes.
    """
    found: Values = {}
    for (way, subsample), counts in by_ngram.items():
        end = "_uniform" if subsample == "uniform" else ""
        found |= {f"ngram_{n}_{way}{end}": measures.rate(rows).value for n, rows in counts.items()}
        if not end:
            for n, rows in counts.items():
                nodes = measures.rate(rows, "nodes_per_draft").value
                found[f"ngram_{n}_{way}_nodes"] = float(np.nan_to_num(nodes))
    for way, counts in by_nodes.items():
        found |= {f"nodes_{limit}_{way}": measures.rate(rows).value for limit, rows in counts.items()}
    greedy = by_ngram["greedy", "lexicographic"]
    found |= {f"ngram_{n}_over_16_greedy": measures.ratio(greedy[n], greedy[16]) for n in (2, 4, 6)}
    found["ngram_2_over_16_text"] = f"{found['ngram_2_over_16_greedy']:.2f}"
    limits = by_nodes["greedy"]
    found["nodes_8_over_64_nodes"] = measures.ratio(limits[8], limits[64], "nodes_per_draft")
    return found


# Sampling and losslessness ---------------------------------------------------------------------------------------


def recorded_bias(by_rule: Mapping[str, Bias]) -> Values:
    """Distance of the released sampling rules from the target, and the tokens that they accept."""
    found: Values = {f"bias_{rule}_largest": bias.largest for rule, bias in by_rule.items()}
    for rule, bias in by_rule.items():
        found |= {
            f"bias_{rule}_{field}": getattr(bias, field).value for field in ("mean", "accepted", "accepted_exactly")
        }
    return found


def recorded_losslessness(compared: pd.DataFrame, replays: Sequence[bool]) -> Values:
    """How many real runs differ from plain decoding, for which reason, and from their replays.

    Parameters
    ----------
    compared : DataFrame
        One row a method and way of decoding: ``outputs``, how many ``differ``, and of these by ``rounding``.
    replays : sequence of bool
        For each real run with the text of plain decoding, whether its replay took the same steps.
    """
    unexplained = (compared.differ - compared.rounding).groupby(compared.method).sum()
    found: Values = {
        "lossless_prompts": int(compared.outputs.sum()),
        "lossless_mismatches": int(compared.differ.sum()),
        "lossless_unexplained": int(unexplained.sum()),
        "replay_runs": len(replays),
        "replay_mismatches": len(replays) - sum(replays),
    }
    return found | {f"{method.lower()}_unexplained": int(count) for method, count in unexplained.items()}


# Time ------------------------------------------------------------------------------------------------------------

Timings = Mapping[str, Sequence[Sequence[Generation]]]


def times(timings: Timings, recordings: Sequence[Recording]) -> pd.DataFrame:
    """One row a method: tokens a second, speed-up over plain decoding and what drafting takes, with intervals over prompts.

    Parameters
    ----------
    timings : mapping
        By method, ``"plain"`` among them, its runs for each repeat
        (:func:`specdec_lib.experiments.recorded_runs.time_methods`).
    recordings : sequence of Recording
        What was decoded.
    """
    every = {method: [run for runs in repeats for run in runs] for method, repeats in timings.items()}
    some = [recording for _ in timings["plain"] for recording in recordings]
    rows = []
    for method, runs in every.items():
        spent = [sums([run]) for run in runs]
        drafting = Counts([s["draft_seconds"] for s in spent], [s["step_seconds"] for s in spent])
        rows.append(
            {
                "method": method,
                "tokens_per_pass": interval(runs, some),
                "rate": interval(runs, some, "tokens_per_second"),
                "speedup": gain(runs, every["plain"], some, "tokens_per_second"),
                "draft_ms": interval(runs, some, "draft_ms_per_token"),
                "draft_share": pooled_rate(drafting, prompts_of(some)),
            }
        )
    return pd.DataFrame(rows)


def recorded_times(rows: pd.DataFrame, recordings: Sequence[Recording], rest: Sequence[Sequence[Generation]]) -> Values:
    """Speed-ups, and what drafting takes with REST, with intervals over the prompts.

    Parameters
    ----------
    rows : DataFrame
        Of :func:`times`.
    recordings : sequence of Recording
        What was decoded.
    rest : sequence
        The runs of REST for each repeat.
    """
    of = rows.set_index("method")
    names = {"REST": "rest", "REST, 16 nodes": "rest_narrow", "DReSD": "dresd"}
    found: Values = {f"{name}_speedup": of.speedup[method].value for method, name in names.items()}
    found |= {f"said_{name}_speedup": f"{of.speedup[method]:.2f}" for method, name in names.items()}
    found |= {"rest_draft_share": of.draft_share["REST"].value}
    found["dresd_draft_share"] = of.draft_share["DReSD"].value
    counts = pd.concat(
        measures.of_runs(recordings, runs).assign(
            seconds=[r.stats["seconds"] - r.stats["prefill_seconds"] for r in runs]
        )
        for runs in rest
    )
    found["rest_draft_ms_token"] = measures.of_rates([counts], lambda rate: 1e3 * rate, "draft_seconds_per_token")
    found["rest_draft_time_share"] = measures.rate(counts, "share_of_time")
    return found


# REST on recorded outputs ----------------------------------------------------------------------------------------

#: Values of :func:`.rest_at_scale.headlines` that the prose says, by their names there.
SAID = {
    "chat_line": "real_chat_line_12gb",
    "chat_characters": "real_chat_line_12gb_characters",
    "chat_curve": "real_chat_curve_12gb",
    "chat_ours": "real_chat_ours_line_12gb",
    "authors": "real_authors_speedup",
    "code_09gb": "real_code_line_09gb",
    "code_27gb": "real_code_line_27gb",
    "code_curve": "real_code_curve_27gb",
    "over_chat": "real_code_over_chat",
    "chat_speed": "real_chat_line_speedup_rest",
    "code_speed": "real_code_line_speedup_rest",
}


def recorded_at_scale(
    counts: pd.DataFrame, authors: Mapping[str, Sequence[float]], published: Mapping[str, Any]
) -> Values:
    """Every value that the claims on REST need, "not available" where its case or variant was not run, and the texts."""
    headlines = rest_at_scale.headlines(counts, authors)
    sized = ("speedup_rest", "line_speedup_rest", "growth", "step_least", "last_step")
    wanted = {f"real_{kind}_{what}" for kind in ("code", "code_nucleus", "chat") for what in sized}
    found: Values = dict.fromkeys(sorted(wanted | set(rest_at_scale.HEADLINES)), "not available") | headlines
    found |= {f"said_{name}": f"{headlines[key]:.2f}" for name, key in SAID.items()}
    found["said_short"] = f"{headlines['real_code_share_short']:.0%}"
    found |= {"authors_tokens": authors["tokens"][0], "authors_characters": authors["characters"][0]}
    for name, row in (("chat_speedup", "t4-7b-large"), ("short", "fig13-short")):
        found[f"rest_published_{name}"] = published[f"rest-{row}"]["value"]
    return found


def scale_curves(counts: pd.DataFrame) -> dict[str, dict[str, tuple[list[int], list[Interval]]]]:
    """Tokens per pass of REST by size of the store: by kind of text and by case."""
    curves: dict[str, dict[str, tuple[list[int], list[Interval]]]] = {}
    for case in counts.case.unique():
        rows = rest_at_scale.select(counts, case)
        by_size = measures.by_size(rows)
        curves.setdefault(rows.kind.iloc[0], {})[f"REST, {case}"] = (list(by_size), list(by_size.values()))
    return curves
