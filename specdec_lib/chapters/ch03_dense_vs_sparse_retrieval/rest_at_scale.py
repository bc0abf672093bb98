"""REST replayed on recorded outputs of large models with stores of growing size: counts by prompt, prices, the authors' run.

No store holds an answer to a question that is replayed, whoever gave it, and the chat store no text by a model of a
replayed family: it is other models' and people's text, as UltraChat is to Vicuna.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from specdec_lib import paths
from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval.dense_at_scale import AS_DRESD_RAN_IT
from specdec_lib.datastores import ShardedSuffixIndex, SuffixIndex
from specdec_lib.decoding.replay import replay
from specdec_lib.drafters import Rest
from specdec_lib.experiments import stores
from specdec_lib.experiments.package_files import PackageFiles, package_files
from specdec_lib.experiments.published_numbers import published
from specdec_lib.experiments.published_sets.replies import (
    CHAT_SETS,
    OASST_REPORTS,
    Reply,
    alpaca_eval_replies,
    arena_hard_replies,
    chat_texts,
    codegen_replies,
    mt_bench_replies,
    oasst_replies,
    wizardcoder_replies,
)
from specdec_lib.experiments.results import table
from specdec_lib.experiments.retrieval import KeepsMatches, record_replies
from specdec_lib.experiments.statistics import Counts, Interval, pooled_rate, ratio_of_rates

#: Sizes of the stores, in tokens of the tokenizer in use; the largest only where there is as much text.
SIZES = (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 20_000_000)
#: Sizes of stores of shards, where downloaded packages lie in the folder ``packages`` of the data sets.
LARGE_SIZES = (40_000_000, 100_000_000, 200_000_000)
#: Longest replayed output, in tokens.
LONGEST = 4000
#: What is tried on the largest store next to the published settings.
VARIANTS: dict[str, dict[str, Any]] = {
    **{f"{nodes} nodes": {"choices": nodes} for nodes in (8, 16, 32, 48, 128, 192, 256)},
    **{f"suffixes up to {n}": {"max_ngram": n} for n in (2, 4, 6, 32)},
    "random selection": {"selection": "random", "length": 8},
    "matches from one token": {"min_ngram": 1},
    "released selection": {"selection": "released"},
    "as DReSD ran it": AS_DRESD_RAN_IT,
}
PUBLISHED = "as published"
#: The cases that stand for the papers' settings; variants are tried on the greedy ones.
CHAT, CODE, CODE_SAMPLED = "Vicuna-7B v1.5, MT-Bench", "WizardCoder-15B, HumanEval", "CodeGen-16B, HumanEval"
#: Bytes a token of a released datastore: 2 of the token, 4 of the suffix array.
RELEASED_BYTES = 6
#: Matches of each chunk that the released code looks at.
RELEASED_MATCHES = 5000


#: Models of AlpacaEval whose families are not replayed.
OTHER_MODELS = (
    "alpaca-7b",
    "gpt-3.5-turbo-0613",
    "gpt4",
    "guanaco-7b",
    "oasst-sft-pythia-12b",
    "text_davinci_003",
    "ultralm-13b",
    "wizardlm-13b-v1.2",
)
#: The model of the sampling reports that is replayed, and those of the reports that are not of its family.
OASST_REPLAYED = "llama2-70b"
OASST_OTHERS = tuple(name for name in OASST_REPORTS if not name.startswith("llama2"))


@dataclass(frozen=True)
class Case:
    """Outputs of one model on one set of prompts: ``kind`` is chat or code, ``decoding`` greedy or sampled; ``stores`` reads the
    text of each store, by the store's name."""

    name: str
    kind: str
    decoding: str
    replies: list[Reply]
    stores: dict[str, Callable[[], stores.Texts | PackageFiles]] = field(default_factory=dict)


def plain(question: str) -> str:
    """The letters and digits of a question, by which two wordings of it count as one."""
    return "".join(c for c in question.lower() if c.isalnum())


def mixed_texts(replies: Iterable[Reply], asked: Iterable[str]) -> stores.Texts:
    """Prompts with answers in an order that mixes their sources, each once, without answers to ``asked``."""
    forbidden = {plain(question) for question in asked}
    whole = {
        f"{reply.prompt} {reply.text}".strip()
        for reply in replies
        if not forbidden.intersection(map(plain, reply.questions))
    }
    order = {hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(): text for text in whole}
    key = hashlib.sha256("".join(sorted(order)).encode()).hexdigest()
    return stores.Texts(lambda: (order[name] for name in sorted(order)), key)


def chat_replies() -> Iterable[Reply]:
    """All chat and instruction text at hand that is not by a replayed family of models."""
    return chain(
        chain.from_iterable(map(chat_texts, CHAT_SETS)),
        chain.from_iterable(map(alpaca_eval_replies, OTHER_MODELS)),
        chain.from_iterable(oasst_replies(name, "all") for name in OASST_OTHERS),
        arena_hard_replies(),
    )


def cases(packages: Sequence[Path] = ()) -> list[Case]:
    """The replayed outputs with the texts of their stores.

    ``packages`` are folders of wheels whose Python files are text of the store of code, with those of the installed
    packages. A file that is not there, or not what it should be, raises MissingData or BadRecord.
    """
    eighths = {model: alpaca_eval_replies(model)[::8] for model in ("vicuna-13b-v1.5", "llama-2-7b-chat-hf")}
    reports = {way: oasst_replies(OASST_REPLAYED, way)[::2] for way in ("greedy", "nucleus9")}
    chats = [
        ("Vicuna-7B v1.5, MT-Bench", "greedy", mt_bench_replies()),
        ("Vicuna-13B v1.5, AlpacaEval", "sampled", eighths["vicuna-13b-v1.5"]),
        ("Llama-2-7B-chat, AlpacaEval", "sampled", eighths["llama-2-7b-chat-hf"]),
        ("Llama-2-70B OASST, greedy", "greedy", reports["greedy"]),
        ("Llama-2-70B OASST, sampled", "sampled", reports["nucleus9"]),
    ]
    asked = [question for _, _, replies in chats for reply in replies for question in reply.questions]

    def chat() -> stores.Texts:
        return mixed_texts(chat_replies(), asked)

    def answers(model: str) -> Callable[[], stores.Texts]:
        return lambda: mixed_texts(alpaca_eval_replies(model), asked)

    own = {"Vicuna-7B v1.5, MT-Bench": "vicuna-7b-v1.5", "Llama-2-7B-chat, AlpacaEval": "llama-2-7b-chat-hf"}
    found: list[Case] = []
    for name, decoding, replies in chats:
        more = {"its own answers": answers(own[name]), "GPT-4's answers": answers("gpt4")} if name in own else {}
        found.append(Case(name, "chat", decoding, replies, {"chat": chat, **more}))
    # Two cases and their variants ask for the same files, which take a while to find.
    code = cache(partial(package_files, packages)) if packages else stores.package_texts
    for name, decoding, replies in (
        ("WizardCoder-15B, HumanEval", "greedy", wizardcoder_replies()),
        ("CodeGen-16B, HumanEval", "sampled", codegen_replies()),
    ):
        found.append(Case(name, "code", decoding, replies, {"code": code}))
    # Greedy ones first: what the papers report is there soonest.
    return sorted(found, key=lambda case: case.decoding)


def _name(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def replay_counts(case: Case, drafter: Rest, tokenizer: PreTrainedTokenizerBase) -> pd.DataFrame:
    """Counts of the replays of REST on a case, a row a prompt; turns of one question are one prompt.

    Next to the columns of the results table: ``characters``; ``matched_2``, ``matched_10`` and ``matched_17``, the steps whose
    longest suffix has 2 to 9, 10 to 16 and more tokens; ``cut``, the steps with more matches than the released code reads.
    """
    prompt_of = {reply.id: _name((reply.questions or (reply.id,))[0]) for reply in case.replies}
    keeping, rows = KeepsMatches(drafter), []
    for recording in record_replies(case.replies, tokenizer, LONGEST):
        keeping.matches.clear()
        run = replay(recording.trace, keeping)
        lengths = np.array([match.length for match in keeping.matches])
        spans = np.array([match.stop - match.start for match in keeping.matches])
        rows.append(
            table([recording], {PUBLISHED: [run]})[["tokens", "passes", "drafts", "drafted", "widths"]].assign(
                prompt=prompt_of[recording.prompt.id],
                characters=len(tokenizer.decode(run.tokens[1:])),
                matched_2=((lengths >= 2) & (lengths < 10)).sum(),
                matched_10=((lengths >= 10) & (lengths <= 16)).sum(),
                matched_17=(lengths > 16).sum(),
                cut=((spans > RELEASED_MATCHES) & (lengths > 1)).sum(),
            )
        )
    found = pd.concat(rows)
    wide = max(map(len, found.widths))
    found["widths"] = [np.pad(widths, (0, wide - len(widths))) for widths in found.widths]
    found = found.groupby("prompt", sort=False).sum().reset_index()
    return found.assign(case=case.name, kind=case.kind, decoding=case.decoding)


def case_counts(case: Case, tokenizer: PreTrainedTokenizerBase, sizes: Sequence[int] = SIZES) -> pd.DataFrame:
    """Counts of one case with growing stores of its kind, equally large ones of answers, and the variants.

    Sizes of which there is not as much text are left out, and the largest is then all there is.
    """

    def counted(index: Any, store: str = case.kind, variant: str = PUBLISHED) -> pd.DataFrame:
        drafter = Rest(index, **VARIANTS.get(variant, {}))
        return replay_counts(case, drafter, tokenizer).assign(store=store, variant=variant, stored=index.store.count)

    growing = list(_growing(case, tokenizer, sizes))
    found = [counted(index) for index in growing]
    answers = {
        name: stores.text_store("at-scale-answers", tokenizer, max(sizes), texts())
        for name, texts in case.stores.items()
        if name != case.kind
    }
    if answers:
        size = min(index.store.count for index in answers.values())
        for name, index in {case.kind: growing[-1], **answers}.items():
            found.append(counted(stores.first_part(index, size), f"{name}, as many tokens"))
    if case.name in (CHAT, CODE):
        found += [counted(growing[-1], variant=name) for name in VARIANTS]
    return pd.concat(found, ignore_index=True)


def _growing(
    case: Case, tokenizer: PreTrainedTokenizerBase, sizes: Sequence[int]
) -> Iterator[SuffixIndex | ShardedSuffixIndex]:
    """The stores of a case, the smallest first; each holds the one before it. Text that can be cut fills shards."""
    texts, sizes = case.stores[case.kind](), sorted(sizes)
    shard = stores.SHARD_TOKENS
    if isinstance(texts, PackageFiles) and sizes[-1] > shard:
        shards = stores.text_shards("packages", tokenizer, sizes[-1], texts, shard, progress=True)
        for size in sizes:
            if size < 0.95 * shard:
                yield stores.first_part(shards.shards[0], size)
            else:
                yield shards.first(min(len(shards.shards), -(-size // shard)))
        return
    largest = stores.text_store(f"at-scale-{case.kind}", tokenizer, sizes[-1], texts)
    for size in [size for size in sizes if size < 0.95 * largest.store.count]:
        yield stores.first_part(largest, size)
    yield largest


def count(tokenizer: PreTrainedTokenizerBase) -> tuple[pd.DataFrame, dict[str, Any]]:
    """All cases, and what the result files of REST's authors say (hours, and the published data sets)."""
    wheels = paths.datasets_root() / "packages"
    packages, sizes = ([wheels], (*SIZES, *LARGE_SIZES)) if wheels.is_dir() else ([], SIZES)
    rows = [case_counts(case, tokenizer, sizes) for case in tqdm(cases(packages=packages), desc="recorded outputs")]
    return pd.concat(rows, ignore_index=True), {"authors": {name: list(each) for name, each in authors_run().items()}}


def select(counts: pd.DataFrame, case: str, store: str | None = None, variant: str = PUBLISHED) -> pd.DataFrame:
    """Rows of one case, by default with the growing store of its kind; ``matched`` are steps with a match of two tokens
    or more."""
    rows = counts[(counts.case == case) & (counts.variant == variant)]
    rows = rows[rows.store == (rows.kind if store is None else store)]
    return rows.assign(matched=rows.matched_2 + rows.matched_10 + rows.matched_17)


def equally_large(ours: pd.DataFrame, theirs: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of two cases with their largest stores of the same size, to a tenth."""
    pairs = [(a, b) for a in ours.stored.unique() for b in theirs.stored.unique() if abs(a / b - 1) < 0.1]
    if not pairs:
        raise ValueError(
            "no store of one case is as large as one of the other, to a tenth; run both with the same sizes"
        )
    first, second = max(pairs)
    return ours[ours.stored == first], theirs[theirs.stored == second]


def released_tokens(gigabytes: float, ratio: float = 1.0) -> float:
    """Tokens in a released datastore of a size; ``ratio``: tokens of ours for one of theirs."""
    return gigabytes * 1e9 / RELEASED_BYTES * ratio


def own_step_price() -> float:
    """REST's own price of a step in passes of plain decoding, the mean over the stores of its table 2: mean generated length
    times time per token, over the time per token of plain decoding."""
    paper = {key: float(row["value"]) for key, row in published("rest").items() if row["value"] != "not available"}
    sizes = ("09gb", "44gb", "87gb", "14gb", "27gb")
    return (
        float(np.mean([paper[f"rest-t2-{s}-m"] * paper[f"rest-t2-{s}-ms"] for s in sizes]))
        / paper["rest-t1-he-greedy-7b-ar"]
    )


def in_their_tokens(rows: pd.DataFrame, authors: Mapping[str, Sequence[float]]) -> pd.DataFrame:
    """Rows of chat with tokens of Llama's tokenizer: the characters emitted over those of a token in the authors' answers.

    SmolLM2's tokens are a little longer than Llama's, so the token that the target adds to every pass counts as a little more
    than one.
    """
    return rows.assign(tokens=rows.characters / authors["characters_per_token"][0])


def authors_run() -> dict[str, Interval]:
    """What the result files of REST's authors say of Vicuna-7B on MT-Bench, with intervals over questions: ``tokens``
    and ``characters`` a pass, ``characters_per_token``, the ``speed_up`` and the price of a ``step`` in plain passes."""
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
