"""Wall-clock rates of every method by task, the speed-up by each definition, and a comparison with transformers' methods."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.utils import logging

from specdec_lib.decoding import attention
from specdec_lib.decoding.results import PARTS
from specdec_lib.decoding.runtime import Runtime
from specdec_lib.decoding.sampling import Sampling, distribution
from specdec_lib.decoding.target import Target
from specdec_lib.decoding.tree import EMPTY, DraftTree
from specdec_lib.experiments.comparison import first_divergence
from specdec_lib.experiments.metrics import counts, pooled, speedups
from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.recorded_runs import (
    Recording,
    Runs,
    record_prompts,
    run_again,
    select,
    time_methods,
)
from specdec_lib.experiments.statistics import Counts, Interval, mean, pooled_rate, ratio_of_means, ratio_of_rates
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.methods import PLAIN, compared_in, draft_length, states

#: Definitions of the speed-up in use, by their names in :func:`specdec_lib.experiments.metrics.speedups`.
DEFINITIONS = (
    "speedup_ratio_of_pooled_rates",
    "speedup_ratio_of_mean_rates",
    "speedup_mean_of_ratios",
)
Timed = Mapping[str, Sequence[Runs]]


def measure(
    pair: ModelPair,
    prompts: Sequence[Prompt],
    sampling: Sampling | None = None,
    max_new_tokens: int = 64,
    repeats: int = 3,
    methods: Sequence[str] | None = None,
    runtime: Runtime | None = None,
    draft_runtime: Runtime | None = None,
) -> tuple[list[Recording], dict[str, list[list]]]:
    """Decode prompts with every method, ``repeats`` times in turns.

    Parameters
    ----------
    pair : ModelPair
    prompts : sequence of Prompt
    sampling : Sampling, optional
        Greedy by default.
    max_new_tokens, repeats : int
    methods : sequence of str, optional
        Plain decoding among them; by default all that the chapter compares.
    runtime, draft_runtime : Runtime, optional
        Of target and draft.

    Returns
    -------
    recordings : list of Recording
        Plain runs, which give the lossless outputs.
    timed : dict
        By method: for each repeat one run a recording, in the state of the method's row.
    """
    methods = (PLAIN, *compared_in("06")) if methods is None else methods
    recordings = record_prompts(pair.target, pair.tokenizer, prompts, sampling, max_new_tokens, runtime=runtime)
    drafters = pair.drafters(methods, runtime=draft_runtime)
    return recordings, time_methods(pair.target, recordings, drafters, repeats, runtime, states(drafters))


def table(recordings: Sequence[Recording], timed: Timed, tasks: Sequence[str]) -> list[dict[str, Any]]:
    """One row a method and task, and one a method for all tasks together.

    Parameters
    ----------
    recordings, timed
        Of :func:`measure`; ``"plain"`` among the methods.
    tasks : sequence of str

    Returns
    -------
    list of dict
        ``method``, ``task`` (``"all"`` too), ``state`` of the drafter (``"cold"`` or ``"warm"``), ``prompts``;
        ``tokens_per_second`` and the speed-ups
        :data:`DEFINITIONS`, medians over the repeats, with ``speedup_low`` and ``speedup_high`` the least and
        largest of the first definition; ``tokens_per_forward``; milliseconds of a token by part (``draft_ms``,
        ``verify_ms``, ``commit_ms``, ``host_ms``); ``draft_ms_per_step`` and ``draft_ms_per_token``; ``equal``, how
        many outputs of the first repeat are those of plain decoding.
    """
    rows = []
    for task in ["all", *tasks]:

        def keep(recording: Recording, task: str = task) -> bool:
            return task == "all" or recording.task == task

        known = [r for r in recordings if keep(r)]
        plain = [select(runs, recordings, keep) for runs in timed["plain"]]
        for method, repeats in timed.items():
            kept = [select(runs, recordings, keep) for runs in repeats]
            state = repeats[0][0].state
            rows.append({"method": method, "task": task, "state": state, **_row(known, kept, plain)})
    return rows


def by_sampling(measured: Mapping[str, tuple[Sequence[Recording], Timed]]) -> list[dict[str, Any]]:
    """Rows of :func:`table` over the tasks of each measurement, each row with ``sampling``, the measurement's name, and
    :func:`intervals` of what it compares."""
    return [
        {"sampling": name, **row, "intervals": intervals(recordings, timed, row["method"], row["task"])}
        for name, (recordings, timed) in measured.items()
        for row in table(recordings, timed, list(dict.fromkeys(recording.task for recording in recordings)))
    ]


def intervals(recordings: Sequence[Recording], timed: Timed, method: str, task: str = "all") -> dict[str, Interval]:
    """Rates and speed-ups of a method over all repeats together, with intervals over prompts and over their repeats.

    Returns
    -------
    dict
        ``tokens_per_second``, ``tokens_per_forward`` and the speed-ups :data:`DEFINITIONS`.
    """
    places = [i for i, recording in enumerate(recordings) if task in ("all", recording.task)]
    ours, theirs = ([repeat[i] for repeat in timed[name] for i in places] for name in (method, PLAIN))
    prompts = [i for _ in timed[method] for i in places]
    rates = [counts(runs, "tokens_per_second") for runs in (ours, theirs)]
    whole = [[run.stats["tokens_per_second_with_prefill"] for run in runs] for runs in (ours, theirs)]
    speeds = (
        ratio_of_rates(*rates, prompts),
        ratio_of_means(*whole, prompts),
        mean([a / b for a, b in zip(*whole, strict=True)], prompts),
    )
    return {
        "tokens_per_second": pooled_rate(rates[0], prompts),
        "tokens_per_forward": pooled_rate(counts(ours, "tokens_per_forward"), prompts),
        **dict(zip(DEFINITIONS, speeds, strict=True)),
    }


def _row(recordings: Sequence[Recording], repeats: Sequence[Runs], plain: Sequence[Runs]) -> dict[str, Any]:
    stats = [pooled(runs) for runs in repeats]
    gains = [speedups(ours, theirs) for ours, theirs in zip(repeats, plain, strict=True)]
    first = [gain[DEFINITIONS[0]] for gain in gains]
    row = {
        "prompts": len(recordings),
        "tokens_per_second": median(s["tokens_per_second"] for s in stats),
        **{name: median(gain[name] for gain in gains) for name in DEFINITIONS},
        "speedup_low": min(first),
        "speedup_high": max(first),
        "tokens_per_forward": stats[0]["tokens_per_forward"],
    }
    for part in PARTS:
        # Tokens after the prefill, as for ms_per_token.
        row[part.replace("_seconds", "_ms")] = 1e3 * median(
            s[part] / (s["tokens_per_forward"] * s["calls"]) for s in stats
        )
    row["draft_ms_per_step"] = median(s["draft_ms_per_step"] for s in stats)
    row["draft_ms_per_token"] = median(s["draft_ms_per_token"] for s in stats)
    row["equal"] = sum(run.tokens == r.trace.tokens for run, r in zip(repeats[0], recordings, strict=True))
    return row


@torch.inference_mode()
def margin(model: PreTrainedModel, recording: Recording, position: int, runtime: Runtime | None = None) -> float:
    """How close the choice of a greedy output was, in units of the rounding of the model's type.

    Parameters
    ----------
    model : PreTrainedModel
    recording : Recording
        A greedy plain run.
    position : int
        Index of the new token.
    runtime : Runtime, optional
        Runs the pass that the choice was made in; eagerly without one.

    Returns
    -------
    float
        Difference of the two largest logits over the spacing of numbers of their size: a few units and less are
        within what another order of the same sums gives.
    """
    trace = recording.trace
    tokens = [*trace.prompt, *trace.tokens[:position]]
    with Target(model, len(tokens) + 1, runtime=runtime) as target:
        target.extend(tokens[:-1])
        best = target.verify(tokens[-1], EMPTY)[0].float().topk(2).values
    spacing = torch.finfo(model.dtype).eps * 2.0 ** float(best.abs().max().log2().floor())
    return float(best[0] - best[1]) / spacing


def divergences(
    model: PreTrainedModel,
    recordings: Sequence[Recording],
    runs: Mapping[str, Runs],
    runtime: Runtime | None = None,
) -> list[dict[str, Any]]:
    """Outputs that leave those of plain decoding, and how close the choice was where each first does.

    In bfloat16 a pass over several tokens adds the same numbers in another order than a pass over one, so that two
    close logits can change places. Through one width (:class:`specdec_lib.decoding.runtime.Runtime` with that width
    alone) plain decoding rounds as verification does.

    Returns
    -------
    list of dict
        For each method ``method``, ``outputs``, ``equal`` and, of the outputs that differ, ``margin_largest``: the
        largest :func:`margin` at a first difference (None where all are equal).
    """
    rows = []
    for method, done in runs.items():
        margins = []
        for recording, run in zip(recordings, done, strict=True):
            at = first_divergence(recording.trace.tokens, run.tokens)
            if at is not None:
                margins.append(margin(model, recording, at, runtime))
        rows.append(
            {
                "method": method,
                "outputs": len(done),
                "equal": len(done) - len(margins),
                "margin_largest": max(margins, default=None),
            }
        )
    return rows


def same_draws(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Share of uniform draws that give the same token by two distributions, where a draw inverts the cumulative one.

    A difference at one token moves the boundaries of all tokens after it. So the share is at most 1 minus the total
    variation distance, and can be far below it.

    Parameters
    ----------
    first, second : float64 tensor, shape (..., vocabulary)
        Probabilities.

    Returns
    -------
    float64 tensor, shape (...)
    """
    ends = first.cumsum(-1), second.cumsum(-1)
    starts = tuple(torch.nn.functional.pad(end[..., :-1], (1, 0)) for end in ends)
    return (torch.minimum(*ends) - torch.maximum(*starts)).clamp(min=0).sum(-1)


@torch.inference_mode()
def draw_agreement(
    model: PreTrainedModel, recordings: Sequence[Recording], runtime: Runtime | None = None
) -> dict[str, float]:
    """How far the rounding of a wide pass moves sampled outputs from those of passes over one token.

    Parameters
    ----------
    model : PreTrainedModel
    recordings : sequence of Recording
        Sampled plain runs.
    runtime : Runtime, optional
        Runs the passes; eagerly without one.

    Returns
    -------
    dict
        ``total_variation``: mean distance of the next token's distribution by one pass over all new tokens from that by
        passes over one; ``outputs``; ``equal_expected``: how many outputs are expected to be drawn alike by both.
    """
    distances, equal = [], 0.0
    for recording in recordings:
        trace = recording.trace
        new = list(trace.tokens[:-1])
        if not new:  # the prefill, which all methods share, gave the only token
            equal += 1.0
            continue
        with Target(model, len(trace.prompt) + len(new) + 1, runtime=runtime) as target:
            target.extend(trace.prompt)
            wide = distribution(target.verify(new[0], DraftTree.chain(new[1:])), trace.sampling)
            narrow = []
            for token in new:
                narrow.append(distribution(target.verify(token, EMPTY)[:1], trace.sampling))
                target.commit([])
        single = torch.cat(narrow)
        distances.append((wide - single).abs().sum(-1) / 2)
        equal += float(same_draws(wide, single).prod())
    mean = float(torch.cat(distances).mean()) if distances else 0.0
    return {"total_variation": mean, "outputs": len(recordings), "equal_expected": equal}


#: Transformers' methods, each with ours that does the same.
PEERS = {"generate": "plain", "prompt lookup": "PLD", "assisted generation": "SpecDec"}


def peers(
    pair: ModelPair,
    recordings: Sequence[Recording],
    repeats: int = 3,
    lengths: Mapping[str, int] | None = None,
    runtime: Runtime | None = None,
    draft_runtime: Runtime | None = None,
) -> list[dict[str, Any]]:
    """Transformers' own methods compared with ours on the same model and prompts, greedy, in turns.

    The whole call is timed on both sides. Transformers runs eager passes over its growing cache. Our drafters start each
    prompt cold.

    Parameters
    ----------
    pair : ModelPair
    recordings : sequence of Recording
        Greedy plain runs: which prompts, and how many tokens.
    repeats : int
    lengths : mapping, optional
        Draft lengths of ours (:func:`specdec_lib.methods.draft_length`), which transformers' get too; its assisted generation
        keeps it constant.
    runtime, draft_runtime : Runtime, optional
        Of our target and draft.

    Returns
    -------
    list of dict
        For each of :data:`PEERS` ``method``, ``ours``, ``runtime`` of ours; ``tokens_per_second`` and ``ours_tokens_per_second``,
        prefill
        included, of all prompts and repeats together; ``ratio`` of ours to theirs with ``ratio_low`` and ``ratio_high``, its
        interval over prompts and their repeats; ``equal``, how many of their ``outputs`` are those of our plain decoding.
    """
    lengths = lengths or {}
    drafters = pair.drafters(list(PEERS.values()), lengths, draft_runtime)
    told = logging.get_verbosity()
    logging.set_verbosity_error()  # its assisted generation warns of its own way of calling itself
    try:
        # Theirs with the attention kernels that ours run with.
        with attention.backends(pair.target.device):
            return _peers(pair, recordings, repeats, lengths, runtime, drafters)
    finally:
        logging.set_verbosity(told)


def _peers(
    pair: ModelPair,
    recordings: Sequence[Recording],
    repeats: int,
    lengths: Mapping[str, int],
    runtime: Runtime | None,
    drafters: Mapping[str, Any],
) -> list[dict[str, Any]]:
    found: dict[str, list[tuple[int, float, int, float, int]]] = {name: [] for name in PEERS}
    equal = dict.fromkeys(PEERS, 0)
    for repeat in range(-1, repeats):
        chosen = recordings[:1] if repeat < 0 else recordings
        for name, ours in PEERS.items():
            for place, recording in enumerate(chosen):
                mine, theirs, tokens = 0.0, 0.0, [0, 0]
                for turn in (0, 1) if (place + repeat) % 2 else (1, 0):
                    if turn:
                        theirs, out = _transformers(pair, recording, name, lengths)
                        tokens[0] = len(out)
                        equal[name] += repeat == 0 and out == recording.trace.tokens
                    else:
                        began = time.perf_counter()
                        run = run_again(pair.target, [recording], drafters[ours], runtime)[0]
                        mine, tokens[1] = time.perf_counter() - began, len(run.tokens)
                if repeat >= 0:
                    found[name].append((place, mine, tokens[1], theirs, tokens[0]))
    rows = []
    for name, repeated in found.items():
        prompts, mine, written, theirs, others = map(list, zip(*repeated, strict=True))
        ratio = ratio_of_rates(Counts(written, mine), Counts(others, theirs), prompts)
        rows.append(
            {
                "method": name,
                "ours": PEERS[name],
                "runtime": "eager" if runtime is None else runtime.mode,
                "tokens_per_second": sum(others) / sum(theirs),
                "ours_tokens_per_second": sum(written) / sum(mine),
                "ratio": ratio.value,
                "ratio_low": ratio.low if ratio.known else None,
                "ratio_high": ratio.high if ratio.known else None,
                "equal": equal[name],
                "outputs": len(recordings),
            }
        )
    return rows


def _transformers(
    pair: ModelPair, recording: Recording, name: str, lengths: Mapping[str, int]
) -> tuple[float, list[int]]:
    """Seconds and new tokens of one prompt by a method of ``generate``."""
    trace, draft = recording.trace, pair.draft
    ids = torch.tensor([trace.prompt], device=pair.target.device)
    extra: dict[str, Any] = {}
    if name == "prompt lookup":
        extra = {"prompt_lookup_num_tokens": draft_length("PLD", lengths), "max_matching_ngram_size": 3}
    elif name == "assisted generation":
        draft.generation_config.num_assistant_tokens = draft_length("SpecDec", lengths)
        draft.generation_config.num_assistant_tokens_schedule = "constant"
        draft.generation_config.assistant_confidence_threshold = 0.0
        extra = {"assistant_model": draft}
    began = time.perf_counter()
    out = pair.target.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=trace.limits.max_new_tokens,
        pad_token_id=0,
        **extra,
    )
    tokens = out[0, len(trace.prompt) :].tolist()  # waits for the device
    return time.perf_counter() - began, tokens
