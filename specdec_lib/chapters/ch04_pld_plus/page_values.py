"""The numbers that chapter 4 records, section by section, by the names that other pages and the ledger of claims use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from transformers import PreTrainedModel

from specdec_lib import methods
from specdec_lib.chapters.ch04_pld_plus import attribution, copying_comparison, known_answers
from specdec_lib.chapters.ch04_pld_plus.copying_comparison import speed_gain
from specdec_lib.experiments import draft_costs, recorded_runs, statistics
from specdec_lib.experiments import input_guided as guided
from specdec_lib.experiments.metrics import pooled, speedups
from specdec_lib.experiments.overlap import overlap
from specdec_lib.experiments.pass_costs import step_seconds
from specdec_lib.experiments.published_numbers import published
from specdec_lib.experiments.recorded_runs import Recording, Runs, gain, rates, select
from specdec_lib.experiments.statistics import Interval
from specdec_lib.heads.induction import InductionHeads

Values = dict[str, Any]
#: How the name of a recorded value ends, by task; None is all of them.
ENDS: dict[str | None, str] = {
    "summarisation": "summarisation",
    "code editing": "code",
    "short text editing": "short",
    "long text editing": "long",
    "multi-turn": "turns",
    None: "all",
}
#: Rules of the sweep over draft lengths, and their short names.
LENGTH_RULES = {"PLD, as released": "pld", "PLD, partial drafts": "pldt", "PLD+ (a)": "a", "PLD+ (h)": "h"}
#: Thresholds on the cosine that are tried, and how recorded names write them.
THRESHOLDS: dict[float | None, str] = {None: "none", -0.75: "m075", -0.5: "m05", 0.0: "0", 0.5: "05", 0.75: "075"}
#: Shortest accepted spans that attribute.
SPANS = (2, 5, 8)
_SCORES = ("precision", "recall", "f1", "exact")


def heads_found(found: InductionHeads, chosen: Sequence[tuple[int, int]], layer: int) -> Values:
    """What the search for induction heads and for the layer gave."""
    ranked, (blocks, each) = found.ranked(), found.peaks.shape
    strong = [pair for pair in ranked if found.peaks[pair] >= 0.5]
    return {
        "heads_total": blocks * each,
        "heads_credited": len(ranked),
        "heads_strong": len(strong),
        "heads_chosen": len(chosen),
        "copied_tokens": found.copied,
        "layer_chosen": layer,
        "layers": blocks,
    }


def tokens_per_pass(recordings: Sequence[Recording], runs: Mapping[str, Runs], prefix: str) -> Values:
    """Tokens per pass of each method on each task, on all, and on all outputs without a loop at their end."""
    values = {}
    for row in guided.by_task(recordings, runs):
        end = ENDS[None if row["task"] == "all" else row["task"]]
        for method in runs:
            values[f"{prefix}_{methods.slug(method)}_{end}"] = statistics.told(row[method])
            if end == "all":
                values[f"{prefix}_{methods.slug(method)}_unlooped"] = statistics.told(row[f"{method}*"])
    return values


def ratios(
    compared: Mapping[str, Mapping[str | None, Interval]], priced: Mapping[str, Mapping[str | None, Interval]]
) -> Values:
    """Ratios of tokens per pass, and of speeds at the card's prices of passes, on each task and on all."""
    values: Values = {}
    for name, by_task in compared.items():
        for task in by_task:
            values[f"{name}_{ENDS[task]}"] = by_task[task]
            values[f"{name}_{ENDS[task]}_gpu"] = priced[name][task]
        values[f"{name}_text"] = f"{by_task[None]:.2f}"
        values[f"{name}_text_gpu"] = f"{priced[name][None]:.2f}"
    return values


def length_shares(cold: Mapping[str, Mapping[str, Runs]], recordings: Sequence[Recording]) -> Values:
    """How much of the lead of PLD+ over PLD as released goes once both draft equally many tokens, as a text."""
    values: Values = {}
    base = rates(cold["paper"]["PLD"], recordings)["all"]
    for short in ("h", "a"):
        own, level = (rates(cold[how][f"PLD+ ({short})"], recordings)["all"] for how in ("paper", "equal"))
        share = (own - level) / (own - base) if own > base else float("nan")
        values[f"length_share_{short}"] = f"{share:.0%}" if share == share else "not available"
    return values


def draft_lengths(
    recordings: Sequence[Recording], swept: Mapping[str, Mapping[int, Runs]], prices: Mapping[int, float]
) -> Values:
    """The shortest and the longest drafts of each rule, and the best length of PLD as released."""
    values: Values = {}
    for name, short in LENGTH_RULES.items():
        lengths = list(swept[name])
        for which, length in (("first", lengths[0]), ("last", lengths[-1])):
            found = guided.rates_of(recordings, swept[name][length])
            values[f"k_{which}_{short}"] = statistics.told(found["all"])
            values[f"k_{which}_{short}_summarisation"] = statistics.told(found["summarisation"])
        values[f"k_last_over_first_{short}"] = gain(swept[name][lengths[-1]], swept[name][lengths[0]], recordings)
    by_length = {k: rates(runs, recordings)["all"] for k, runs in swept["PLD, as released"].items()}
    best = max(by_length, key=lambda k: by_length[k])
    values |= {"k_best_pld": best, "k_best_pld_rate": statistics.told(by_length[best])}
    values |= {"k_first": lengths[0], "k_last": lengths[-1]}
    hidden = swept["PLD+ (h)"]
    for name, (more, fewer) in {"k_70_over_10_h_gpu": (70, 10), "k_100_over_70_h_gpu": (100, 70)}.items():
        there = more in hidden and fewer in hidden
        values[name] = speed_gain(hidden[more], hidden[fewer], recordings, prices) if there else "not available"
    return values


def spans(recordings: Sequence[Recording], long: Runs, short: Runs) -> Values:
    """Whether long drafts gain more where longer spans are accepted."""
    lengths, gains, places = copying_comparison.spans_and_gains(long, short)
    prompts = recorded_runs.prompts_of([recordings[i] for i in places])
    return {"span_gain_correlation": copying_comparison.rank_correlation(lengths, gains, prompts)}


def sampled_over_greedy(
    sampled: Sequence[Recording], hot: Mapping[str, Runs], greedy: Sequence[Recording], cold: Mapping[str, Runs]
) -> Values:
    """Tokens per pass of each rule on sampled outputs over those on greedy outputs to the same prompts."""
    place = {(r.task, r.prompt.id, r.turn): i for i, r in enumerate(greedy)}
    same = [place[r.task, r.prompt.id, r.turn] for r in sampled]
    return {
        f"t1_over_t0_{name}_all": gain(hot[name], [cold[name][i] for i in same], sampled)
        for name in ("h", "a", "pld", "rest")
    }


def sampled_conversation(
    many: Sequence[Recording],
    runs: Mapping[str, Runs],
    few: Sequence[Recording],
    live: Mapping[str, Runs],
    prices: Mapping[int, float],
) -> Values:
    """Conversation, sampled: the speed-up of REST less that of PLD+ (h), and PLD+ (h) over SpecDec."""

    def turns(recordings: Sequence[Recording], each: Runs) -> list[Any]:
        return select(each, recordings, lambda r: r.task == "multi-turn")

    rest, own = (copying_comparison.priced(turns(many, runs[name]), prices) for name in ("rest", "h"))
    prompts = [r.prompt.id for r in guided.of_task(many, "multi-turn")]
    hidden, drafted = (turns(few, live[name]) for name in ("PLD+ (h)", "SpecDec"))
    return {
        "t1_rest_minus_h_turns_gpu": statistics.difference_of_rates(rest, own, prompts),
        "t1_h_over_specdec_turns_gpu": speed_gain(hidden, drafted, guided.of_task(few, "multi-turn"), prices),
    }


def over_fastest(
    many: Sequence[Recording],
    runs: Mapping[str, Runs],
    few: Sequence[Recording],
    live: Mapping[str, Runs],
    prices: Mapping[int, float],
) -> Values:
    """Each variant of PLD+ over whichever other method is fastest on a task, and (h) over SpecDec."""
    values: Values = {"t0_h_over_specdec_all_gpu": speed_gain(live["PLD+ (h)"], live["SpecDec"], few, prices)}
    others = {"PLD": runs["pld"], "PLD, partial drafts": runs["pldt"], "REST": runs["rest"]}
    for short, method in (("h", "PLD+ (h)"), ("a", "PLD+ (a)")):
        tried = [(many, others | {method: runs[short]}), (few, {name: live[name] for name in ("SpecDec", method)})]
        for task, ratio in copying_comparison.over_fastest(method, tried, prices).items():
            values[f"t0_{short}_over_best_{ENDS[task]}_gpu"] = ratio
    return values


def occurrences(recordings: Sequence[Recording], counted: Sequence[tuple[int, int]]) -> Values:
    """At how many tokens PLD+ (h) would have more accepted than PLD with partial drafts, and at how many fewer."""
    won, lost = zip(*counted, strict=True)
    ratio = statistics.pooled_rate(statistics.Counts(won, lost), recorded_runs.prompts_of(recordings))
    return {"choice_won": sum(won), "choice_lost": sum(lost), "choice_won_over_lost": ratio}


def head_sets_tried(
    recordings: Sequence[Recording], by_set: Mapping[str, Runs], own: Runs, drawn: Mapping[Any, Runs]
) -> Values:
    """PLD+ (a) with more and fewer of the best heads, and with heads drawn at random.

    Parameters
    ----------
    recordings : sequence of Recording
    by_set : mapping
        Runs by number of best heads, the largest of which are all credited ones, and with ``"every"`` head.
    own : runs
        With the chosen heads.
    drawn : mapping
        Runs of each random draw.
    """
    by_count = {name: rates(runs, recordings)["all"] for name, runs in by_set.items()}
    counts = [name for name in by_set if name != "every"]
    best = max(counts, key=lambda name: by_count[name])
    random = [rates(runs, recordings)["all"] for runs in drawn.values()]
    over_random = copying_comparison.gain_over_draws(own, list(drawn.values()), recordings)
    numbers = {
        "chosen": rates(own, recordings)["all"],
        "credited": by_count[counts[-1]],
        "every": by_count["every"],
        "one": by_count[counts[0]],
        "best": by_count[best],
        "random_low": min(random),
        "random_median": median(random),
        "random_high": max(random),
    }
    return {f"heads_rate_{name}": statistics.told(value) for name, value in numbers.items()} | {
        "heads_best": int(best),
        "random_draws_used": len(random),
        "heads_chosen_over_credited": gain(own, by_set[counts[-1]], recordings),
        "heads_chosen_over_every": gain(own, by_set["every"], recordings),
        "heads_chosen_over_random": over_random,
        "heads_chosen_over_random_text": f"{over_random:.2f}",
    }


def aggregations(
    recordings: Sequence[Recording],
    by_block: Mapping[tuple[int, str], Runs],
    by_set: Mapping[tuple[str, str], Runs],
) -> Values:
    """The chosen heads with the maximum over those of any one block and of the whole model, by maximum and by sum.

    Parameters
    ----------
    recordings : sequence of Recording
    by_block : mapping
        Runs by block and ``"max"`` or ``"sum"``.
    by_set : mapping
        Runs of the ``"chosen"`` and of ``"every"`` head, by the same.
    """
    values: Values = {
        f"{what}_{fold}": statistics.told(rates(runs, recordings)["all"]) for (what, fold), runs in by_set.items()
    }
    ours = by_set["chosen", "max"]
    for fold in ("max", "sum"):
        blocks = {block: rates(runs, recordings)["all"] for (block, how), runs in by_block.items() if how == fold}
        best = max(blocks, key=lambda block: blocks[block])
        values[f"block_best_{fold}"] = statistics.told(blocks[best])
        values[f"chosen_max_over_block_best_{fold}"] = gain(ours, by_block[best, fold], recordings)
        values[f"chosen_max_over_every_{fold}"] = gain(ours, by_set["every", fold], recordings)
    return values | {"chosen_max_over_chosen_sum": gain(ours, by_set["chosen", "sum"], recordings)}


def layers(recordings: Sequence[Recording], by_layer: Mapping[int, Runs], partial: Runs) -> Values:
    """PLD+ (h) by the layer whose states it compares; ``partial`` are runs of PLD with partial drafts."""
    rate = {layer: rates(runs, recordings)["all"] for layer, runs in by_layer.items()}
    best, last = max(rate, key=lambda layer: rate[layer]), max(rate)
    values: Values = {"layer_best": best, "layer_best_share": best / last}
    for name, layer in (("best", best), ("embeddings", 0), ("last", last), ("worst", min(rate, key=lambda i: rate[i]))):
        values[f"layer_rate_{name}"] = statistics.told(rate[layer])
    values["layer_rate_pld"] = statistics.told(rates(partial, recordings)["all"])
    for name, layer in (("embeddings", 0), ("last", last)):
        ratio = gain(by_layer[best], by_layer[layer], recordings)
        values |= {f"layer_best_over_{name}": ratio, f"layer_best_over_{name}_text": f"{ratio:.2f}"}
    return values


def averages(recordings: Sequence[Recording], averaged: Mapping[str, Runs]) -> Values:
    """Means of several states over single ones; ``averaged`` has runs by number of states, and ``"printed"``."""
    values: Values = {}
    for name, runs in averaged.items():
        values[f"average_{name}"] = statistics.told(rates(runs, recordings)["all"])
        values[f"average_{name}_over_1"] = gain(runs, averaged["1"], recordings)
    return values | {
        "average_6_over_2": gain(averaged["6"], averaged["2"], recordings),
        "average_3_over_1_text": f"{values['average_3_over_1']:.3f}",
    }


def thresholds(recordings: Sequence[Recording], refused: Mapping[float | None, Runs]) -> Values:
    """Thresholds on the cosine: tokens per pass, passes with a draft, and the ratio to no threshold."""
    values: Values = {}
    for theta, runs in refused.items():
        name, stats = f"threshold_{THRESHOLDS[theta]}", pooled(runs)
        values[name] = statistics.told(rates(runs, recordings)["all"])
        values[f"{name}_drafting"] = stats["calls_with_draft"] / max(stats["calls"], 1)
        values[f"{name}_over_none"] = gain(runs, refused[None], recordings)
    return values | {"threshold_075_over_none_text": f"{values['threshold_075_over_none']:.3f}"}


def times(timings: Mapping[str, Sequence[Runs]]) -> Values:
    """Speed-ups over plain decoding, drafting a step, and an average pass of PLD+ (h) over one that covers one token."""
    values: Values = {}
    for name, repeated in timings.items():
        each = zip(repeated, timings["plain"], strict=True)
        values[f"speedup_{methods.slug(name)}"] = median(speedups(a, b)["speedup_ratio_of_mean_rates"] for a, b in each)
    judged = ("plain", "PLD+ (h)", "SpecDec")
    stats = {name: pooled([run for runs in timings[name] for run in runs]) for name in judged}
    wide, narrow = (stats[name]["verify_seconds"] / stats[name]["calls"] for name in ("PLD+ (h)", "plain"))
    for name in ("PLD+ (h)", "SpecDec"):
        values[f"step_draft_ms_{methods.slug(name)}"] = stats[name]["draft_ms_per_step"]
    return values | {"wide_ratio": wide / narrow}


def proposals(spent: Sequence[Mapping[str, Any]]) -> Values:
    """Time of a proposal at the longest and at the shortest context."""
    lengths, values = [row["tokens"] for row in spent], {}
    for row in spent:
        name = methods.slug(row["method"])
        if row["tokens"] == max(lengths):
            values[f"draft_ms_{name}"] = row["median_ms"]
        if row["tokens"] == min(lengths):
            values[f"draft_ms_{name}_short"] = row["median_ms"]
    return values


def memory(spent: Sequence[Mapping[str, Any]], draft: PreTrainedModel, context: int) -> Values:
    """What is kept of a token of context, of the longest context by PLD+ (h), and what a draft model's weights take."""
    lengths = [row["tokens"] for row in spent]
    values: Values = {
        f"bytes_per_token_{methods.slug(row['method'])}": row["bytes_per_token"]
        for row in spent
        if row["tokens"] == max(lengths)
    }
    return values | {
        "context_longest": max(lengths),
        "context_shortest": min(lengths),
        "states_bytes": context * values["bytes_per_token_h"],
        "draft_model_bytes": sum(p.numel() * p.element_size() for p in draft.parameters()),
    }


def passes(spent: Sequence[Mapping[str, Any]], kept: Sequence[Mapping[str, Any]]) -> Values:
    """The target's pass at its longest context by what is kept of it, and a proposal's share of that pass."""
    context = max(row["tokens"] for row in kept)
    at = {row["capture"]: row for row in kept if row["tokens"] == context}
    beside = min(row["tokens"] for row in spent if row["tokens"] >= context)
    proposed = {row["method"]: row for row in spent if row["tokens"] == beside}
    values: Values = {"pass_ms_none": at["plain"]["median_ms"]}
    for name, row in proposed.items():
        values[f"pass_draft_ms_{methods.slug(name)}"] = row["median_ms"]
    for name, short in (("PLD+ (h)", "h"), ("PLD+ (a)", "a")):
        plain = at["plain"]["all_ms"]
        values[f"pass_ms_{short}"] = at[name]["median_ms"]
        values[f"proposal_share_{short}"] = draft_costs.time_ratio(proposed[name]["all_ms"], plain)
        values[f"pass_{short}_over_none"] = draft_costs.time_ratio(at[name]["all_ms"], plain)
    return values


def attributions(counted: Mapping[str, Mapping[tuple[str, int], list[attribution.Counts]]]) -> Values:
    """Scores of every set, method and span, and what longer spans change on QuoteSum."""
    values: Values = {}
    for name, each in counted.items():
        rows = {(row["method"], row["least"]): row for row in attribution.score(each)}
        for method, least in ((m, n) for m in ("PLD", "PLD+ (h)") for n in SPANS):
            row = rows.get((method, least), {})
            for key in _SCORES:
                value = row.get(key, float("nan"))
                values[f"attr_{name.lower()}_{methods.slug(method)}_{least}_{key}"] = statistics.told(value)
        if name == "QuoteSum":
            values |= _quotations(rows.get(("PLD+ (h)", 2)), each)
    return values


def _quotations(row: Mapping[str, Any] | None, each: Mapping[tuple[str, int], list[attribution.Counts]]) -> Values:
    values: Values = {
        f"quotesum_{key}_2": row[f"{key}_interval"] if row else "not available" for key in ("precision", "recall", "f1")
    }
    for key, below in (("precision", "attributed"), ("recall", "copied")):
        for longer, shorter in ((5, 2), (8, 5)):
            values[f"quotesum_{key}_{longer}_minus_{shorter}"] = (
                attribution.change(each["PLD+ (h)", longer], each["PLD+ (h)", shorter], below)
                if row
                else "not available"
            )
    return values


def answers(by_set: Mapping[str, Sequence[Mapping[str, Any]]], prices: Mapping[int, float]) -> Values:
    """Answers of large models and of people: what the best choice in hindsight and the pocket states give."""
    chat, rows = by_set["MT-Bench, Vicuna-7B v1.5"], by_set["all"]
    gains = {
        "states_over_pldt_mt": known_answers.gain(chat, "h_10", "partial_10"),
        "bound_over_pldt_mt": known_answers.gain(chat, "best_10", "partial_10"),
        "bound70_over_pld_mt": known_answers.gain(chat, "best_70", "pld_10"),
        "real_pld_mt_gpu": released_speed(chat, prices),
        "overlap_gain_correlation": copying_comparison.rank_correlation(
            [row["overlap"] for row in rows],
            [row["tokens"] / row["partial_10"] for row in rows],
            [(row["set"], row["prompt"]) for row in rows],
        ),
    }
    both = known_answers.BASE in by_set and known_answers.TUNED in by_set
    values: Values = {
        "known_answers": len(rows),
        "real_pld_base_over_tuned": known_answers.base_over_tuned(rows) if both else "not available",
    }
    for name, value in gains.items():
        values |= {name: value, f"{name}_text": f"{value:.2f}"}
    for rule, short in (("best_70", "bound70"), ("h_70", "states70"), ("best_10", "bound10"), ("h_10", "states10")):
        found = [
            known_answers.gain(each, rule, f"partial_{rule[-2:]}") for name, each in by_set.items() if name != "all"
        ]
        values[f"text_{short}_least"] = f"{min(found, key=lambda ratio: ratio.value):.2f}"
        values[f"text_{short}_most"] = f"{max(found, key=lambda ratio: ratio.value):.2f}"
    return values | {"paper_turns_factor": _paper_factor()}


def released_speed(rows: Sequence[Mapping[str, Any]], prices: Mapping[int, float]) -> Interval:
    """Speed-up of PLD as released on known answers: it drafts ten tokens or none."""
    verified = step_seconds(prices, 11) - 1
    cost = [row["pld_10"] + verified * row["pld_10_drafts"] for row in rows]
    counts = statistics.Counts([row["tokens"] for row in rows], cost)
    return statistics.pooled_rate(counts, [row["prompt"] for row in rows])


def _paper_factor() -> float:
    rows = published("pld_plus")
    return float(rows["pld-plus-t1-7b-h-turn"]["value"]) / float(rows["pld-plus-t1-7b-pld-turn"]["value"])


def own_overlap(recordings: Sequence[Recording], runs: Runs, tokenizer: Any) -> Values:
    """Rank correlation of the overlap of prompt and output with the tokens per pass, over the model's own outputs."""
    texts = [[tokenizer.decode(part) for part in (r.trace.prompt, r.trace.tokens)] for r in recordings]
    overlaps = [overlap(prompt, output) for prompt, output in texts]
    found = [(len(run.tokens) - 1) / max(len(run.steps), 1) for run in runs]
    value = copying_comparison.rank_correlation(overlaps, found, recorded_runs.prompts_of(recordings))
    return {"overlap_gain_correlation_own": value, "overlap_gain_correlation_own_text": f"{value:.2f}"}


def prompt_words(rows: Sequence[Mapping[str, Any]]) -> Values:
    """Words of the published sets' prompts over those of the paper's Table 9."""
    keys = {"summarisation": "summ", "code editing": "code", "short text editing": "short"}
    keys |= {"long text editing": "long", "multi-turn": "turn"}
    paper = published("pld_plus")
    return {
        f"words_{ENDS[row['task']]}_over_published": row["value"]
        / float(paper[f"pld-plus-t9-{keys[row['task']]}"]["value"])
        for row in rows
    }
