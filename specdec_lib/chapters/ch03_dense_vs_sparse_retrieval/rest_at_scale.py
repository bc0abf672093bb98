"""REST replayed on recorded outputs with stores of growing size: counts by prompt, the line through them, and prices.

The rows have counts by prompt, store and variant of REST, so that rates, their intervals and the price of the passes on any
machine can be computed from them without the texts (:mod:`.measures`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from transformers import PreTrainedTokenizerBase

from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval import measures
from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval.recorded_chats import Case
from specdec_lib.datastores import ShardedSuffixIndex, SuffixIndex
from specdec_lib.datastores.suffix_array import Match
from specdec_lib.decoding.replay import replay
from specdec_lib.decoding.results import Generation
from specdec_lib.drafters import Rest
from specdec_lib.experiments import stores
from specdec_lib.experiments.package_files import PackageFiles
from specdec_lib.experiments.published_numbers import gpu_prices, published
from specdec_lib.experiments.published_sets.replies import mt_bench_replies
from specdec_lib.experiments.retrieval import KeepsMatches, record_replies
from specdec_lib.experiments.statistics import Counts, Interval, pooled_rate, ratio_of_rates

#: Sizes of the stores, in tokens of the tokenizer in use; the largest only where there is as much text.
SIZES = (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 20_000_000)
#: Sizes of stores of shards, where downloaded packages are named.
LARGE_SIZES = (40_000_000, 100_000_000, 200_000_000)
#: Longest replayed output, in tokens.
LONGEST = 4000
#: REST as the released code of DReSD runs it.
AS_DRESD_RAN_IT: dict[str, Any] = {"max_ngram": 64, "min_ngram": 3, "selection": "released", "rows": 10}
#: What is tried on the largest store beside the published settings.
VARIANTS: dict[str, dict[str, Any]] = {
    **{f"{nodes} nodes": {"choices": nodes} for nodes in (8, 16, 32, 48, 128, 192, 256)},
    **{f"suffixes up to {n}": {"max_ngram": n} for n in (2, 4, 6, 32)},
    "random selection": {"selection": "random", "length": 8},
    "matches from one token": {"min_ngram": 1},
    "released selection": {"selection": "released"},
    "as DReSD ran it": AS_DRESD_RAN_IT,
}
PUBLISHED = "as published"
#: Cases whose variants are tried: greedy ones, one of each kind.
VARIED = ("Vicuna-7B v1.5, MT-Bench", "WizardCoder-15B, HumanEval")
#: Bytes a token of a released datastore: 2 of the token, 4 of the suffix array.
RELEASED_BYTES = 6
#: Matches of each chunk that the released code looks at.
RELEASED_MATCHES = 5000


#: What is kept of :func:`measures.counts`; the rest follows from no recorded output better than from those of the chapter.
KEPT = ("tokens", "passes", "drafts", "nodes", *measures.WIDTH_COLUMNS)


def _counts(run: Generation, matches: Sequence[Match], tokenizer: PreTrainedTokenizerBase) -> dict[str, float]:
    """What one replay adds to its prompt's row; matches are counted by their length in tokens."""
    found = measures.counts(run)
    lengths = [match.length for match in matches]
    return {
        **{name: found[name] for name in KEPT},
        "characters": len(tokenizer.decode(run.tokens[1:])),
        "matched_2": sum(2 <= length < 10 for length in lengths),
        "matched_10": sum(10 <= length <= 16 for length in lengths),
        "matched_17": sum(length > 16 for length in lengths),
        "cut": sum(match.stop - match.start > RELEASED_MATCHES for match in matches if match.length > 1),
    }


def _name(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def replay_counts(case: Case, drafter: Rest, tokenizer: PreTrainedTokenizerBase) -> Iterator[dict[str, Any]]:
    """Counts of the replays of REST on a case, a row a prompt; turns of one question are one prompt."""
    prompt_of = {reply.id: _name((reply.questions or (reply.id,))[0]) for reply in case.replies}
    keeping = KeepsMatches(drafter)
    found: dict[str, dict[str, float]] = {}
    for recording in record_replies(case.replies, tokenizer, LONGEST):
        keeping.matches.clear()
        added = _counts(replay(recording.trace, keeping), keeping.matches, tokenizer)
        row = found.setdefault(prompt_of[recording.prompt.id], dict.fromkeys(added, 0))
        for name, value in added.items():
            row[name] += value
    for prompt, row in found.items():
        yield {"case": case.name, "kind": case.kind, "decoding": case.decoding, "prompt": prompt, **row}


def case_counts(
    case: Case, tokenizer: PreTrainedTokenizerBase, sizes: Sequence[int] = SIZES
) -> Iterator[dict[str, Any]]:
    """Rows of counts of one case with every store: growing ones of its kind, and equally large ones of answers.

    Parameters
    ----------
    case : Case
    tokenizer : PreTrainedTokenizerBase
        Cuts outputs and stores into tokens.
    sizes : sequence of int
        Tokens; sizes of which there is not as much text are left out, and the largest is then all there is.
    """
    growing = list(_growing(case, tokenizer, sizes))
    for index in growing:
        yield from _rows(case, tokenizer, case.kind, index, PUBLISHED, {})
    largest = growing[-1]
    answers = {
        name: stores.text_store("at-scale-answers", tokenizer, max(sizes), texts())
        for name, texts in case.stores.items()
        if name != case.kind
    }
    if answers:
        size = min(index.store.count for index in answers.values())
        for name, index in {case.kind: largest, **answers}.items():
            yield from _rows(case, tokenizer, f"{name}, as many tokens", stores.first_part(index, size), PUBLISHED, {})


def variant_counts(
    case: Case, tokenizer: PreTrainedTokenizerBase, sizes: Sequence[int] = SIZES
) -> Iterator[dict[str, Any]]:
    """Rows of counts of one case with :data:`VARIANTS` on its largest store; arguments as for :func:`case_counts`."""
    *_, largest = _growing(case, tokenizer, sizes)
    for name, how in VARIANTS.items():
        yield from _rows(case, tokenizer, case.kind, largest, name, how)


def _growing(
    case: Case, tokenizer: PreTrainedTokenizerBase, sizes: Sequence[int]
) -> Iterator[SuffixIndex | ShardedSuffixIndex]:
    """The stores of a case, the smallest first; each holds the one before it.

    Text that can be cut into parts fills shards where more than one shard is asked for.
    """
    texts, sizes = case.stores[case.kind](), sorted(sizes)
    shard = stores.SHARD_TOKENS
    if isinstance(texts, PackageFiles) and sizes[-1] > shard:
        shards = stores.text_shards("packages", tokenizer, sizes[-1], texts, shard, progress=True)
        for size in sizes:
            if size < 0.95 * shard:
                yield stores.first_part(shards.shards[0].index, size)
            else:
                yield shards.first(min(len(shards.shards), -(-size // shard)))
        return
    largest = stores.text_store(f"at-scale-{case.kind}", tokenizer, sizes[-1], texts)
    for size in [size for size in sizes if size < 0.95 * largest.store.count]:
        yield stores.first_part(largest, size)
    yield largest


def _rows(
    case: Case,
    tokenizer: PreTrainedTokenizerBase,
    store: str,
    index: SuffixIndex | ShardedSuffixIndex,
    variant: str,
    how: dict[str, Any],
) -> Iterator[dict[str, Any]]:
    for row in replay_counts(case, Rest(index, **how), tokenizer):
        yield {"store": store, "stored": index.store.count, "variant": variant, **row}


#: The cases that stand for the papers' settings.
CHAT, CODE, CODE_SAMPLED = "Vicuna-7B v1.5, MT-Bench", "WizardCoder-15B, HumanEval", "CodeGen-16B, HumanEval"


def select(counts: pd.DataFrame, case: str, store: str | None = None, variant: str = PUBLISHED) -> pd.DataFrame:
    """Rows of one case, by default with the growing store of its kind; ``matched`` are steps with a match of two tokens
    or more."""
    rows = counts[(counts.case == case) & (counts.variant == variant)]
    rows = rows[rows.store == (rows.kind if store is None else store)]
    return rows.assign(matched=rows.matched_2 + rows.matched_10 + rows.matched_17)


def released_tokens(gigabytes: float, ratio: float = 1.0) -> float:
    """Tokens in a released datastore of a size; ``ratio``: tokens of ours for one of theirs."""
    return gigabytes * 1e9 / RELEASED_BYTES * ratio


def own_step_prices() -> dict[str, float]:
    """REST's own price of a step in passes of plain decoding, by size of the store (its table 2): mean generated length
    times time per token, over the time per token of plain decoding."""
    paper = {key: row["value"] for key, row in published("rest").items()}
    plain = float(paper["rest-t1-he-greedy-7b-ar"])
    return {
        size: float(paper[f"rest-t2-{size}-m"]) * float(paper[f"rest-t2-{size}-ms"]) / plain
        for size in ("09gb", "44gb", "87gb", "14gb", "27gb")
    }


def in_their_tokens(rows: pd.DataFrame, authors: Mapping[str, Sequence[float]]) -> pd.DataFrame:
    """Rows of chat with tokens of Llama's tokenizer: the characters emitted over those of a token in the authors' answers.

    This is what a pass saves at least. Drafts accepted in our tokens are cut off in the middle of Llama's, and the token
    that the target adds to every pass is longer in Llama's than in ours.
    """
    return rows.assign(tokens=rows.characters / authors["characters_per_token"][0])


def _over_chat(counts: pd.DataFrame) -> Interval:
    """Gain over plain decoding on greedy code over that on greedy chat, with the largest stores of equal size."""
    code, chat = select(counts, CODE), select(counts, CHAT)
    pairs = [(a, b) for a in code.stored.unique() for b in chat.stored.unique() if abs(a / b - 1) < 0.1]
    if not pairs:
        raise ValueError("no store of code is as large as one of chat, to a tenth; run both with the same sizes")
    ours, theirs = max(pairs)
    return measures.ratio(code[code.stored == ours], chat[chat.stored == theirs])


def headlines(counts: pd.DataFrame, authors: Mapping[str, Sequence[float]]) -> dict[str, Interval | int]:
    """The values of the claims on REST that recorded outputs decide, by name; those of cases and variants that were not
    run are left out.

    Tokens of chat are Llama's, by the characters that one has in the authors' answers (:func:`in_their_tokens`); so are
    the sizes of the paper's chat stores. On code there is no such count: the papers' tokens count as ours.

    Parameters
    ----------
    counts : DataFrame
        Rows of :func:`case_counts` and, where they were run, :func:`variant_counts`.
    authors : mapping
        Of :func:`authors_run`: value, low and high by name.
    """
    chat, code, sampled = (select(counts, case) for case in (CHAT, CODE, CODE_SAMPLED))
    if not len(chat) or not len(code):
        raise ValueError(f"rows of {', '.join(counts.case.unique())}; expected {CHAT} and {CODE} among them")
    code_step, chat_step = float(np.mean(list(own_step_prices().values()))), authors["step"][0]
    ratio = authors["characters_per_token"][0] * chat.tokens.sum() / chat.characters.sum()
    chat_sizes = {"465mb": released_tokens(0.465, ratio), "12gb": released_tokens(12, ratio)}
    code_sizes = {"09gb": released_tokens(0.9), "27gb": released_tokens(27)}
    in_ours, chat = chat, in_their_tokens(chat, authors)
    found: dict[str, Interval | int] = {"real_authors_speedup": Interval(*authors["speed_up"])}
    for name, rows, step in (
        ("code", code, code_step),
        ("code_nucleus", sampled, code_step),
        ("chat", chat, chat_step),
    ):
        if not len(rows):
            continue
        found[f"real_{name}_tpf"] = measures.rate(measures.largest(rows))
        found[f"real_{name}_speedup_rest"] = measures.speed(measures.largest(rows), step)
        found[f"real_{name}_growth"] = measures.whole_growth(rows)
        sized = measures.steps(rows)
        found[f"real_{name}_step_least"], found[f"real_{name}_last_step"] = measures.least(sized), sized[-1]
        for size, tokens in (chat_sizes if name == "chat" else code_sizes).items():
            found[f"real_{name}_line_{size}"] = measures.at_size(rows, tokens)
            found[f"real_{name}_curve_{size}"] = measures.at_size(rows, tokens, degree=2)
            found[f"real_{name}_line_{size}_speedup_rest"] = measures.at_size(
                rows, tokens, then=lambda rate, step=step: rate / step
            )
        end = "12gb" if name == "chat" else "27gb"
        found[f"real_{name}_line_speedup_rest"] = found[f"real_{name}_line_{end}_speedup_rest"]
    smallest = chat[chat.stored == chat.stored.min()]
    found["real_chat_smallest_speedup_rest"] = measures.speed(smallest, chat_step)
    found["real_chat_ours_line_12gb"] = measures.at_size(in_ours, chat_sizes["12gb"])
    found["real_chat_line_12gb_characters"] = measures.at_size(chat, chat_sizes["12gb"], "characters_per_pass")
    found["real_code_over_chat"] = _over_chat(counts)
    found["real_code_share_short"] = measures.rate(measures.largest(code), "share_short_matches")
    found["real_code_share_matched"] = measures.rate(measures.largest(code), "share_matched")
    cases = [select(counts, case) for case in counts.case.unique()]
    found["real_gain_least"] = measures.least([measures.rate(measures.largest(rows)) for rows in cases])
    found["matches_cut"] = int(measures.largest(code).cut.sum() + measures.largest(chat).cut.sum())
    found["matches_looked_up"] = int(measures.largest(code).passes.sum() + measures.largest(chat).passes.sum())
    for name, case in (("vicuna", CHAT), ("llama", "Llama-2-7B-chat, AlpacaEval")):
        own, theirs = (select(counts, case, f"{who} answers, as many tokens") for who in ("its own", "GPT-4's"))
        if len(own) and len(theirs):
            found[f"real_{name}_own_over_gpt4"] = measures.ratio(own, theirs, "characters_per_pass")
    return found | _variant_headlines(counts, CODE, "code") | _variant_headlines(counts, CHAT, "chat")


def _variant_headlines(counts: pd.DataFrame, case: str, kind: str) -> dict[str, Interval]:
    """Values of the variants on the largest store of a case; none where they were not run."""
    tried = {name: select(counts, case, variant=name) for name in VARIANTS}
    tried = {name: rows for name, rows in tried.items() if len(rows)}
    tried["64 nodes"] = measures.largest(select(counts, case))
    found = {}
    for ours, theirs, priced in ((48, 8, True), (256, 48, False), (192, 48, True), (256, 192, True)):
        pair = [tried.get(f"{nodes} nodes") for nodes in (ours, theirs)]
        if any(rows is None for rows in pair):
            continue
        found[f"real_{kind}_nodes_{ours}_over_{theirs}"] = measures.ratio(*pair)
        if priced:
            found[f"real_{kind}_nodes_{ours}_over_{theirs}_gpu"] = measures.speed_ratio(*pair, gpu_prices())
    for name, variant in (("random", "random selection"), ("released", "released selection")):
        if variant in tried:
            found[f"real_{kind}_trie_over_{name}"] = measures.ratio(tried["64 nodes"], tried[variant])
    for n in (2, 4, 6):
        if f"suffixes up to {n}" in tried:
            found[f"real_{kind}_ngram_{n}_over_16"] = measures.ratio(tried[f"suffixes up to {n}"], tried["64 nodes"])
    if "suffixes up to 32" in tried:
        found[f"real_{kind}_share_beyond_16"] = measures.rate(tried["suffixes up to 32"], "share_longer_matches")
    return found


#: Values of :func:`headlines` that need more than the three main cases' sizes: the variants, or other stores.
HEADLINES = (
    "real_authors_speedup",
    "real_chat_smallest_speedup_rest",
    "real_chat_line_465mb_speedup_rest",
    "real_code_line_09gb",
    "real_code_line_27gb",
    "real_code_over_chat",
    "real_code_nodes_48_over_8",
    "real_code_nodes_256_over_48",
    "real_code_nodes_48_over_8_gpu",
    "real_code_nodes_192_over_48_gpu",
    "real_code_nodes_256_over_192_gpu",
    "real_code_share_short",
    "real_code_share_matched",
    "real_code_share_beyond_16",
    "real_vicuna_own_over_gpt4",
    "real_llama_own_over_gpt4",
    "real_gain_least",
    "matches_cut",
    "matches_looked_up",
)


def price_rows(counts: pd.DataFrame, here: Mapping[int, float], authors: Mapping[str, Sequence[float]]) -> pd.DataFrame:
    """One row a case: tokens per pass from the largest store, and the speed-up at this machine's prices of passes
    (``here``), at REST's own price of a step, and at a GPU's; in tokens of Llama for chat, and in ours for code."""
    rows = []
    for case in counts.case.unique():
        chosen = measures.largest(select(counts, case))
        ours, chat = measures.rate(chosen), chosen.kind.iloc[0] == "chat"
        chosen = in_their_tokens(chosen, authors) if chat else chosen
        step = authors["step"][0] if chat else float(np.mean(list(own_step_prices().values())))
        rows.append(
            {
                "case": case,
                "decoding": chosen.decoding.iloc[0],
                "prompts": chosen.prompt.nunique(),
                "stored": int(chosen.stored.iloc[0]),
                "ours": ours,
                "tokens": measures.rate(chosen),
                "here": measures.speed(chosen, here),
                "rest": measures.speed(chosen, step),
                "gpu": measures.speed(chosen, gpu_prices()),
            }
        )
    return pd.DataFrame(rows)


def authors_run() -> dict[str, Interval]:
    """What the result files of REST's authors say of Vicuna-7B on MT-Bench, with intervals over questions: ``tokens``
    and ``characters`` a pass, ``characters_per_token``, the ``speed_up`` and the price of a ``step`` in plain passes.

    Raises
    ------
    MissingData, BadRecord
        The files are not there, or not what they should be.
    """
    runs = {run: mt_bench_replies(run=run) for run in ("REST", "plain")}
    prompts = [reply.id.partition("-")[0] for reply in runs["REST"]]
    if [reply.id for reply in runs["plain"]] != [reply.id for reply in runs["REST"]]:
        raise ValueError("the result files with REST and without answer other turns; get them again")
    tokens, steps, seconds, plain_tokens, plain_seconds, characters = np.array(
        [
            (a.tokens - 1, a.steps, a.seconds, b.tokens - 1, b.seconds, len(a.text) * (a.tokens - 1) / a.tokens)
            for a, b in zip(runs["REST"], runs["plain"], strict=True)
        ],
        float,
    ).T
    ours, theirs = Counts(tokens, seconds), Counts(plain_tokens, plain_seconds)
    return {
        "tokens": pooled_rate(Counts(tokens, steps), prompts),
        "characters": pooled_rate(Counts(characters, steps), prompts),
        "characters_per_token": pooled_rate(Counts(characters, tokens), prompts),
        "speed_up": ratio_of_rates(ours, theirs, prompts),
        "step": ratio_of_rates(Counts(seconds, steps), Counts(plain_seconds, plain_tokens), prompts),
    }
