"""How long passes and methods take in seconds.

Every method and transformers' own decode in turns, and the same runs are put together from the costs of their passes. A model of
a large model's shape with random weights gives the cost of its pass: it takes as long as the trained one.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn.functional import linear
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.utils import logging

from specdec_lib.decoding import attention
from specdec_lib.decoding.checks import one_of
from specdec_lib.decoding.clock import clock_of
from specdec_lib.decoding.generate import generate
from specdec_lib.decoding.loop import Trace
from specdec_lib.decoding.results import PARTS, Generation
from specdec_lib.decoding.runtime import WIDTHS, Runtime
from specdec_lib.decoding.served_models import vocabulary_size
from specdec_lib.drafters.pass_costs import PassCosts
from specdec_lib.experiments.costs.measured_passes import pass_times, units
from specdec_lib.experiments.data.prompt import Prompt, render
from specdec_lib.experiments.runs.recorded_runs import WARM_UP, Recording, Runs, record_prompts
from specdec_lib.experiments.runs.recordings import record_once
from specdec_lib.experiments.statistics.intervals import median_interval
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.methods import METHODS, PLAIN, draft_length, method_of, states
from specdec_lib.models.draft_vocabulary import draft_vocabulary

if TYPE_CHECKING:
    import pandas as pd

#: What :func:`specdec_lib.experiments.runs.results.ratio` compares in the rows of :func:`race`: the whole call, and without the
#: prefill.
CALL, AFTER_PREFILL = ("written", "seconds"), ("tokens", "decoding_seconds")
#: Transformers' own ways to decode, each with ours that does the same.
PEERS = {"transformers": PLAIN, "transformers, prompt lookup": "PLD", "transformers, assisted": "SpecDec"}


def race(
    pair: ModelPair,
    prompts: Sequence[Prompt],
    methods: Sequence[str],
    max_new_tokens: int,
    peers: Sequence[str] = tuple(PEERS),
) -> tuple[list[Recording], dict[str, list[Generation]], list[dict[str, Any]]]:
    """Decode prompts greedily with every method and with transformers' own that are comparable (``peers``), in turns.

    The turns rotate, so that whatever else the machine does meets all of them. Every method decodes the beginning of the answer
    to the shortest prompt before any time counts. On a GPU our passes are recorded graphs
    (:class:`~specdec_lib.decoding.runtime.Runtime`).

    Returns the recordings of plain runs, which give the prompts and the lossless outputs; the runs by method of ours; and one
    row for each output and method (``_row``).
    """
    runtime, draft_runtime = _runtimes(pair, prompts, max_new_tokens)
    if runtime is None:
        recordings = record_once(pair.target, pair.tokenizer, prompts, None, max_new_tokens)
    else:
        recordings = record_prompts(pair.target, pair.tokenizer, prompts, None, max_new_tokens, runtime=runtime)
    drafters = pair.drafters(methods, runtime=draft_runtime)
    peers = [peer for peer in peers if PEERS[peer] in drafters]
    assisted = any(PEERS[peer] == "SpecDec" for peer in peers)
    assistant = with_ids_of(pair.draft, vocabulary_size(pair.target)) if assisted else None
    names, state = [*drafters, *peers], states(drafters)
    runs: dict[str, list[Generation]] = {name: [] for name in drafters}
    rows: list[dict[str, Any]] = []
    shortest = min(recordings, key=lambda one: len(one.trace.prompt))
    warming = replace(shortest.trace.limits, max_new_tokens=min(WARM_UP, max_new_tokens))
    turns = [(i, one, one.trace.limits) for i, one in enumerate(recordings)]
    for place, recording, limits in [(0, shortest, warming), *turns]:
        trace = replace(recording.trace, limits=limits)
        first = place % len(names)
        for name in names[first:] + names[:first]:
            drafter, run = drafters.get(name), None
            if drafter is not None and (state[name] == "cold" or place == 0):
                drafter.reset()
            began = time.perf_counter()
            if name in peers:
                tokens = _transformers(pair.target, trace, PEERS[name], assistant)
            else:
                longest, ends = limits.max_new_tokens, sorted(limits.eos)
                run = generate(pair.target, trace.prompt, drafter, None, longest, ends, runtime=runtime)
                tokens = run.tokens
            seconds = time.perf_counter() - began
            if limits is not warming:
                rows.append(_row(recording, name, seconds, tokens, run))
                if run is not None:
                    runs[name].append(run)
    return recordings, runs, rows


def _row(
    recording: Recording, method: str, seconds: float, tokens: Sequence[int], run: Generation | None
) -> dict[str, Any]:
    """What an output is and took: ``written`` tokens and ``seconds`` of the whole call; ``equal``, whether it is that of plain
    decoding; of ours also ``tokens`` after the prefill, ``passes``, ``drafted``, the parts of a step's time
    (:data:`~specdec_lib.decoding.results.PARTS`) and ``decoding_seconds``, their sum."""
    steps = run.steps if run else []
    parts = {part: sum(getattr(step, part) for step in steps) for part in PARTS}
    parts["decoding_seconds"] = sum(parts.values())
    about = {"task": recording.task, "prompt": recording.prompt.id, "turn": recording.turn, "seed": 0, "method": method}
    counts = {"written": len(tokens), "seconds": seconds, "tokens": sum(len(step.tokens) for step in steps)}
    counts |= {"passes": len(steps), "drafted": sum(step.drafted for step in steps)}
    return about | counts | parts | {"equal": list(tokens) == recording.trace.tokens}


def _runtimes(
    pair: ModelPair, prompts: Sequence[Prompt], max_new_tokens: int
) -> tuple[Runtime, Runtime | None] | tuple[None, None]:
    """How passes of target and draft model run: as graphs on one GPU, as they are elsewhere."""
    if {parameter.device.type for parameter in pair.target.parameters()} != {"cuda"}:
        return None, None
    longest = max(
        len(render(prompt, pair.tokenizer, [""] * turn)) + (turn + 1) * (max_new_tokens + 32)
        for prompt in prompts
        for turn in range(len(prompt.turns))
    )
    capacity = -(-longest // 64) * 64
    return Runtime(pair.target, capacity), pair.draft and Runtime(pair.draft, capacity, widths=(1, 2, 4))


def _transformers(target: PreTrainedModel, trace: Trace, ours: str, assistant: PreTrainedModel | None) -> list[int]:
    """New tokens of one prompt by transformers' own method that does what ours does, with the same draft length."""
    ids = torch.tensor([trace.prompt], device=target.device)
    extra: dict[str, Any] = {"eos_token_id": sorted(trace.limits.eos)} if trace.limits.eos else {}
    if ours == "PLD":
        extra |= {"prompt_lookup_num_tokens": draft_length("PLD", {}), "max_matching_ngram_size": 3}
    elif ours == "SpecDec":
        extra["assistant_model"] = assistant
    shown = logging.get_verbosity()
    logging.set_verbosity_error()  # its assisted generation warns of its own way of calling itself
    try:
        with attention.settings(target.device):  # the kernels that ours run with
            out = target.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=trace.limits.max_new_tokens,
                pad_token_id=0,
                **extra,
            )
    finally:
        logging.set_verbosity(shown)
    return out[0, len(trace.prompt) :].tolist()  # waits for the device


def with_ids_of(draft: PreTrainedModel, vocabulary: int) -> PreTrainedModel:
    """A draft model for transformers' assisted generation, with SpecDec's draft length, that reads and writes the target's ids.

    It has assistance across vocabularies too, by way of text and a second tokenizer; here both have one tokenizer.
    """
    about = draft.generation_config
    about.num_assistant_tokens, about.num_assistant_tokens_schedule = draft_length("SpecDec", {}), "constant"
    about.assistant_confidence_threshold = 0.0
    known = draft_vocabulary(draft)
    if known.shared:
        return draft

    class Draft(type(draft)):
        def forward(self, input_ids: torch.Tensor, **rest: Any) -> Any:
            own = torch.tensor([known.to_draft(input_ids[0].tolist())], device=input_ids.device)
            out = super().forward(input_ids=own, **rest)
            out.logits = known.spread(out.logits[..., : len(known)], vocabulary, -torch.inf)
            return out

    other = copy.deepcopy(draft)
    other.__class__ = Draft
    other.config.vocab_size = vocabulary
    return other


def measured_costs(
    widths: Mapping[int, float], rows: Sequence[Mapping[str, Any]], runs: Mapping[str, Runs]
) -> PassCosts:
    """What a step costs here, in the one-token passes of plain decoding, from costs of widths, rows of :func:`race`, and
    replays.

    The loop's own work is that of plain decoding. A proposal costs the median of its times, by the step, the drafted token or the
    level as the method's row says: a first proposal may compile something.
    """
    plain = [row for row in rows if row["method"] == PLAIN]
    passes = sum(row["passes"] for row in plain)
    one = sum(row["verify_seconds"] for row in plain) / passes
    loop = sum(row["commit_seconds"] + row["host_seconds"] for row in plain) / passes / one

    def proposal(names: Sequence[str]) -> float:
        spent = [
            step.draft_seconds / count
            for name in names
            for run in runs[name]
            for step in run.steps
            if (count := units(METHODS[name], step))
        ]
        return statistics.median(spent) / one if spent else 0.0

    by_token = [name for name in runs if name in METHODS and METHODS[name].cost_per == "token"]
    return PassCosts(
        widths,
        step=loop,
        drafted_token=proposal(by_token),
        name="this machine",
        drafting={name: proposal([name]) for name in runs if name in METHODS and name not in by_token},
    )


def with_cost_at(runs: pd.DataFrame, costs: PassCosts) -> pd.DataFrame:
    r"""A results table with a column ``cost``: what the steps cost, prefill left out, in passes over one token.

    :math:`\sum_s r(w_s) + h + d_s`: the cost of the pass by its width, the loop's own work, and the proposal. A variant
    ``"name, variant"`` drafts at the cost of its method.
    """

    from specdec_lib.experiments.runs.results import with_cost  # pandas, which the machine of `make gpu` may lack

    def around(name: str) -> dict[str, float]:
        method = method_of(name)
        if method is not None and method.cost_per == "token":
            return {"passes": costs.step, "drafted": costs.drafted_token}
        if method is not None and method.cost_per == "level":
            return {"passes": costs.step, "levels": costs.drafting.get(method.name, 0.0)}
        return {"passes": costs.step_of(*([method.name] if method else []))}

    return with_cost(runs, costs.widths, around)


#: Layers of a model that stands for a deeper one of the same shape.
FEW = 2


class Shape(NamedTuple):
    """Sizes of a Llama model, as :class:`transformers.LlamaConfig` names them; ``tied`` models have one embedding matrix."""

    layers: int
    hidden: int
    inner: int
    heads: int
    key_value_heads: int
    vocabulary: int
    tied: bool = False


#: Shapes by name, and the models that have them.
SHAPES = {
    "68m": Shape(2, 768, 3072, 12, 12, 32000),  # Llama-68M, the draft model of REST and PLD+
    "0.35b": Shape(32, 960, 2560, 15, 5, 49152, tied=True),  # SmolLM2-360M
    "1b": Shape(16, 2048, 8192, 32, 8, 128256, tied=True),  # Llama-3.2-1B
    "7b": Shape(32, 4096, 11008, 32, 32, 32000),  # Llama-2-7B, Vicuna-7B, CodeLlama-7B
    "13b": Shape(40, 5120, 13824, 40, 40, 32000),  # Llama-2-13B, Vicuna-13B
    "34b": Shape(48, 8192, 22016, 64, 8, 32000),  # CodeLlama-34B
    "70b": Shape(80, 8192, 28672, 64, 8, 32000),  # Llama-2-70B, the target of SpecDec++
}


def shape_of(name: str) -> Shape:
    """A shape of :data:`SHAPES`; ValueError if there is none of that name."""
    return SHAPES[one_of("shape", name, SHAPES)]


def random_model(shape: Shape, layers: int, dtype: torch.dtype, device: torch.device) -> LlamaForCausalLM:
    """A model of a shape with so many layers and random weights, made on its device in its type."""
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=4096,
        attn_implementation="sdpa",
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)


def pass_ms(
    name: str,
    dtype: torch.dtype,
    device: torch.device,
    context: int,
    repeats: int,
    widths: Sequence[int] = WIDTHS,
    runtime: str = "eager",
    few: int = FEW,
) -> dict[int, float]:
    r"""Milliseconds of a pass of one of :data:`SHAPES` by width, from a model with ``few`` of its layers, or all it has.

    All layers do the same work, so with :math:`t_f` measured for :math:`f` layers and :math:`t_o` for the output layer alone a
    model of :math:`L` layers takes :math:`(t_f - t_o) L / f + t_o`.
    """
    shape = shape_of(name)
    model = random_model(shape, min(few, shape.layers), dtype, device)
    spent = pass_times(model, context, runtime, widths, repeats)
    times = {width: median_interval(own).value for width, own in spent.items()}
    if shape.layers <= few:
        return times
    output = _output_ms(model, widths, repeats)
    return {w: max(times[w] - output[w], 0.0) * shape.layers / few + output[w] for w in times}


@torch.inference_mode()
def _output_ms(model: LlamaForCausalLM, widths: Sequence[int], repeats: int) -> dict[int, float]:
    """Milliseconds of the output layer by width, in turns."""
    weight = model.get_output_embeddings().weight
    states = torch.randn(max(widths), weight.shape[1], dtype=weight.dtype, device=weight.device)
    clock, marks = clock_of({weight.device}), {width: [] for width in widths}
    for _ in range(repeats + 3):
        for width, own in marks.items():
            began = clock.mark()
            linear(states[:width], weight)
            own.append((began, clock.mark()))
    clock.settle()
    return {
        width: median_interval([1e3 * clock.seconds(*pair) for pair in own[3:]]).value for width, own in marks.items()
    }
