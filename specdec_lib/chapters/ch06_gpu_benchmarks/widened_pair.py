"""Every method at the cost of a large shape: a small pair, widened, with the stores and heads made for the small one.

A widened model computes the small one's function, so what was made for the small model serves the wide one: states
are the small ones followed by zeros, and heads stand where :func:`specdec_lib.chapters.ch06_gpu_benchmarks.widen.place_heads` says. Shape of
one, behaviour of the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib import paths
from specdec_lib.datastores import SuffixIndex
from specdec_lib.datastores.exact_search import ExactIndex
from specdec_lib.decoding.contract import Capture, Drafter
from specdec_lib.decoding.served_models import decoder_config
from specdec_lib.decoding.runtime import Runtime
from specdec_lib.drafters import (
    DraftModel,
    Dresd,
    PromptLookup,
    PromptLookupAttention,
    PromptLookupHidden,
    Rest,
    SpecDecPP,
)
from specdec_lib.heads import induction
from specdec_lib.heads.acceptance import AcceptanceHead
from specdec_lib.models.fingerprint import fingerprint
from specdec_lib.models.loading import resolve_device, resolve_dtype
from specdec_lib.chapters.ch06_gpu_benchmarks.memory import available_bytes
from specdec_lib.chapters.ch06_gpu_benchmarks.shapes import PRESETS, draft_shape, parameter_bytes
from specdec_lib.chapters.ch06_gpu_benchmarks.widen import place_heads, shape_config, widen_to
from specdec_lib.experiments import input_guided, stores
from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.recorded_runs import load_pair, record_prompts, render

#: Draft lengths (K): PLD's default, PLD+'s K of section 5.5, a fixed draft model's, and REST's and DReSD's tree.
LENGTHS = {"PLD": 10, "PLD+": 70, "SpecDec": 4, "REST": 10, "DReSD": 10}
#: Methods of the comparison, plain decoding first.
METHODS = ("plain", "PLD", "PLD+ (h)", "PLD+ (a)", "REST", "DReSD", "SpecDec", "SpecDec++")


class Narrowed:
    """A dense index of a small model's states, searched by those of its widened form.

    Parameters
    ----------
    index : DenseIndex or ExactIndex
    width : int
        Of the wide states, whose first entries are the small model's.
    """

    def __init__(self, index: Any, width: int):
        self.index, self.store, self.path, self.width = index, index.store, index.path, width

    def search(self, states: np.ndarray | torch.Tensor, k: int) -> tuple[np.ndarray, np.ndarray]:
        """As the index's own, on the first entries of each state."""
        return self.index.search(torch.as_tensor(states)[..., : self.index.width].float(), k)


def widen_head(head: AcceptanceHead, draft: PreTrainedModel) -> AcceptanceHead:
    """An acceptance head for the widened form of the draft model that it was trained for.

    Parameters
    ----------
    head : AcceptanceHead
    draft : PreTrainedModel
        The wide draft model.

    Returns
    -------
    AcceptanceHead
        Of the wide model's width, with zeros where a state is zero: it predicts what the small head predicts and costs
        what one of its own would.

    Raises
    ------
    ValueError
        If the draft model is narrower than the head.
    """
    width, small = decoder_config(draft).hidden_size, head.width
    if width < small:
        raise ValueError(
            f"the draft model's states have width {width}, the head's {small}; expected at least that"
        )
    wide = AcceptanceHead(
        width, head.depth, head.tied, True, fingerprint(draft), head.story, head.sees_confidence
    )
    # The confidence, where it is read, is the last input.
    at = torch.tensor([*range(small), *([width] if head.sees_confidence else [])])
    with torch.no_grad():
        wide.out.weight.zero_()
        wide.out.weight[:, at] = head.out.weight
        wide.out.bias.copy_(head.out.bias)
        for ours, theirs in zip(wide.blocks, head.blocks, strict=True):
            ours.linear.weight[at[:, None], at] = theirs.linear.weight
            ours.linear.bias[at] = theirs.linear.bias
    return wide


@dataclass(frozen=True)
class WidePair:
    """A target and a draft model at the cost of a shape, and what the methods need beside them.

    Attributes
    ----------
    target, draft : PreTrainedModel
        What is decoded and timed.
    small_target, small_draft : PreTrainedModel
        What they were widened from; themselves where nothing was widened.
    tokenizer : PreTrainedTokenizerBase
    shape : str
        Name of the target's shape, or ``"its own"``.
    store_tokens, dense_tokens : int
        Sizes of the datastores, which hold text of the standard library that the prompts are not from.
    """

    target: PreTrainedModel
    draft: PreTrainedModel
    small_target: PreTrainedModel
    small_draft: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    shape: str
    store_tokens: int = 200_000
    dense_tokens: int = 40_000
    notes: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def sparse(self) -> SuffixIndex:
        """The suffix index that REST searches."""
        return stores.text_store("stdlib", self.tokenizer, self.store_tokens)

    @cached_property
    def dense_text(self) -> SuffixIndex:
        """The first documents of the same text, which the dense index holds the states of."""
        return stores.first_part(self.sparse, self.dense_tokens)

    @cached_property
    def dense(self) -> Narrowed:
        """The dense index that DReSD searches, by FAISS where it is there and by torch elsewhere."""
        part = self.dense_text
        states = stores.dense_states(self.small_target, part)
        try:
            import faiss  # noqa: F401

            index = stores.dense_index(states, part)
        except ImportError:
            index = ExactIndex(states, part.store, device=self.target.device)
        self.notes["dense search"] = index.backend
        self.notes["dense states"] = len(index)
        return Narrowed(index, decoder_config(self.target).hidden_size)

    @cached_property
    def head(self) -> AcceptanceHead | None:
        """The shipped acceptance head of the pocket draft, widened; None for another draft model."""
        path = paths.POCKET / "head" / "acceptance-confidence.safetensors"
        head = AcceptanceHead.load(path)
        if head.draft != fingerprint(self.small_draft):
            return None
        return head if self.draft is self.small_draft else widen_head(head, self.draft)

    def choose_heads(
        self, without: Sequence[Prompt] = (), count: int = 8, per_task: int = 2, max_new_tokens: int = 64
    ) -> None:
        """Choose PLD+'s layer and heads on calibration prompts, by the small target, and note them.

        Parameters
        ----------
        without : sequence of Prompt
            Prompts whose text is not used.
        count : int
            Attention heads of PLD+ (a).
        per_task : int
            Calibration prompts of each task.
        max_new_tokens : int
        """
        prompts = input_guided.calibration_prompts(input_guided.CALIBRATION, per_task, without=without)
        found = induction.identify(
            self.small_target, [render(p, self.tokenizer) for p in prompts], max_new_tokens, progress=False
        )
        ranked = found.top(min(count, len(found.ranked())))
        config = decoder_config(self.small_target)
        layers = range(config.num_hidden_layers + 1)
        tuned = record_prompts(
            self.small_target, self.tokenizer, prompts, None, max_new_tokens, Capture(tuple(layers))
        )
        layer = input_guided.best_layer(tuned, lambda i: PromptLookupHidden(i, LENGTHS["PLD"]), layers)
        # The last counts behind the final norm, which the wide model has behind all of its layers.
        last = layer == config.num_hidden_layers
        self.notes["layer"] = decoder_config(self.target).num_hidden_layers if last else layer
        self.notes["small layer"], self.notes["small heads"] = layer, list(ranked)
        where = range(config.num_attention_heads)
        if self.target is not self.small_target:
            where = place_heads(self.small_target.config, self.target.config)[0]
        self.notes["heads"] = [(block, where[head]) for block, head in ranked]

    def small(self) -> WidePair:
        """The pair as it was before widening, with the same stores, layer and heads."""
        notes = {name: self.notes[f"small {name}"] for name in ("layer", "heads") if f"small {name}" in self.notes}
        notes |= {f"small {name}": value for name, value in notes.items()}
        return WidePair(
            self.small_target, self.small_draft, self.small_target, self.small_draft, self.tokenizer, "its own",
            self.store_tokens, self.dense_tokens, notes,
        )  # fmt: skip

    def drafters(
        self, methods: Sequence[str] = METHODS, lengths: Mapping[str, int] = LENGTHS, runtime: Runtime | None = None
    ) -> dict[str, Drafter | None]:
        """The methods by name, those left out that these models have nothing for.

        Parameters
        ----------
        methods : sequence of str
            Of :data:`METHODS`.
        lengths : mapping
            Draft lengths by name, as :data:`LENGTHS`.
        runtime : Runtime, optional
            Of the draft model.

        Raises
        ------
        ValueError
            If a method is unknown.
        """
        unknown = [name for name in methods if name not in METHODS]
        if unknown:
            raise ValueError(f"methods hold {unknown[0]!r}; expected some of {', '.join(METHODS)}")
        if "layer" not in self.notes and {"PLD+ (h)", "PLD+ (a)"} & set(methods):
            self.choose_heads()
        makers = {
            "plain": lambda: None,
            "PLD": lambda: PromptLookup(3, lengths["PLD"]),
            "PLD+ (h)": lambda: PromptLookupHidden(self.notes["layer"], lengths["PLD+"]),
            "PLD+ (a)": lambda: PromptLookupAttention(self.notes["heads"], lengths["PLD+"]),
            "REST": lambda: Rest(self.sparse, length=lengths["REST"]),
            "DReSD": lambda: Dresd(self.dense, length=lengths["DReSD"]),
            "SpecDec": lambda: DraftModel(self.draft, lengths["SpecDec"], runtime=runtime),
            "SpecDec++": lambda: SpecDecPP(self.draft, self.head, runtime=runtime),
        }
        wanted = [name for name in methods if name != "SpecDec++" or self.head is not None]
        return {name: makers[name]() for name in wanted}


def model_bytes(model: PreTrainedModel) -> int:
    """Memory of a model's parameters, bytes; tied ones once."""
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


def plain_runtime(model: PreTrainedModel) -> str:
    """``"graph"`` where passes can be recorded: on one GPU; ``"eager"`` elsewhere."""
    devices = {parameter.device for parameter in model.parameters()}
    return "graph" if len(devices) == 1 and next(iter(devices)).type == "cuda" else "eager"


def fast_dtype(device: torch.device) -> str:
    """``"bfloat16"`` on a GPU and on a processor that multiplies in it, else ``"float32"``."""
    if device.type == "cuda":
        return "bfloat16"
    try:
        flags = Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split()
    except OSError:
        flags = []
    return "bfloat16" if {"avx512_bf16", "amx_bf16"} & set(flags) else "float32"


def largest_shape(config: LlamaConfig, dtype: torch.dtype, device: torch.device) -> str:
    """Name of the largest of the published shapes whose parameters fit with a fifth to spare; empty if none does."""
    free = available_bytes(device)
    room, best = (float("inf") if free is None else 0.8 * free), ("", 0)
    for name in PRESETS:
        try:
            needed = parameter_bytes(shape_config(config, name), dtype)
        except ValueError:
            continue  # too small for this model
        if best[1] < needed <= room:
            best = (name, needed)
    return best[0]


def build_pair(
    target: str = "pocket",
    draft: str = "pocket-draft",
    shape: str = "",
    ratio: float = 0.1,
    device: str = "auto",
    dtype: str = "auto",
    draft_named: str = "",
    **sizes: int,
) -> WidePair:
    """Load a pair and widen it.

    Parameters
    ----------
    target, draft : str
        As for :func:`specdec_lib.load_model`.
    shape : str
        Of :data:`specdec_lib.chapters.ch06_gpu_benchmarks.shapes.PRESETS`; empty leaves both models as they are.
    ratio : float
        Wanted t_draft / t_target, which sets the draft model's shape.
    device, dtype : str
        As for :func:`specdec_lib.load_model`; with a shape, the type ``"auto"`` is :func:`fast_dtype`.
    draft_named : str
        A preset for the draft model, in place of ``ratio``.
    **sizes : int
        ``store_tokens``, ``dense_tokens`` of :class:`WidePair`.

    Raises
    ------
    MemoryError
        If the wide pair does not fit into the device's memory; the message names the largest shape that would.
    ValueError
        If the shape is unknown, or models or tokenizers do not fit together.
    """
    if not shape:
        model, small, tokenizer = load_pair(target, draft, device, dtype)
        return WidePair(model, small, model, small, tokenizer, "its own", **sizes)
    threads = torch.get_num_threads()
    place = resolve_device(device)
    dtype = fast_dtype(place) if dtype == "auto" else dtype
    # What is prepared with the small models, and what they choose, is the same in every type of the wide ones.
    small_target, small_draft, tokenizer = load_pair(target, draft, device, "float32")
    torch.set_num_threads(threads)
    kind = resolve_dtype(dtype, place)
    try:
        wide = widen_to(small_target, shape, dtype=kind, device=place)
    except MemoryError as error:
        smaller = largest_shape(small_target.config, kind, place)
        raise MemoryError(f"{error}; the largest shape that fits is {smaller or 'its own'!r}") from None
    size = draft_named or draft_shape(small_draft.config, wide.config, ratio)
    narrow = widen_to(small_draft, size, dtype=kind, device=place)
    return WidePair(wide, narrow, small_target, small_draft, tokenizer, shape, **sizes)
