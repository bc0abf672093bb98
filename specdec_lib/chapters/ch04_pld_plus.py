"""Chapter 4: which earlier occurrence of a text PLD+ copies from, what that saves, and which tokens of an output were copied.

Two drafters are compared at a place where they copy from different occurrences (figure 2 of PLD+), and with the best occurrence in
hindsight. A copying method is also replayed on answers of large models and of people: the tokens of an answer decide what it would
have had accepted, whoever wrote them. There PLD+ (h) has the states of a model that only reads the answer. The model that wrote it
may know better what it copied, so this is a lower bound of PLD+.

Attribution by copying (appendix D): a draft that the target accepts was copied from a known position. Accepted spans of at least a
given length attribute their tokens to that position; all other tokens are taken to be the model's own. QuoteSum, which marks what
its answers quote and from which source, gives the truth.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib.decoding.checks import whole_number
from specdec_lib.decoding.clock import clock_of
from specdec_lib.decoding.contract import Capture, Context, Drafter
from specdec_lib.decoding.loop import replay
from specdec_lib.decoding.results import Generation
from specdec_lib.decoding.served_models import (
    UnsupportedModel,
    context_limit,
    decoder_blocks,
    decoder_config,
    vocabulary_size,
)
from specdec_lib.decoding.target import Target
from specdec_lib.decoding.teacher_forcing import record_known
from specdec_lib.decoding.tree import EMPTY, DraftTree
from specdec_lib.drafters import PromptLookup, PromptLookupHidden
from specdec_lib.drafters.pass_costs import PassCosts
from specdec_lib.experiments.data.overlap import overlap
from specdec_lib.experiments.data.prompt import Prompt, render
from specdec_lib.experiments.data.published_numbers import published_draft_step
from specdec_lib.experiments.data.published_sets.files import MissingData
from specdec_lib.experiments.data.published_sets.replies import (
    Reply,
    alpaca_eval_replies,
    codegen_replies,
    mt_bench_replies,
    wizardcoder_replies,
)
from specdec_lib.experiments.data.tasks import load_task
from specdec_lib.experiments.runs import papers_prompts, results, row_files
from specdec_lib.experiments.runs.recorded_runs import Recording, replay_all, replay_each
from specdec_lib.experiments.runs.recordings import record_once
from specdec_lib.experiments.runs.retrieval import record_replies
from specdec_lib.experiments.statistics.intervals import (
    SEED,
    Interval,
    bootstrap_counts,
    difference_of_rates,
    interval_ends,
    interval_of_sums,
    mean_interval,
)
from specdec_lib.files import write_atomic
from specdec_lib.heads import induction
from specdec_lib.models.fingerprint import fingerprint

#: Draft lengths: that of PLD and that of PLD+ in the paper.
LENGTHS = (10, 70)
#: Fewest tokens of an answer that are replayed. A prompt that leaves the model no room for them is left out.
LEAST = 16
#: The sets of each of the paper's tasks, or the part of them whose texts are published with them.
PUBLISHED: dict[str, str] = {
    "summarisation": "spec-bench/summarization",
    "code editing": "codeeditorbench",
    "short text editing": "xatu/jfleg",
    "long text editing": "argrewrite",
    "multi-turn": "mt-bench",
}

#: What scores are the ratio of (:func:`specdec_lib.experiments.runs.results.rate`): whether copied tokens are told from others, and
#: the share of the found ones that are attributed to their origin.
PRECISION, RECALL, F1 = ("found", "attributed"), ("found", "copied"), ("found", "either")
RIGHT_PLACE = ("exact", "located")

PARTIAL = "PLD, partial drafts, 10"
PARTIAL_70 = "PLD, partial drafts, 70"
SHOWN = [  # of :func:`ratios_by_task`, in the chapter's table
    "(h) over PLD",
    "(h) over PLD, partial",
    "(h) over its closest rival",
    "(a) over its closest rival",
    "(h) over PLD, sampled",
    "(h) over REST, sampled",
]


class Choice(NamedTuple):
    """A place where two drafters copied from different occurrences: for each the position of the first token copied, its draft,
    and how many tokens of it were accepted. ``position`` is that of the last token before the drafts."""

    recording: Recording
    position: int
    sources: tuple[int, int]
    drafts: tuple[list[int], list[int]]
    accepted: tuple[int, int]


def choices(recording: Recording, drafter: Drafter) -> dict[int, tuple[int, list[int], int]]:
    """For each position of a last token after which a replay drafted: the position of the first token copied, the draft,
    and how many of its tokens were accepted."""
    (run,) = replay_all([recording], drafter)
    chosen, place = {}, run.prompt_length
    for step in run.steps:
        if step.tree.copied_from is not None:
            chosen[place] = (step.tree.copied_from, step.tree.tokens, step.accepted)
        place += len(step.tokens)
    return chosen


class _Both(Drafter):
    """Asks two drafters at every token of a recorded run, counts where each has more tokens accepted, and drafts nothing."""

    def __init__(self, first: Drafter, second: Drafter, text: Sequence[int]):
        self.both, self.text, self.more = (first, second), text, [0, 0]
        self.capture = first.capture | second.capture

    def start(self, context: Context) -> None:
        for drafter in self.both:
            drafter.start(context)

    def propose(self, context: Context, limit: int) -> DraftTree:
        coming = self.text[len(context.tokens) :]
        first, second = (_matching_tokens(drafter.propose(context, limit).tokens, coming) for drafter in self.both)
        if first != second:
            self.more[second > first] += 1
        return EMPTY


def _matching_tokens(draft: Sequence[int], coming: Sequence[int]) -> int:
    """How many tokens of a draft the text goes on with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(draft, coming, strict=False)))


def won_and_lost(recording: Recording, first: Drafter, second: Drafter) -> tuple[int, int]:
    """The tokens of an output after which ``second`` has more tokens accepted than ``first``, and those after which it has fewer,
    both drafting after the same text."""
    both = _Both(first, second, [*recording.trace.prompt, *recording.trace.tokens])
    replay_all([recording], both)
    return both.more[1], both.more[0]


def neighbour_lead(states: torch.Tensor) -> float:
    """Mean cosine of the states (positions, width) at neighbouring positions, less that at two positions drawn at random.

    The mean cosine of all pairs of positions is the squared length of the mean of the unit vectors.
    """
    units = torch.nn.functional.normalize(states.double(), dim=-1)
    return float((units[:-1] * units[1:]).sum(-1).mean() - units.mean(0).square().sum())


def chosen_places(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    drafters: Mapping[str, Drafter],
    layer: int,
    longest: int,
) -> pd.DataFrame:
    """A row per output for the second of two drafters, compared with the first: ``won`` and ``lost`` (:func:`won_and_lost`), and
    the ``lead`` of neighbours among the states of a layer (:func:`neighbour_lead`)."""
    capture = Capture((layer,))
    recordings = record_once(model, tokenizer, prompts, None, longest, capture)
    _, second = drafters
    places = [won_and_lost(one, *drafters.values()) for one in recordings]
    return results.table(recordings, {second: replay_all(recordings, drafters[second])}).assign(
        won=[won for won, _ in places],
        lost=[lost for _, lost in places],
        lead=[neighbour_lead(one.trace.hidden[layer]) for one in recordings],
    )


def replayed_with_overlap(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    drafters: Mapping[str, Drafter],
    longest: int,
    capture: Capture,
) -> pd.DataFrame:
    """Rows of replays, with the ``overlap`` of each output with its prompt."""
    recordings = record_once(model, tokenizer, prompts, None, longest, capture)
    shared = [overlap(*map(tokenizer.decode, (one.trace.prompt, one.trace.tokens))) for one in recordings]
    return results.table(recordings, replay_each(recordings, drafters)).assign(overlap=shared * len(drafters))


def head_credits(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt], longest: int
) -> pd.DataFrame:
    """A row per output and head, ``"18.6"`` as method: the ``copied`` tokens, those that the head is credited with (``peaks``), and
    the sum of its ``attention`` on their origins."""
    every = induction.every_head(model)
    frames = []
    for one in record_once(model, tokenizer, prompts, None, longest, every):
        peaks, attention, copied = induction.credits(one.trace)
        about = {"task": one.task, "prompt": one.prompt.id, "turn": one.turn, "seed": 0, "temperature": 0.0}
        names = [f"{block}.{head}" for block, head in every.heads]
        frames.append(
            pd.DataFrame(
                about | {"method": names, "copied": copied, "peaks": peaks.astype(int), "attention": attention}
            )
        )
    return pd.concat(frames, ignore_index=True)


def induction_heads(rows: pd.DataFrame, model: PreTrainedModel) -> induction.InductionHeads:
    """What rows of :func:`head_credits` say of all outputs together."""
    sums = rows.groupby("method", sort=False)[["copied", "peaks", "attention"]].sum()
    sums = sums.loc[[f"{block}.{head}" for block, head in induction.every_head(model).heads]]
    shape = decoder_config(model).num_hidden_layers, -1
    peaks, attention = ((sums[name] / sums.copied).to_numpy().reshape(shape) for name in ("peaks", "attention"))
    return induction.InductionHeads(peaks, attention, int(sums.copied.iloc[0]), fingerprint(model))


def ratios_by_task(greedy: pd.DataFrame, sampled: pd.DataFrame, costs: Mapping[int, float]) -> pd.DataFrame:
    """What decides the paper's claims: a column for each comparison, a row for each task and one for all of them.

    Speeds are compared at ``costs``, unless the column says tokens per pass. The closest rival is the one that is led least,
    a draft model's part of a step counted. Lookahead is not among these rivals: its few prompts are compared apart.
    """
    costed = papers_prompts.with_draft_model_step(greedy, costs, published_draft_step())
    columns = {}
    for name, method in {"(h)": "PLD+ (h)", "(a)": "PLD+ (a)"}.items():
        for rival, other in {"PLD": "PLD", "PLD, partial": PARTIAL, "REST": "REST"}.items():
            for rows, how in ((greedy, ""), (sampled, ", sampled")):
                columns[f"{name} over {rival}{how}"] = results.ratio(rows, method, other, results.SPEED, "task")
        columns[f"{name} over Lookahead"] = results.ratio(greedy, method, "Lookahead", results.SPEED, "task")
        columns[f"{name} over its closest rival"] = {results.ALL: papers_prompts.least_lead(costed, method)} | {
            task: papers_prompts.least_lead(rows, method) for task, rows in costed.groupby("task")
        }
    for first, second in (("PLD+ (h)", "PLD+ (a)"), ("REST", "PLD")):
        name = f"tokens per pass, {first.removeprefix('PLD+ ')} over {second.removeprefix('PLD+ ')}"
        columns[name] = results.ratio(greedy, first, second, by="task")
    return pd.DataFrame(columns)


def span_gain(runs: pd.DataFrame, longer: str, shorter: str) -> Interval:
    """Rank correlation over outputs with a draft of the mean accepted span and of what longer drafts gain over shorter ones."""
    drafted = runs[(runs.method == longer) & (runs.drafts > 0)].set_index(results.OUTPUT)
    fewer = runs[runs.method == shorter].set_index(results.OUTPUT).loc[drafted.index]
    spans, gain = drafted.accepted / drafted.drafts, fewer.passes / drafted.passes
    return rank_correlation(spans, gain, [key[:2] for key in drafted.index])


def ratio_to_random(runs: pd.DataFrame, chosen: str, drawn: Sequence[str]) -> Interval:
    """Tokens per pass of one method over those of several drawn at random, which count together.

    A bootstrap sample draws prompts, and draws among the random methods, which all of its prompts share.
    """
    sums = runs.pivot_table(list(results.PER_PASS), ["task", "prompt"], "method", "sum")
    tokens, passes = (sums[column][[chosen, *drawn]].to_numpy(float) for column in results.PER_PASS)
    prompts, count = bootstrap_counts(len(tokens)), len(drawn)
    methods = np.random.default_rng(SEED + 1).multinomial(count, np.full(count, 1 / count), size=len(prompts))

    def ratio(prompts: np.ndarray, methods: np.ndarray) -> np.ndarray:
        above, below = (prompts @ table for table in (tokens, passes))
        rivals = (above[:, 1:] * methods).sum(1) / (below[:, 1:] * methods).sum(1)
        return above[:, 0] / below[:, 0] / rivals

    value = ratio(np.ones((1, len(tokens))), np.ones((1, count)))
    return Interval(float(value[0]), *interval_ends(ratio(prompts, methods), len(tokens)), len(tokens))


def speed_as_released(known: pd.DataFrame, costs: Mapping[int, float]) -> Interval:
    """Speed of PLD as released on known answers (:func:`table`): a pass costs that of ten drafted tokens where it has a draft."""
    runs = known[known.method == "pld_10"]
    verified = PassCosts(costs).curve(11)[-1] - 1
    return results.rate(runs.assign(cost=runs.passes + verified * runs.pld_10_drafts), results.SPEED)


def rest_on_mt_bench(costs: Mapping[int, float]) -> Interval:
    """Speed of REST as published on Vicuna's answers to MT-Bench, with the largest of its own stores."""
    rows = row_files.read("03/recorded")[0]
    rows = rows[(rows.task == "Vicuna-7B v1.5, MT-Bench") & (rows.store == rows.kind) & (rows.method == "as published")]
    rows = rows[rows.stored == rows.stored.max()].sort_values("prompt")
    return results.rate(results.with_cost(rows.assign(task="MT-Bench"), costs), results.SPEED)


def score_change(spans: pd.DataFrame, of: tuple[str, str], longer: int, shorter: int) -> Interval:
    """A score of attribution at a longer least span, less that at a shorter one."""
    parts = [spans[spans.least == least] for least in (longer, shorter)]
    prompts = list(zip(parts[0].task, parts[0].prompt, strict=True))
    return difference_of_rates(*([part[name].tolist() for name in of] for part in parts), prompts)


def wrong_occurrence(
    recordings: Sequence[Recording], first: Drafter, second: Drafter, longest: int = 260
) -> Choice | None:
    """The place where ``second`` copies from another occurrence in the prompt and leads most in accepted tokens, if there is one.

    Prompts of more than ``longest`` tokens are passed over: they do not fit a picture.
    """
    best = None
    for recording in recordings:
        length = len(recording.trace.prompt)
        if recording.looped or recording.turn or length > longest:
            continue
        ours, theirs = choices(recording, second), choices(recording, first)
        for place in ours.keys() & theirs.keys():
            source, score, accepted = zip(theirs[place], ours[place], strict=True)
            better = accepted[1] - accepted[0] > (best.accepted[1] - best.accepted[0] if best else 0)
            inside = max(map(sum, zip(source, accepted, strict=True))) < length
            if better and inside and source[0] != source[1]:
                best = Choice(recording, place, source, score, accepted)
    return best


class BestOccurrence(Drafter):
    """Copies from the earlier occurrence of the last token whose continuation agrees longest with the text to come.

    No rule that copies at most ``num_tokens`` tokens after an earlier occurrence of the last token needs fewer passes,
    whichever occurrences it takes: one token further on, the same occurrence reaches at least as far, so it never pays
    to accept less. PLD+ is such a rule, and so is PLD with n-grams of any length. ``text`` holds prompt and whole output.
    """

    def __init__(self, text: Sequence[int], num_tokens: int):
        self.text, self.num_tokens = text, whole_number("num_tokens", num_tokens, 1)
        self._places: dict[int, list[int]] = {}
        self._indexed = 0

    def start(self, context: Context) -> None:
        self._places, self._indexed = {}, 0

    def propose(self, context: Context, limit: int) -> DraftTree:
        text, last = self.text, len(context.tokens) - 1
        for place in range(self._indexed, last):
            self._places.setdefault(text[place], []).append(place)
        self._indexed = last
        most = min(self.num_tokens, limit, len(text) - 1 - last)
        longest = start = 0
        for place in self._places.get(text[last], ()):
            length, room = 0, min(most, last - place)  # the continuation ends with the tokens there are
            while length < room and text[place + 1 + length] == text[last + 1 + length]:
                length += 1
            if length > longest:
                longest, start = length, place + 1
        return DraftTree.chain(list(text[start : start + longest])) if longest else EMPTY


def replay_hindsight(recordings: Sequence[Recording], num_tokens: int) -> list[Generation]:
    """Replay each recording with the best occurrence at every step, drafts of at most ``num_tokens``."""
    return [replay(r.trace, BestOccurrence([*r.trace.prompt, *r.trace.tokens], num_tokens)) for r in recordings]


def _edits(task: str) -> Callable[[], list[Reply]]:
    return lambda: [Reply(p.id, "human", p.text, p.reference) for p in load_task(task) if p.reference]


def _by_problem(read: Callable[[], list[Reply]]) -> Callable[[], list[Reply]]:
    """Answers to HumanEval in an order that two models share: their files have orders and prompts of their own."""

    def problem(reply: Reply) -> str:
        asked = reply.prompt[reply.prompt.rindex("def ") :]
        return re.sub(r"\W", "", asked)[:40]  # name, parameters and first words, which both prompts have

    return lambda: sorted((replace(r, questions=(problem(r),)) for r in read()), key=lambda r: r.questions)


#: Whose answers to what, by name.
SETS: dict[str, Callable[[], list[Reply]]] = {
    "MT-Bench, Vicuna-7B v1.5": mt_bench_replies,
    "AlpacaEval, Vicuna-7B v1.3": lambda: alpaca_eval_replies("vicuna-7b-v1.3"),
    "AlpacaEval, Llama-2-7B-chat": lambda: alpaca_eval_replies("llama-2-7b-chat-hf"),
    "Spec-Bench summaries, human": _edits("spec-bench/summarization"),
    "XATU, human": _edits("xatu"),
    "JFLEG, human": _edits("jfleg"),
    "ArgRewrite, human": _edits("argrewrite"),
    "EditEval, human": _edits("editeval"),
    "HumanEvalPack Python, human": _edits("humanevalpack/python"),
    "QuixBugs, human": _edits("quixbugs"),
    "HumanEval, CodeGen-16B": _by_problem(codegen_replies),
    "HumanEval, WizardCoder-15B": _by_problem(wizardcoder_replies),
}


def spread_out(replies: Sequence[Reply], count: int) -> list[Reply]:
    """At most ``count`` of the replies at equal distances, since neighbours in a file are often alike."""
    return [replies[i * len(replies) // count] for i in range(count)] if len(replies) > count else list(replies)


def truncate_to_context(recordings: Sequence[Recording], context: int) -> list[Recording]:
    """The recordings cut to ``context`` tokens, without those whose prompt leaves fewer than :data:`LEAST`."""
    cut = []
    for recording in recordings:
        trace, room = recording.trace, context - len(recording.trace.prompt)
        tokens = trace.tokens[: max(room, 0)]
        if len(tokens) >= min(LEAST, len(trace.tokens)):
            limits = replace(trace.limits, max_new_tokens=len(tokens))
            cut.append(replace(recording, trace=replace(trace, tokens=tokens, limits=limits)))
    return cut


def _passes(recording: Recording, layer: int) -> dict[str, int]:
    """Passes after the prefill by rule and draft length, and those of PLD as released that verify a draft."""
    (released,) = replay_all([recording], PromptLookup(3, 10))
    passes = {"pld_10": len(released.steps), "pld_10_drafts": sum(bool(step.drafted) for step in released.steps)}
    for length in LENGTHS:
        (partial,) = replay_all([recording], PromptLookup(3, length, "transformers"))
        (hidden,) = replay_all([recording], PromptLookupHidden(layer, length))
        (best,) = replay_hindsight([recording], length)
        runs = {"partial": partial, "h": hidden, "best": best}
        passes |= {f"{name}_{length}": len(run.steps) for name, run in runs.items()}
    return passes


def known_answer_rows(
    name: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    layer: int,
    count: int,
    sets: Mapping[str, Callable[[], list[Reply]]] = SETS,
) -> Iterator[dict[str, Any]]:
    """Replay the rules on at most ``count`` answers of a set, each up to the context of the model that reads it.

    Yields by answer ``set``, ``prompt`` (a number that the turns of one conversation share), ``tokens`` after the first,
    ``overlap``, and the passes after the prefill of every rule: ``pld_10`` is PLD as released (``pld_10_drafts`` of them with a
    draft), ``partial`` PLD with partial drafts, ``h`` PLD+ (h) with the states of ``layer`` and ``best`` the best occurrence in
    hindsight, each at 10 and at 70 draft tokens.
    """
    replies = spread_out(sets[name](), count)
    asked = {reply.questions or reply.id: None for reply in replies}
    number = {question: i for i, question in enumerate(asked)}
    by_prompt = {reply.id: number[reply.questions or reply.id] for reply in replies}
    for recording in truncate_to_context(record_replies(replies, tokenizer), context_limit(model)):
        trace, prompt = recording.trace, recording.prompt
        count = len(trace.tokens)
        read = record_known(model, trace.prompt, trace.tokens, "length", None, count, Capture((layer,)))
        known = replace(recording, trace=replace(trace, hidden=read.trace.hidden))
        yield {
            "set": name,
            "prompt": by_prompt[prompt.id],
            "tokens": count - 1,
            "overlap": round(overlap(prompt.text, tokenizer.decode(trace.tokens)), 4),
            **_passes(known, layer),
        }


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]], about: Mapping[str, str]) -> None:
    """Write rows as CSV below lines of the form ``# name: value``, which say where they come from."""
    head = "".join(f"# {name}: {value}\n" for name, value in about.items())
    write_atomic(path, head + pd.DataFrame(rows).to_csv(index=False))


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """What :func:`known_answer_rows` gives as a results table: a row per answer and rule, ``task`` being the set."""
    answers = rows.rename(columns={"set": "task"})
    turn = answers.groupby(["task", "prompt"]).cumcount()
    rules = [name for name in answers if re.fullmatch(r"[a-z]+_\d+", name)]
    known = ["task", "prompt", "turn", "seed", "tokens", "overlap", "pld_10_drafts"]
    return answers.assign(turn=turn, seed=0).melt(known, rules, "method", "passes")


def prompt_words() -> Iterator[dict[str, Any]]:
    """Mean words in the user's turns of the paper's five sets (its Table 9), with their intervals over prompts."""
    for task, name in PUBLISHED.items():
        whole = "xatu" if name.startswith("xatu/") else name  # the paper asks for all of its sources
        prompts = load_task(whole)
        value, low, high, _ = mean_interval(
            [sum(len(turn.split()) for turn in p.turns) / len(p.turns) for p in prompts]
        )
        yield {"task": task, "set": whole, "prompts": len(prompts), "value": value, "low": low, "high": high}


def rank_correlation(x: pd.Series, y: pd.Series, prompts: Sequence[object]) -> Interval:
    """Spearman's rank correlation of two values of each output, with its interval over prompts.

    The ranks are those among all outputs, in each bootstrap sample too.
    """
    a, b = x.rank().to_numpy(), y.rank().to_numpy()

    def correlation(n, sa, sb, saa, sbb, sab):
        return (n * sab - sa * sb) / np.sqrt((n * saa - sa**2) * (n * sbb - sb**2))

    return interval_of_sums(correlation, [np.ones(len(a)), a, b, a * a, b * b, a * b], list(prompts))


class CopiedSpan(NamedTuple):
    """``length`` characters of the answer from ``answer`` on are those of the user's turn from ``turn``
    on."""

    answer: int
    turn: int
    length: int


def quotations(prompt: Prompt) -> list[CopiedSpan]:
    """The quotations of a QuoteSum answer that stand word for word in the source they name, each with its first
    occurrence there."""
    blocks = {k: f"[{k}] {title}\n{text.strip()}" for k, title, text in prompt.meta["sources"]}
    out, written = [], 0
    for source, text in prompt.meta["quotes"]:
        answer = prompt.reference.find(text, written)
        inside = blocks.get(source, "").find(text)
        if answer < 0:
            continue
        written = answer + len(text)
        if inside >= 0:
            out.append(CopiedSpan(answer, prompt.text.index(blocks[source]) + inside, len(text)))
    return out


class Alignment(NamedTuple):
    """A prompt, its answer, and for each answer token whether every character was copied and from which prompt token
    (-1 where none covers the same characters)."""

    prompt: list[int]
    answer: list[int]
    copied: np.ndarray
    origin: np.ndarray


def align(prompt: Prompt, tokenizer: PreTrainedTokenizerBase, spans: Sequence[CopiedSpan]) -> Alignment:
    """Turn an alignment of characters into one of tokens, for a prompt of one turn and a fast tokenizer with a chat template."""
    if not tokenizer.is_fast:
        raise ValueError(
            f"the tokenizer {type(tokenizer).__name__} does not tell which characters a token covers; "
            "expected a fast one"
        )
    message = [{"role": "user", "content": prompt.text}]
    text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    start = text.index(prompt.text)
    asked = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    said = tokenizer(prompt.reference, add_special_tokens=False, return_offsets_mapping=True)
    if asked["input_ids"] != render(prompt, tokenizer):
        raise ValueError(
            f"the tokenizer {tokenizer.name_or_path!r} divides the rendered chat otherwise than its own "
            "template does; its tokens cannot be aligned with characters"
        )
    source = np.full(len(prompt.reference), -1)
    for span in spans:
        source[span.answer : span.answer + span.length] = start + span.turn + np.arange(span.length)
    by_span = {tuple(place): i for i, place in enumerate(asked["offset_mapping"])}
    count = len(said["input_ids"])
    covered, origin = np.zeros(count, bool), np.full(count, -1)
    for i, (a, b) in enumerate(said["offset_mapping"]):
        places = source[a:b]
        covered[i] = b > a and bool((places >= 0).all())
        if covered[i] and bool((np.diff(places) == 1).all()):
            origin[i] = by_span.get((int(places[0]), int(places[-1]) + 1), -1)
    return Alignment(asked["input_ids"], said["input_ids"], covered, origin)


def quotesum(tokenizer: PreTrainedTokenizerBase, count: int, room: int) -> list[Alignment]:
    """At most ``count`` answers of QuoteSum that fit ``room`` tokens with their prompts; none where the set is not there."""
    try:
        prompts = load_task("quotesum", limit=4 * count) if count else []
    except (MissingData, ValueError):
        return []
    aligned = (align(prompt, tokenizer, quotations(prompt)) for prompt in prompts)
    fitting = (one for one in aligned if len(one.prompt) + len(one.answer) <= room)
    return [one for one, _ in zip(fitting, range(count), strict=False)]


def attributed_positions(run: Generation, least: int) -> np.ndarray:
    """Prompt position of each output token that was copied in an accepted span of ``least`` tokens or more; -1 where
    nothing is attributed, or it was copied from the output itself.

    ValueError for the run of a drafter that does not say where its drafts come from.
    """
    out = np.full(len(run.tokens), -1)
    place = 1  # the first token comes from the prefill
    for step in run.steps:
        source = step.tree.copied_from
        if source is None and len(step.tree):
            raise ValueError(f"{step.tree} does not say where it was copied from; expected a run of PLD or PLD+")
        if source is not None and step.accepted >= least:
            positions = source + np.arange(step.accepted)
            out[place : place + step.accepted] = np.where(positions < run.prompt_length, positions, -1)
        place += len(step.tokens)
    return out


def attribution_counts(truth: Alignment, positions: np.ndarray) -> dict[str, int]:
    """Compare the positions of :func:`attributed_positions` with the truth, in numbers of tokens of the answer.

    ``copied``; ``attributed`` to a position; ``found``, those that are both; ``located``, found ones whose one origin is known;
    ``exact``, located ones that are attributed to it. An end token after the answer is left out.
    """
    if len(positions) < len(truth.answer):
        raise ValueError(
            f"{len(positions)} positions for an answer of {len(truth.answer)} tokens; expected one for each"
        )
    positions = np.asarray(positions)[: len(truth.answer)]
    said, found = positions >= 0, (positions >= 0) & truth.copied
    located = found & (truth.origin >= 0)
    return {
        "copied": int(truth.copied.sum()),
        "attributed": int(said.sum()),
        "found": int(found.sum()),
        "located": int(located.sum()),
        "exact": int((located & (positions == truth.origin)).sum()),
    }


def attribution_rows(
    model: PreTrainedModel, truths: Mapping[str, Sequence[Alignment]], drafter: Drafter, least: Sequence[int]
) -> pd.DataFrame:
    """Attribute known answers at each least span: a row per answer and ``least``, with the counts of :func:`attribution_counts`.

    The model is made to say each answer. ``task`` is the name of the set of answers in ``truths``, ``prompt`` the number of the
    question, which several answers may share, and ``answer`` that of the answer.
    """
    rows = []
    for task, answers in truths.items():
        asked = {place: i for i, place in enumerate(dict.fromkeys(tuple(truth.prompt) for truth in answers))}
        for number, truth in enumerate(answers):
            drafter.reset()  # cold: an answer is not attributed by what another one taught
            said = record_known(model, truth.prompt, truth.answer, "length", None, len(truth.answer), drafter.capture)
            run = replay(said.trace, drafter)
            for span in least:
                counts = attribution_counts(truth, attributed_positions(run, span))
                either = (counts["attributed"] + counts["copied"]) / 2
                about = {"task": task, "prompt": asked[tuple(truth.prompt)], "answer": number, "least": span}
                rows.append({**about, **counts, "either": either})
    return pd.DataFrame(rows)


def _weights(block: torch.nn.Module, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Value and output projections of a block, as (out, in) matrices."""
    modules = dict(block.named_modules())
    for path, module in modules.items():
        parent = path.rpartition(".")[0]
        if path.endswith("v_proj") and f"{parent}.o_proj" in modules:
            return module.weight, modules[f"{parent}.o_proj"].weight
    raise UnsupportedModel(f"{name}: its blocks have no v_proj and o_proj, so copying scores cannot be computed")


@torch.inference_mode()
def copying_scores(model: PreTrainedModel) -> np.ndarray:
    """Copying score of every head, from the weights alone: shape (blocks, heads), from -1 (never) to 1 (always).

    Elhage et al. (2021, "A Mathematical Framework for Transformer Circuits", section on the OV circuit): for one head, the map
    from the token attended to, to the logits, is M = E W_V W_O U with the embedding E and the unembedding U. M copies if it sends
    tokens to themselves; the score is the sum of its eigenvalues over the sum of their moduli.

    The gains of the norms before attention and before the unembedding are part of the maps; their division by the length and
    the blocks between are not. UnsupportedModel for a model without separate value and output projections.
    """
    config, blocks, name = decoder_config(model), decoder_blocks(model), type(model).__name__
    projections = [_weights(block, name) for block in blocks]
    heads = config.num_attention_heads
    groups = heads // getattr(config, "num_key_value_heads", heads)
    embed = model.get_input_embeddings().weight.double()
    unembed = model.get_output_embeddings().weight.double() * _gain(getattr(model, model.base_model_prefix).norm)
    # The eigenvalues of E W_V W_O U, up to zeros, are those of W_V (U E) W_O taken the other way round.
    inner = embed.T @ unembed
    scores = np.zeros((len(blocks), heads))
    for place, (block, weights) in enumerate(zip(blocks, projections, strict=True)):
        value, output = (w.double() for w in weights)
        value = value * _gain(block.input_layernorm)
        width = output.shape[1] // heads
        for head in range(heads):
            group = head // groups
            v, o = value[group * width : (group + 1) * width], output[:, head * width : (head + 1) * width]
            eigenvalues = torch.linalg.eigvals(v @ inner @ o)
            scores[place, head] = float(eigenvalues.real.sum() / eigenvalues.abs().sum())
    return scores


def _gain(norm: torch.nn.Module) -> torch.Tensor:
    gain = norm.weight.double()
    # Gemma keeps the gain's difference from 1.
    return 1 + gain if type(norm).__name__.startswith("Gemma") else gain


@torch.inference_mode()
def capture_times(
    model: PreTrainedModel, captures: Mapping[str, Capture], lengths: Sequence[int], draft: int = 10, repeats: int = 20
) -> list[dict[str, float]]:
    """Time of the target's pass over a draft with and without capture, for contexts of ascending ``lengths``.

    Each row has ``tokens``, ``capture`` (its name), ``median_ms`` and ``all_ms`` of the pass and the reading of what was kept;
    the device's own time on a GPU.
    """
    rows, tree = [], DraftTree.chain([1 + i % 7 for i in range(draft)])
    vocabulary = vocabulary_size(model)
    with ExitStack() as opened:
        targets = {
            name: opened.enter_context(Target(model, max(lengths) + draft + 1, capture))
            for name, capture in captures.items()
        }
        clock = clock_of(next(iter(targets.values())).devices)
        for length in lengths:
            for target in targets.values():
                target.extend([(7 * i + 3) % vocabulary for i in range(target.length, length)])
            marks: dict[str, list[tuple]] = {name: [] for name in targets}
            # In turns: other work on the machine falls on all of them.
            for _ in range(repeats + 2):
                for name, target in targets.items():
                    began = clock.mark()
                    target.verify(5, tree)
                    for layer in captures[name].layers:
                        target.hidden(layer)
                    if captures[name].heads:
                        target.attention()
                    marks[name].append((began, clock.mark()))
            clock.settle()
            for name, pairs in marks.items():
                spent = [1e3 * clock.seconds(*pair) for pair in pairs[2:]]
                rows.append({"tokens": length, "capture": name, "median_ms": float(np.median(spent)), "all_ms": spent})
    return rows


def time_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Mean of measured times divided by the mean of others, which were measured apart: each is drawn by itself."""
    a, b = np.asarray(ours), np.asarray(theirs)
    none = [np.zeros(len(b)), np.zeros(len(a))]
    columns = [np.concatenate(pair) for pair in ((a, none[0]), (np.ones(len(a)), none[0]))]
    columns += [np.concatenate(pair) for pair in ((none[1], b), (none[1], np.ones(len(b))))]
    return interval_of_sums(lambda x, n, y, m: (x / n) / (y / m), columns)
