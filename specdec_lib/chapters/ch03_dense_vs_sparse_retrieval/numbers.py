"""Chapter 3: the numbers that it saves, one function per experiment; each takes rows and gives its numbers by key.

Rows are those of ``growing_stores``, named by its ``named`` and with the ``group`` of their prompts, ``code`` or ``editing``.
Intervals are over prompts.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pandas as pd

from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval import alpaca, codealpaca, duplicates, released_sampling
from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval import growing_stores as retrieval
from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval.growing_stores import largest, rate, ratio, speed, speed_ratio
from specdec_lib.experiments.runs import papers_prompts, results
from specdec_lib.experiments.runs.results import ACCEPTANCE, PER_PASS, SPEED, of_rates
from specdec_lib.experiments.statistics.intervals import Interval

#: What a number is called where a version of REST is compared.
NAMES = {"REST": "rest", "REST, n from 1": "rest_from_1", "REST, as DReSD ran it": "as_run"}
WAYS = ("greedy", "nucleus")
VALUES = {"rate": ACCEPTANCE, "tpf": PER_PASS}
#: Gains of an aligned store on code that pages and claims read: axis, method, value, ways of decoding.
GAINS = (
    ("response", "DReSD", "rate", ("greedy",)),
    ("sampling", "DReSD", "tpf", ("nucleus",)),
)
#: Sizes of the datastores that REST reports, in GB: code (table 2), and chat (its released code, and table 4).
CODE_GB, CHAT_GB = {"09gb": 0.9, "27gb": 27}, {"465mb": 0.465, "12gb": 12}
#: How many times as large REST's store of code is as its store of chats.
CODE_OVER_CHAT = CODE_GB["27gb"] / CHAT_GB["12gb"]
#: Sets of the papers' own prompts, by kind.
PUBLIC = {"code": "humaneval", "chat": "spec-bench/mt_bench"}


def same_stores(compared: pd.DataFrame) -> dict[str, Any]:
    """Experiment 1: DReSD over the versions of REST, with the largest stores and in every setting."""
    largest_stores = retrieval.largest_of_each(compared)
    over = {version: retrieval.dresd_over(largest_stores, version) for version in NAMES}
    found: dict[str, Any] = {"outputs": len(compared.drop_duplicates([*results.OUTPUT, "way"]))}
    found |= {f"tpf_dresd_over_{name}": over[version]["tpf"] for version, name in NAMES.items()}
    found["equal_rate_dresd_over_rest"] = over["REST"]["rate"]
    for version, ending in {"REST": "", "REST, n from 1": "_from_1"}.items():
        each = retrieval.dresd_leads(compared, version)
        if version == "REST":
            found["dresd_settings"] = len(each)
        found[f"dresd_leads{ending}"] = sum(lead.low > 1 for lead in each)
        found[f"dresd_behind{ending}"] = sum(lead.high < 1 for lead in each)
    return found


def growing_stores(compared: pd.DataFrame) -> dict[str, Any]:
    """Experiment 2: the lead with the smallest and the largest store of other people's code."""
    return {
        "growth_first_rest": retrieval.geometric_mean(retrieval.at_end(compared, "REST", "min")),
        "growth_last_rest": retrieval.geometric_mean(retrieval.at_end(compared, "REST", "max")),
        "growth_last_from_1": retrieval.geometric_mean(retrieval.at_end(compared, "REST, n from 1", "max")),
        "growth_change_rest": retrieval.lead_change(compared, "REST"),
        "growth_last_most": compared[compared.store == "packages"].stored.max(),
    }


def on_code_alpaca(rows: pd.DataFrame, gpu: Mapping[int, float], draft_step: float) -> dict[str, Any]:
    """DReSD's own setting, rows named by ``codealpaca.named``: the largest store, at a GPU's cost of a pass.

    ``draft_step`` is the cost of a step with a draft model.
    """
    found: dict[str, Any] = {"codealpaca_prompts": rows.prompt.nunique(), "codealpaca_stored": rows.stored.max()}
    found["codealpaca_draft_step"] = draft_step
    every = papers_prompts.with_draft_model_step(rows, gpu, draft_step)
    costed = codealpaca.of_largest(every)
    for version, name in NAMES.items():
        over = retrieval.dresd_over(costed, version)
        found |= {f"codealpaca_{value}_dresd_over_{name}": lead for value, lead in over.items()}
    greedy, nucleus = (retrieval.by_way_and_method(costed)[way] for way in WAYS)
    for version in NAMES:
        pairs = [(methods["DReSD"], methods[version]) for methods in (greedy, nucleus)]
        name = f"dresd_over_{NAMES[version]}_gpu"
        found[f"codealpaca_speed_{name}"] = retrieval.geometric_mean(pairs, SPEED)
        if version != "REST, n from 1":  # DReSD's authors did not run it
            each = zip(WAYS, pairs, strict=True)
            found |= {f"codealpaca_speed_{way}_{name}": ratio(*pair, SPEED) for way, pair in each}
        paid = [(codealpaca.with_search_cost(ours), theirs) for ours, theirs in pairs]
        found[f"codealpaca_speed_searched_{name}"] = retrieval.geometric_mean(paid, SPEED)
    for way, methods in zip(WAYS, (greedy, nucleus), strict=True):
        pair = methods["DReSD"], methods["DReSD, no filter"]
        found[f"codealpaca_filter_{way}"] = ratio(*pair, retrieval.PER_NODE)
        found[f"codealpaca_filter_rate_{way}"] = ratio(*pair, ACCEPTANCE)
    deep, wide = (f"DReSD, {shape}" for shape in (retrieval.DEEP, retrieval.WIDE))
    found["codealpaca_deep_over_wide_greedy_gpu"] = ratio(greedy[deep], greedy[wide], SPEED)
    found["codealpaca_wide_over_deep_nucleus_gpu"] = ratio(nucleus[wide], nucleus[deep], SPEED)
    found["codealpaca_deep_over_matched_greedy_gpu"] = ratio(greedy[deep], greedy["DReSD"], SPEED)
    found["codealpaca_wide_over_matched_nucleus_gpu"] = ratio(nucleus[wide], nucleus["DReSD"], SPEED)
    found["codealpaca_wide_over_rest_nucleus_gpu"] = ratio(nucleus[wide], nucleus["REST"], SPEED)
    found["codealpaca_dresd_over_plain_gpu"] = rate(greedy[deep], SPEED)
    for rival in ("PLD", "REST", "SpecDec"):
        found[f"codealpaca_{rival.lower()}_over_plain_gpu"] = rate(greedy[rival], SPEED)
        found[f"codealpaca_best_dresd_over_{rival.lower()}_gpu"] = ratio(greedy[deep], greedy[rival], SPEED)
    for rival in ("PLD", "SpecDec"):  # over REST it is among those above
        found[f"codealpaca_matched_dresd_over_{rival.lower()}_gpu"] = ratio(greedy["DReSD"], greedy[rival], SPEED)
    return found | {f"codealpaca_long_over_short_{name}_gpu": value for name, value in longer_drafts(every).items()}


def longer_drafts(rows: pd.DataFrame) -> dict[str, Interval]:
    """Speed of DReSD's single drafts of 20 tokens over that of 6, greedily, from rows with their ``cost``.

    ``high``: with the largest store, on the prompts on which ten drafts of 6 have an acceptance rate above the median. ``low``: on
    the others. ``high_over_low``: the one over the other. ``large_over_small``: with the largest store over with the smallest.
    """
    dense = rows[(rows.way == "greedy") & (rows.stored > 0)]
    large, small = largest(dense), dense[dense.stored == dense.stored.min()]
    matched = large[large.method == "DReSD"].set_index("prompt")
    accepted = (matched.accepted / matched.depth).fillna(0)
    above = large.prompt.isin(accepted.index[accepted > accepted.median()])

    def lengths(part: pd.DataFrame) -> list[pd.DataFrame]:
        return [part[part.method == f"DReSD, 1 x {length}"] for length in (20, 6)]

    def change(*pairs: list[pd.DataFrame]) -> Interval:
        return of_rates([*pairs[0], *pairs[1]], lambda a, b, c, d: (a / b) / (c / d), SPEED)

    high, low = lengths(large[above]), lengths(large[~above])
    return {
        "high": ratio(*high, SPEED),
        "low": ratio(*low, SPEED),
        "high_over_low": change(high, low),
        "large_over_small": change(lengths(large), lengths(small)),
    }


def stored_twice(once: pd.DataFrame, twice: pd.DataFrame, found: pd.DataFrame) -> dict[str, Any]:
    """A tenth of the documents twice: tokens per pass over those with each document once, of which ``once`` are the rows of
    ``codealpaca.counts``, and the mean reciprocal rank of stored states with either store, rows of ``duplicates.ranks``."""
    before = retrieval.by_way_and_method(once[once.stored == duplicates.SIZE])
    after = retrieval.by_way_and_method(twice)
    by_document = found.assign(prompt=found.document.astype(str))
    return {
        f"twice_{method.lower()}_tpf": retrieval.geometric_mean(
            [(after[way][method], before[way][method]) for way in WAYS]
        )
        for method in ("REST", "DReSD")
    } | {
        f"{name}_mrr": rate(by_document[by_document.method == stored], ("rank", "states"))
        for name, stored in {"once": duplicates.ONCE, "twice": duplicates.TWICE}.items()
    }


def whose_text(design: pd.DataFrame) -> dict[str, Any]:
    """Experiment 3: what each alignment of the stored text gives."""

    def cell(way: str, method: str = "DReSD", **how: Any) -> pd.DataFrame:
        return retrieval.cell(design, way, method, **how)

    found: dict[str, Any] = {}
    for axis, method, value, ways in GAINS:
        for way in ways:
            gain = retrieval.alignment_ratio(design, way, method, axis, value=VALUES[value])
            found[f"{axis}_{method.lower()}_{way}_{value}_gain"] = gain
    # Text of the prompts' kind, over all kinds of prompts.
    for method, way, (name, value) in itertools.product(("REST", "DReSD"), WAYS, VALUES.items()):
        same, other = (
            pd.concat([cell(way, method, group=group, prompt=aligned) for group in design.group.unique()])
            for aligned in (True, False)
        )
        found[f"kind_{method.lower()}_{way}_{name}_gain"] = ratio(same, other, value)
    # Stores of sampled answers: they are aligned with sampled outputs alone.
    several, one = (
        {way: cell(way, answers=answers, sampling=way == "nucleus") for way in WAYS}
        for answers in (retrieval.SEVERAL, 1)
    )
    found["sampling_nucleus_over_greedy_after"] = ratio(several["nucleus"], several["greedy"], ACCEPTANCE)
    found["sampling_nucleus_gain"] = retrieval.alignment_ratio(design, "nucleus", "DReSD", "sampling", value=ACCEPTANCE)
    found["coverage_nucleus_over_greedy"] = of_rates(
        [several["nucleus"], one["nucleus"], several["greedy"], one["greedy"]], lambda a, b, c, d: (a / b) / (c / d)
    )
    decoded = design[(design.way == "greedy") & (design.method == "DReSD") & (design.group == "code")]
    effects = retrieval.alignment_effects(decoded[decoded.answers == 1])
    # Whose answers are stored is compared on Alpaca.
    return found | {f"alignment_{name}": effects[name] for name in ("product", "without_prompt", "without_sampling")}


def whose_answers(rows: pd.DataFrame) -> dict[str, Any]:
    """Experiment 3 on Alpaca's prompts, rows of ``alpaca.counts``: a store of the target's answers over one of those that come with
    the prompts."""
    own, theirs = (rows[rows.answers == whose] for whose in (alpaca.OWN, alpaca.THEIRS))
    found: dict[str, Any] = {
        "alpaca_prompts": rows.prompt.nunique(),
        "alpaca_own_tokens": own.stored.max(),
        "alpaca_their_tokens": theirs.stored.max(),
    }
    other = retrieval.by_way_and_method(theirs)
    for way, methods in retrieval.by_way_and_method(own).items():
        for method, (name, value) in itertools.product(methods, VALUES.items()):
            gain = ratio(methods[method], other[way][method], value)
            found[f"alpaca_{method.lower()}_{way}_{name}_gain"] = gain
    for name, stored in {"own": own, "their": theirs}.items():
        greedy, nucleus = (retrieval.by_way_and_method(stored)[way] for way in WAYS)
        for method, sampled in nucleus.items():
            same = greedy[method][greedy[method].prompt.isin(sampled.prompt)]
            found[f"alpaca_{method.lower()}_nucleus_over_greedy_{name}"] = ratio(sampled, same)
    return found


def own_answers(rows: pd.DataFrame, gpu: Mapping[int, float]) -> dict[str, Any]:
    """Speeds on Alpaca's prompts with the target's own answers stored, rows of ``alpaca.counts``, at a GPU's cost of a pass:
    greedily over plain decoding, and DReSD, in the shape that its authors match to REST's, over REST."""
    own = retrieval.by_way_and_method(rows[rows.answers == alpaca.OWN])
    methods = ("DReSD", "REST")
    return {f"alpaca_own_{name.lower()}_over_plain_gpu": speed(own["greedy"][name], gpu) for name in methods} | {
        f"alpaca_own_{way}_dresd_over_rest_gpu": speed_ratio(*(own[way][name] for name in methods), gpu) for way in WAYS
    }


def draft_shapes(shapes: Mapping[str, Mapping[str, pd.DataFrame]], gpu: Mapping[int, float]) -> dict[str, Any]:
    """Experiment 4: shapes of DReSD's draft by way of decoding and name (:func:`in_ways`), at a GPU's cost of a pass."""
    deep, wide = retrieval.DEEP, retrieval.WIDE
    greedy, nucleus = (shapes[way] for way in WAYS)
    found: dict[str, Any] = {
        "shape_deep_over_wide_greedy_gpu": speed_ratio(greedy[deep], greedy[wide], gpu),
        "shape_wide_over_deep_nucleus_gpu": speed_ratio(nucleus[wide], nucleus[deep], gpu),
    }
    rivals = ("REST", "REST, n from 1")
    for way, best in {"greedy": deep, "nucleus": wide}.items():
        for rival in rivals:
            lead = speed_ratio(shapes[way][best], shapes[way][rival], gpu)
            found[f"best_shape_{way}_over_{NAMES[rival]}_gpu"] = lead
        for name, source in {"dresd": retrieval.MATCHED, "pld": "PLD"}.items():
            lead = speed_ratio(shapes[way]["both"], shapes[way][source], gpu)
            found[f"combined_{way}_over_{name}_gpu"] = lead
    found["composed_dresd_own_over_plain_gpu"] = speed(greedy[deep], gpu)
    found["composed_rest_own_over_plain_gpu"] = speed(greedy["REST"], gpu)
    found["composed_dresd_own_over_rest_own_gpu"] = found["best_shape_greedy_over_rest_gpu"]
    shortest, longest = (greedy[f"10 x {n}"] for n in (retrieval.LENGTHS[0], retrieval.LENGTHS[-1]))
    found["length_rate_last_over_first"] = ratio(longest, shortest, ACCEPTANCE)
    found["length_tpf_last_over_first"] = ratio(longest, shortest)
    return found


def rest_alone(alone: pd.DataFrame) -> dict[str, Any]:
    """Experiment 5: REST by itself with stores of growing size, and its variants on code with the largest."""
    code, editing = (alone[alone.group == group] for group in ("code", "editing"))
    tried = retrieval.by_way_and_method(largest(code))
    greedy, published = tried["greedy"], retrieval.PUBLISHED
    sizes = list(retrieval.by_size(code[(code.way == "greedy") & (code.method == published)]).values())
    edited = largest(editing[(editing.way == "greedy") & (editing.method == published)])
    found: dict[str, Any] = {
        "size_first_code_greedy": rate(sizes[0]).value,
        "size_last_code_greedy": rate(sizes[-1]).value,
        "rest_code_tpf": rate(sizes[-1]),
        "rest_editing_tpf": rate(edited),
    }
    found["select_trie_over_random_greedy"] = ratio(greedy[published], greedy["random selection, 8 x 8"])
    # At random fewer nodes are drafted: other continuations may begin alike.
    drawn = tried["nucleus"]["random selection, 8 x 8"]
    found["select_trie_over_random_nucleus_rest"] = speed_ratio(
        tried["nucleus"][published], drawn, retrieval.own_pass_costs()
    )
    released = greedy["released selection"]
    found["select_released_over_trie_greedy"] = ratio(released, greedy[published])
    found["select_released_over_trie_nodes"] = ratio(released, greedy[published], retrieval.NODES)
    found["tree_nodes_over_rows"] = rate(greedy[published], ("drafted", "row_tokens"))
    suffixes = (greedy[f"suffixes up to {n}, lexicographic"] for n in (2, 16))
    found["ngram_2_over_16_greedy"] = ratio(*suffixes)
    found["nodes_8_over_64_nodes"] = ratio(greedy["8 nodes"], greedy["64 nodes"], retrieval.NODES)
    return found


def recorded_speeds(at_scale: pd.DataFrame, authors: Mapping[str, Interval]) -> dict[str, Any]:
    """REST's speed on recorded outputs at its own cost of a step: with the largest store here, and on the line to REST's sizes.

    ``authors``: what the result files of REST's authors say (:func:`authors_run`), with which chat is counted in Llama's tokens.
    """
    code, sampled, ours = (
        retrieval.case_rows(at_scale, case) for case in (retrieval.CODE, retrieval.CODE_SAMPLED, retrieval.CHAT)
    )
    chat = retrieval.in_llama_tokens(ours, authors)
    step, chat_step = retrieval.own_step_cost(), authors["step"].value
    longer = ours.tokens.sum() / chat.tokens.sum()  # our tokens for one of Llama's
    code_tokens = {name: retrieval.released_tokens(size) for name, size in CODE_GB.items()}
    chat_tokens = {name: retrieval.released_tokens(size, longer) for name, size in CHAT_GB.items()}

    def line(rows: pd.DataFrame, tokens: float, cost: float = 1.0) -> Interval:
        return retrieval.extrapolate_to_size(rows, tokens, then=lambda rate: rate / cost)

    return {
        "real_authors_speedup": authors["speed_up"],
        "real_code_speedup_rest": retrieval.speed_at_step_cost(largest(code), step),
        "real_code_nucleus_speedup_rest": retrieval.speed_at_step_cost(largest(sampled), step),
        "real_chat_speedup_rest": retrieval.speed_at_step_cost(largest(chat), chat_step),
        # In our tokens, as the authors' answers say nothing of how long Llama's are in these.
        "real_chat_nucleus_speedup_rest": retrieval.speed_at_step_cost(
            largest(retrieval.sampled_chats(at_scale)), chat_step
        ),
        **{f"real_code_line_{name}": line(code, tokens) for name, tokens in code_tokens.items()},
        "real_code_line_speedup_rest": line(code, code_tokens["27gb"], step),
        "real_code_nucleus_line_speedup_rest": line(sampled, code_tokens["27gb"], step),
        "real_chat_line_speedup_rest": line(chat, chat_tokens["12gb"], chat_step),
        "real_chat_line_465mb_speedup_rest": line(chat, chat_tokens["465mb"], chat_step),
    }


def recorded_growth(at_scale: pd.DataFrame, gpu: Mapping[int, float]) -> dict[str, Any]:
    """What larger stores give on recorded outputs, in tokens per pass and in speed on REST's own card and, on code, on a GPU."""
    kinds = {
        kind: retrieval.case_rows(at_scale, case)
        for kind, case in {"code": retrieval.CODE, "chat": retrieval.CHAT}.items()
    }
    steps = {kind: retrieval.steps(rows) for kind, rows in kinds.items()}
    everywhere = [largest(retrieval.case_rows(at_scale, case)) for case in at_scale.task.unique()]
    code = kinds["code"]
    found: dict[str, Any] = {
        "real_code_growth": ratio(largest(code), code[code.stored == code.stored.min()]),
        "real_code_step_least": min(steps["code"]),
    }
    found |= {f"real_{kind}_last_step": each[-1] for kind, each in steps.items()}
    sampled = {"code": retrieval.case_rows(at_scale, retrieval.CODE_SAMPLED), "chat": retrieval.sampled_chats(at_scale)}
    for ending, both in {"": kinds, "_nucleus": sampled}.items():
        pair = retrieval.with_stores_in_proportion(both["code"], both["chat"], CODE_OVER_CHAT)
        found[f"real_code_over_chat{ending}"] = ratio(*pair)
        grown = retrieval.growth_of_speed(both["chat"], retrieval.own_pass_costs())
        found[f"real_chat{ending}_growth_speed_rest"] = grown.speed
    found["real_gain_least"] = min(map(rate, everywhere))
    step = retrieval.own_step_cost()
    found["real_speedup_least_rest"] = min(retrieval.speed_at_step_cost(rows, step) for rows in everywhere)
    for card, curve in {"gpu": gpu, "rest": retrieval.own_pass_costs()}.items():
        grown = retrieval.growth_of_speed(kinds["code"], curve)
        found[f"real_code_growth_speed_{card}"] = grown.speed
        found[f"real_code_growth_speed_over_tokens_{card}"] = grown.speed_over_tokens
    return found


def recorded_variants(at_scale: pd.DataFrame) -> dict[str, Any]:
    """Suffixes, nodes and stored text on recorded outputs, with the largest stores."""
    code, chat = (largest(retrieval.case_rows(at_scale, case)) for case in (retrieval.CODE, retrieval.CHAT))

    def variant(name: str) -> pd.DataFrame:
        return retrieval.case_rows(at_scale, retrieval.CODE, variant=name)

    nodes = {count: variant(f"{count} nodes") for count in (8, 48, 192, 256)}
    found: dict[str, Any] = {
        "real_code_share_short": rate(code, ("matched_2", "matched")),
        "real_code_share_matched": rate(code, ("matched", "passes")),
        "real_code_share_beyond_16": rate(variant("suffixes up to 32"), ("matched_17", "passes")),
    }
    short = {n: variant(f"suffixes up to {n}") for n in (2, 4, 6)}
    found["real_code_ngram_2_over_16"] = ratio(short[2], code)
    own_card = retrieval.own_pass_costs()
    for n, rows in short.items():
        found[f"real_code_ngram_{n}_over_16_rest"] = speed_ratio(rows, code, own_card)
    for many, few in ((48, 8), (256, 48)):
        found[f"real_code_nodes_{many}_over_{few}"] = ratio(nodes[many], nodes[few])
    for many, few in ((48, 8), (192, 48), (256, 192)):
        found[f"real_code_nodes_{many}_over_{few}_rest"] = speed_ratio(nodes[many], nodes[few], own_card)
    for name, case in {"vicuna": retrieval.CHAT, "llama": "Llama-2-7B-chat, AlpacaEval"}.items():
        stores = (retrieval.case_rows(at_scale, case, store) for store in (retrieval.OWN_TEXT, retrieval.GPT4_TEXT))
        found[f"real_{name}_own_over_gpt4"] = ratio(*stores, retrieval.CHARACTERS)
    found["real_code_trie_over_random_rest"] = speed_ratio(code, variant("random selection"), own_card)
    found["real_code_released_over_trie_nodes"] = ratio(variant("released selection"), code, retrieval.NODES)
    looked_up = pd.concat([code, chat])
    return found | {"matches_cut": looked_up.cut.sum(), "matches_looked_up": looked_up.passes.sum()}


def whose_output(rules: pd.DataFrame, checked: pd.DataFrame) -> dict[str, Any]:
    """How far the released rules are from the target's distribution, and what real runs and their replays differ in."""
    found: dict[str, Any] = {
        f"bias_{rule}_mean": released_sampling.bias(rules[rules.method == rule]).mean.value
        for rule in released_sampling.RULES
    }
    found["bias_rest_largest"] = released_sampling.bias(rules[rules.method == "rest"]).largest
    found |= {"lossless_prompts": len(checked), "lossless_unexplained": checked.unexplained.sum()}
    for method in ("REST", "DReSD"):
        found[f"{method.lower()}_unexplained"] = checked[checked.method == method].unexplained.sum()
    replays = checked.other_steps.dropna()
    return found | {"replay_runs": len(replays), "replay_mismatches": int(replays.sum())}


def papers_own_prompts(gpu: Mapping[int, float], draft_step: float) -> dict[str, Any]:
    """REST on SmolLM2's answers to its own paper's prompts: greedy over sampled, and on a GPU over a draft model."""
    found = {
        f"public_greedy_over_sampled_{kind}": papers_prompts.greedy_over_sampled(part, 0.8, "REST")
        for kind, part in PUBLIC.items()
    }
    for kind, part in PUBLIC.items():
        rows = papers_prompts.with_draft_model_step(papers_prompts.answers(part), gpu, draft_step)
        found[f"public_rest_over_specdec_{kind}_gpu"] = results.ratio(rows, "REST", "SpecDec", SPEED)
    return found


def drafting_times(timed: pd.DataFrame) -> dict[str, Interval]:
    """What drafting takes of REST's time, and milliseconds of it per token."""
    rest = timed[timed.method == "REST"]
    return {
        "rest_draft_time_share": results.rate(rest, ("draft_s", "seconds")),
        "rest_draft_ms_token": of_rates([rest], lambda seconds: 1e3 * seconds, ("draft_s", "tokens")),
    }
