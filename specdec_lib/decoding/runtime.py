"""Passes of a few fixed widths over buffers that stay in place: as they are, compiled, or as CUDA graphs.

A pass over a draft is padded to the next of these widths, and attends over the shortest of a few extents of the buffers
that holds it. Nothing of it then depends on the step but the contents of its input buffers, so that a pass can be
recorded once for each width and extent and replayed. Plain eager passes, which need none of this, are what a target
runs without a runtime.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from transformers import PreTrainedModel

from specdec_lib.decoding import norms
from specdec_lib.decoding.attention_rows import AttentionRows
from specdec_lib.decoding.cache import TreeCache
from specdec_lib.decoding.contract import Capture
from specdec_lib.decoding.forward import Forward
from specdec_lib.decoding.served_models import last_position
from specdec_lib.decoding.tree import DraftTree

#: Widths of a pass in tokens, the last emitted one included.
WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128)
MODES = ("auto", "static", "compiled", "graph", "compiled-graph")
#: The shortest extent; each further one is twice as long, up to the whole buffers.
SHORTEST_EXTENT = 256
#: Rotary embeddings whose frequencies depend on the largest position, which the host reads in each pass.
_READ_BY_HOST = {"dynamic", "longrope"}
_TAKING = threading.Lock()


@dataclass
class _Inputs:
    """What differs between two passes of one width: filled on the host, copied in one go.

    ``line`` holds the tokens, their depths below the root and the committed length; ``tree`` which entry of the
    block attends to which. ``values`` and ``seen`` are the same memory as ``host`` and ``host_tree``.
    """

    host: torch.Tensor
    values: np.ndarray
    line: torch.Tensor
    host_tree: torch.Tensor
    seen: np.ndarray
    tree: torch.Tensor
    chain: torch.Tensor
    holds_tree: bool = True
    copied: torch.cuda.Event | None = None


class Graph(Protocol):
    """Operations recorded once with the memory that they read and write."""

    def replay(self) -> None:
        """Do them again."""


class Recorder(Protocol):
    """Records passes."""

    def __call__(self, run: Callable[[], torch.Tensor]) -> tuple[Graph, torch.Tensor]:
        """What ``run`` does, as a graph, and the tensor that holds what it returns after each replay."""


class CudaRecorder:
    """Records CUDA graphs of one device in a stream of its own; they share one pool of memory, as one runs at a
    time."""

    def __init__(self, device: torch.device):
        self.device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], torch.Tensor]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        # The capture's default stream is one of the current device, which need not be the model's.
        with torch.cuda.device(self.device):
            before = torch.cuda.current_stream()
            try:
                self._stream.wait_stream(before)
                with torch.cuda.stream(self._stream):
                    for _ in range(2):
                        run()
                before.wait_stream(self._stream)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                    result = run()
            except BaseException:
                # Torch leaves the capture's stream current, and the pool recording, where the end of a capture fails.
                torch.cuda.set_stream(before)
                self._pool = torch.cuda.graph_pool_handle()
                raise
        return graph, result


@dataclass
class _Recorded:
    """A graph, where it leaves what it computes, and what it reads that nothing else would keep."""

    graph: Graph
    logits: torch.Tensor
    rows: list[torch.Tensor]
    reader: AttentionRows | None


@dataclass
class _Kept:
    """Buffers of the hidden states of one capture, and the graphs that write into them."""

    states: dict[int, torch.Tensor] = field(default_factory=dict)
    #: By width and extent.
    recorded: dict[tuple[int, int], _Recorded] = field(default_factory=dict)


class Runtime:
    """How the passes of one model are run; made once and used by many generations, one at a time.

    Parameters
    ----------
    model : PreTrainedModel
        On one device.
    capacity : int
        Longest sequence in tokens, prompt and output together.
    mode : {"auto", "static", "compiled", "graph", "compiled-graph"}
        ``"static"`` runs the model as it is, the RMS norms that torch has as one operation fused; ``"graph"`` records
        that as CUDA graphs and replays them. ``"compiled"`` runs the model through ``torch.compile``, and
        ``"compiled-graph"`` records what was compiled: fewest kernels a pass, and half a minute or more for each width
        and extent, so give few widths; both are for drafters that need no hidden states or attention rows. ``"auto"``
        is ``"graph"`` on a GPU, where the model allows it, and ``"static"`` elsewhere.
    widths : sequence of int
        Ascending. A draft that is wider than the last of them is verified by an eager pass over the same cache, for which
        there is room up to a width of 128 at any length.
    extents : sequence of int, optional
        Ascending: of how many slots the buffers are cut for a pass, the shortest that holds what is committed and the
        pass; the whole buffers are always one of them. By default powers of two from 256 on, so that a pass attends
        over at most twice what it must; the whole buffers alone where passes are compiled. Graphs of an extent are
        recorded for all widths when a pass first needs one.
    recorder : Recorder, optional
        Records the passes of the modes with graphs; :class:`CudaRecorder` by default.

    Attributes
    ----------
    passes : Counter
        Passes run by width, and eager ones, the prompts' among them, under ``"eager"``.

    Raises
    ------
    ValueError
        If the mode is unknown, needs a GPU or cannot record the model's passes, the widths or extents do not ascend
        from 1 up, the capacity is below 1, or the model lies on several devices.

    Notes
    -----
    Weights that were moved since graphs were recorded are seen at the start of a generation, and graphs recorded anew;
    to move them within one is an error that nobody sees.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        capacity: int,
        mode: str = "auto",
        widths: Sequence[int] = WIDTHS,
        extents: Sequence[int] | None = None,
        recorder: Recorder | None = None,
    ):
        devices = {parameter.device for parameter in model.parameters()}
        if len(devices) > 1:
            raise ValueError(
                f"the model lies on {sorted(map(str, devices))}; a runtime with buffers in place needs it on one "
                "device: leave the runtime out, or load the model without device_map"
            )
        self.device = model.get_input_embeddings().weight.device
        if mode not in MODES:
            raise ValueError(f"mode is {mode!r}; expected one of {', '.join(MODES)}")
        config = model.config.get_text_config(decoder=True)
        read = _rotary_types(config) & _READ_BY_HOST
        if mode == "auto":
            mode = "graph" if self.device.type == "cuda" and not read else "static"
        self._graphs = mode in ("graph", "compiled-graph")
        if self._graphs and read:
            raise ValueError(
                f"mode is {mode!r}, but the rotary embedding of {type(model).__name__} is {sorted(read)[0]!r}, "
                "for which the host reads the positions of each pass; it cannot be recorded: use 'static'"
            )
        if self._graphs and recorder is None and self.device.type != "cuda":
            raise ValueError(
                f"mode is {mode!r}, but the model is on {self.device}; CUDA graphs need a GPU: use 'static'"
            )
        widths = tuple(widths)
        if not widths or widths[0] < 1 or list(widths) != sorted(set(widths)):
            raise ValueError(f"widths are {widths}; expected whole numbers from 1 up, each once, ascending")
        if not isinstance(capacity, int) or capacity < 1:
            raise ValueError(f"capacity is {capacity!r}; expected a whole number of tokens, 1 or more")
        self.model, self.capacity, self.mode, self.widths = model, capacity, mode, widths
        # Kernels want rows of masks that begin at multiples of 8.
        slots = -(-(capacity + max(widths[-1], WIDTHS[-1])) // 8) * 8
        self.extents = self._lengths(slots, extents)
        self.cache = TreeCache(config.num_hidden_layers, slots, static=True)
        self.passes: Counter[int | str] = Counter()
        self._last_position = last_position(model, slots - 1)
        self._columns = torch.arange(slots, device=self.device)
        self._inputs = {width: self._buffers(width) for width in widths}
        self._kept: dict[Capture, _Kept] = {}
        self._recorder = recorder if recorder is not None or not self._graphs else CudaRecorder(self.device)
        self._weights: tuple[int, ...] = ()
        self._call = model
        if mode not in ("compiled", "compiled-graph"):
            norms.install(model, self)
        else:
            # Each width is a version of its own of code that all models of a class share.
            torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
            self._call = torch.compile(model, dynamic=False)
        self._holder: weakref.ref | None = None

    def __repr__(self) -> str:
        return f"Runtime({type(self.model).__name__}, {self.mode}, capacity={self.capacity}, widths={self.widths})"

    def take(self, holder: object, model: PreTrainedModel, capture: Capture, longest: int) -> dict[int, torch.Tensor]:
        """Give the buffers to a target until :meth:`give_back`, emptied; the hidden states' buffers are returned.

        Parameters
        ----------
        holder : object
            Has them as long as it lives.
        model : PreTrainedModel
            Which it decodes with.
        capture : Capture
            Hidden states and attention rows of its passes.
        longest : int
            Tokens of its prompt and output.

        Raises
        ------
        ValueError
            If the target's model is another one, its sequence too long, or the mode cannot capture.
        RuntimeError
            If another target holds the buffers.
        """
        if model is not self.model:
            raise ValueError("the runtime was made for another model; make one for this model")
        if longest > self.capacity:
            raise ValueError(
                f"prompt and output may take {longest} tokens and the runtime holds {self.capacity}; make it "
                "with a larger capacity"
            )
        if self._call is not self.model and capture != Capture():
            raise ValueError(
                f"mode {self.mode!r} captures no hidden states and attention rows, which the drafter needs; "
                "use 'static' or 'graph'"
            )
        place = model.get_input_embeddings().weight.device
        if place != self.device:
            raise ValueError(
                f"the model has moved to {place} and the runtime's buffers are on {self.device}; make a new one"
            )
        with _TAKING:
            if self._holder is not None and self._holder() is not None:
                raise RuntimeError(
                    "the runtime is in use by another generation; a draft model that is the target itself "
                    "needs a runtime of its own"
                )
            self._holder = weakref.ref(holder)
        self.cache.length = 0
        if self._graphs:
            weights = tuple(parameter.data_ptr() for parameter in model.parameters())
            if weights != self._weights:
                # Graphs read the memory that the weights were in.
                self._kept.clear()
                self._weights = weights
        return self._kept.setdefault(capture, _Kept()).states

    def give_back(self, failed: bool = False) -> None:
        """Let another target have the buffers; after a failure, as zeros."""
        self._holder = None
        if failed:
            self.cache.clear()

    def width_for(self, count: int) -> int | None:
        """The width a pass over ``count`` tokens is padded to; None where none is wide enough."""
        return next((width for width in self.widths if width >= count), None)

    def run(
        self,
        forward: Forward,
        capture: Capture,
        tokens: Sequence[int] | torch.Tensor,
        tree: DraftTree | None,
    ) -> torch.Tensor:
        """One pass over a block behind the committed positions.

        Parameters
        ----------
        forward : Forward
            Of the holder of the buffers.
        capture : Capture
            The one it came with.
        tokens : sequence of int, or int64 tensor on the model's device
            At most as many as the widest width.
        tree : DraftTree, optional
            What the tokens after the first form, its passengers last; None for a chain.

        Returns
        -------
        tensor, shape (len(tokens), vocabulary)
            Overwritten by the next pass.
        """
        width = self.width_for(len(tokens))
        self._fill(width, tokens, tree)
        self.passes[width] += 1
        extent = self.extent_for(self.cache.length + width)
        if not self._graphs:
            return self._pass(width, extent, forward)[: len(tokens)]
        recorded = self._kept[capture].recorded
        if (width, extent) not in recorded:
            # All widths now, so that no later pass over about as many tokens takes longer than its like.
            for each in self.widths:
                # What a recording computes is used by nobody, so that it may lie past the extent.
                self._fill(each, [0], None)
                recorded[each, extent] = self._record(each, extent, forward)
            self._fill(width, tokens, tree)
        recording = recorded[width, extent]
        recording.graph.replay()
        if forward.rows is not None:
            forward.rows.take(recording.rows)
        return recording.logits[: len(tokens)]

    def ready(self, capture: Capture) -> set[int]:
        """The extents for which nothing is recorded any more before a pass with this capture."""
        if not self._graphs:
            return set(self.extents)
        kept = self._kept.get(replace(capture, topk=0))
        return set() if kept is None else {extent for _, extent in kept.recorded}

    def extent_for(self, count: int) -> int:
        """Of how many slots a pass is that ends with ``count`` tokens in the buffers."""
        return next((extent for extent in self.extents if extent >= count), self.extents[-1])

    def _lengths(self, slots: int, extents: Sequence[int] | None) -> tuple[int, ...]:
        if extents is None:
            extents, extent = [], SHORTEST_EXTENT
            while extent < slots and "compiled" not in self.mode:
                extents.append(extent)
                extent *= 2
        extents = tuple(extents)
        if extents and (extents[0] < 1 or list(extents) != sorted(set(extents))):
            raise ValueError(f"extents are {extents}; expected whole numbers from 1 up, each once, ascending")
        return (*(extent for extent in extents if extent < slots), slots)

    def _buffers(self, width: int) -> _Inputs:
        pinned = self.device.type == "cuda"
        host = torch.zeros(2 * width + 1, dtype=torch.long, pin_memory=pinned)
        tree = torch.ones((width, width), dtype=torch.bool, pin_memory=pinned)
        chain = torch.ones((width, width), dtype=torch.bool, device=self.device).tril()
        return _Inputs(host, host.numpy(), host.to(self.device, copy=True), tree, tree.numpy(), chain.clone(), chain)

    def _fill(self, width: int, tokens: Sequence[int] | torch.Tensor, tree: DraftTree | None) -> None:
        inputs, count = self._inputs[width], len(tokens)
        if inputs.copied is not None:
            inputs.copied.synchronize()  # the last copy out of this memory; long done where its pass was waited for
        bushy = tree is not None and not tree.is_causal
        # Padding continues the chain, or stands alone beside a tree: nothing attends to it.
        depths = [*tree.block_depths, *[0] * (width - count)] if bushy else range(width)
        known = [0] * count if isinstance(tokens, torch.Tensor) else tokens
        inputs.values[:] = [*known, *[0] * (width - count), *depths, self.cache.length]
        inputs.line.copy_(inputs.host, non_blocking=True)
        if isinstance(tokens, torch.Tensor):
            inputs.line[:count].copy_(tokens)
        if bushy:
            seen = inputs.seen
            seen[:] = False
            seen[range(width), range(width)] = True
            seen[:count, :count] = tree.mask()
            inputs.tree.copy_(inputs.host_tree, non_blocking=True)
        elif inputs.holds_tree:
            inputs.tree.copy_(inputs.chain)
        inputs.holds_tree = bushy
        if self.device.type == "cuda":
            inputs.copied = inputs.copied or torch.cuda.Event()
            inputs.copied.record(torch.cuda.current_stream(self.device))

    def _pass(self, width: int, extent: int, forward: Forward) -> torch.Tensor:
        inputs, slots = self._inputs[width], self._columns[:extent]
        tokens, depths, length = inputs.line[:width], inputs.line[width : 2 * width], inputs.line[2 * width]
        behind = slots - length
        block = inputs.tree[:, behind.clamp(0, width - 1)] & (behind >= 0) & (behind < width)
        rows = length + depths
        # Of the committed slots the index is the position; what lies past the block is seen by none.
        columns = None if forward.window is None else torch.where(behind < 0, slots, rows[behind.clamp(0, width - 1)])
        positions = rows.clamp(max=self._last_position)
        forward.in_place = True
        self.cache.slots, self.cache.extent = length + self._columns[:width], extent
        try:
            mask = forward.as_mask(block | (behind < 0), rows, columns)
            return forward(self._call, tokens[None], positions, mask, last_only=False)
        finally:
            self.cache.slots = self.cache.extent = None
            forward.in_place = False

    def _record(self, width: int, extent: int, forward: Forward) -> _Recorded:
        try:
            graph, logits = self._recorder(lambda: self._pass(width, extent, forward))
        except torch.OutOfMemoryError:
            self._kept.clear()
            raise
        except RuntimeError as error:
            # What was recorded before shares the memory of the graph that failed.
            self._kept.clear()
            raise RuntimeError(
                f"a pass of {type(self.model).__name__} cannot be recorded as a CUDA graph "
                f"({str(error).splitlines()[0]}); use Runtime(..., mode='static')"
            ) from error
        return _Recorded(graph, logits, [] if forward.rows is None else forward.rows.held(), forward.rows)


def _rotary_types(config) -> set[str]:
    """Kinds of the rotary embeddings of a model's layers."""
    rope = getattr(config, "rope_parameters", None) or {}
    entries = (rope, *(entry for entry in rope.values() if isinstance(entry, dict)))
    return {entry["rope_type"] for entry in entries if entry.get("rope_type")}
