"""Every method at the cost of a large shape: a small pair, widened, with the stores and heads made for the small one.

A widened model computes the small one's function, so what was made for the small model serves the wide one: states
are the small ones followed by zeros, and heads stand where :func:`specdec_lib.chapters.ch06_gpu_benchmarks.widen.place_heads` says.
A wide pair has the shape of one model and the behaviour of another.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, PreTrainedModel

from specdec_lib.chapters.ch06_gpu_benchmarks.memory import available_bytes
from specdec_lib.chapters.ch06_gpu_benchmarks.shapes import PRESETS, draft_shape, parameter_bytes
from specdec_lib.chapters.ch06_gpu_benchmarks.widen import place_heads, shape_config, widen_to
from specdec_lib.datastores import SuffixIndex
from specdec_lib.decoding.served_models import decoder_config
from specdec_lib.experiments.recorded_runs import load_pair
from specdec_lib.experiments.workbench import ModelPair, Narrowed
from specdec_lib.heads.acceptance import AcceptanceHead
from specdec_lib.models.fingerprint import fingerprint
from specdec_lib.models.loading import resolve_device, resolve_dtype


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
        raise ValueError(f"the draft model's states have width {width}, the head's {small}; expected at least that")
    wide = AcceptanceHead(width, head.depth, head.tied, True, fingerprint(draft), head.story, head.sees_confidence)
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


@dataclass
class WidePair(ModelPair):
    """A widened pair, with the stores and heads of the small one.

    Attributes
    ----------
    narrow : ModelPair
        What was widened, for which stores are built and layer and heads are chosen.
    """

    narrow: ModelPair | None = None

    @classmethod
    def of(cls, narrow: ModelPair, target: PreTrainedModel, draft: PreTrainedModel, shape: str) -> WidePair:
        """The pair of ``narrow`` at the cost of a shape: the widened ``target`` and ``draft``."""
        return cls(target, draft, narrow.tokenizer, narrow.store_tokens, narrow.dense_tokens, shape, narrow=narrow)

    @property
    def small(self) -> ModelPair:
        return self.narrow

    @property
    def sparse(self) -> SuffixIndex:
        return self.narrow.sparse

    @property
    def dense_text(self) -> SuffixIndex:
        return self.narrow.dense_text

    @cached_property
    def dense(self) -> Narrowed:
        index = self.narrow.dense.index
        self.notes |= {name: value for name, value in self.narrow.notes.items() if name.startswith("dense")}
        return Narrowed(index, decoder_config(self.target).hidden_size)

    @cached_property
    def acceptance_head(self) -> AcceptanceHead:
        return widen_head(self.narrow.acceptance_head, self.draft)

    def choose_heads(self, *args: Any, **kwargs: Any) -> None:
        self.narrow.choose_heads(*args, **kwargs)
        self._place()

    def _chosen(self, name: str) -> Any:
        if name not in self.notes:
            self.narrow._chosen(name)
            self._place()
        return self.notes[name]

    def _place(self) -> None:
        """Note where the small model's layer and heads stand in the wide one."""
        layer, heads = self.narrow.notes["layer"], self.narrow.notes["heads"]
        # The last counts behind the final norm, which the wide model has behind all of its layers.
        last = layer == decoder_config(self.narrow.target).num_hidden_layers
        where = place_heads(self.narrow.target.config, self.target.config)[0]
        self.notes["layer"] = decoder_config(self.target).num_hidden_layers if last else layer
        self.notes["heads"] = [(block, where[head]) for block, head in heads]
        self.notes["small layer"], self.notes["small heads"] = layer, heads


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
) -> ModelPair:
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
        A preset for the draft model, instead of ``ratio``.
    **sizes : int
        ``store_tokens``, ``dense_tokens`` of :class:`specdec_lib.experiments.workbench.ModelPair`.

    Raises
    ------
    MemoryError
        If the wide pair does not fit into the device's memory; the message names the largest shape that would.
    ValueError
        If the shape is unknown, or models or tokenizers do not fit together.
    """
    if not shape:
        model, small, tokenizer = load_pair(target, draft, device, dtype)
        return ModelPair(model, small, tokenizer, **sizes)
    # Its passes are long enough to share. A notebook that runs with another has fewer threads than there are.
    threads = int(os.environ.get("SPECDEC_THREADS", torch.get_num_threads()))
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
    return WidePair.of(ModelPair(small_target, small_draft, tokenizer, **sizes), wide, narrow, shape)


def build_fitting(*models: Any, **sizes: int) -> tuple[ModelPair, str]:
    """:func:`build_pair` where the shape fits into memory, else the pair as it is.

    Parameters
    ----------
    *models, **sizes
        The arguments of :func:`build_pair`, the shape being the third.

    Returns
    -------
    pair : ModelPair
    reason : str
        Why the shape does not fit; empty where it does.
    """
    target, draft, shape, *rest = models
    try:
        return build_pair(target, draft, shape, *rest, **sizes), ""
    except MemoryError as error:
        return build_pair(target, draft, "", *rest, **sizes), str(error)
