"""Passes of a few fixed widths over buffers that stay in place: as they are, compiled, or as CUDA graphs.

A pass over a draft is padded to the next of these widths. Nothing of it then depends on the step but the contents of
its input buffers, so that a pass can be recorded once for each width and replayed. Plain eager passes, which need
none of this, are what a target runs without a runtime.
"""
from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import PreTrainedModel

from .attention_rows import AttentionRows
from .cache import TreeCache
from .contract import Capture
from .forward import Forward
from .tree import DraftTree

#: Widths of a pass in tokens, the last emitted one included.
WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128)
MODES = ("auto", "static", "compiled", "graph")
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


@dataclass
class _Recorded:
    """A CUDA graph, where it leaves what it computes, and what it reads that nothing else would keep."""

    graph: torch.cuda.CUDAGraph
    logits: torch.Tensor
    rows: list[torch.Tensor]
    reader: AttentionRows | None


@dataclass
class _Kept:
    """Buffers of the hidden states of one capture, and the graphs that write into them."""

    states: dict[int, torch.Tensor] = field(default_factory=dict)
    recorded: dict[int, _Recorded] = field(default_factory=dict)


class Runtime:
    """How the passes of one model are run; made once and used by many generations, one at a time.

    Parameters
    ----------
    model : PreTrainedModel
        On one device.
    capacity : int
        Longest sequence in tokens, prompt and output together; every pass attends over so many slots.
    mode : {"auto", "static", "compiled", "graph"}
        ``"static"`` runs the model as it is; ``"compiled"`` through ``torch.compile``, for drafters that need no
        hidden states or attention rows; ``"graph"`` replays CUDA graphs. ``"auto"`` is ``"graph"`` on a GPU and
        ``"static"`` elsewhere.
    widths : sequence of int
        Ascending. A draft that is wider than the last of them is verified by an eager pass over the same cache, for which
        there is room up to a width of 128 at any length.

    Attributes
    ----------
    passes : Counter
        Passes run by width, and eager ones, the prompts' among them, under ``"eager"``.

    Raises
    ------
    ValueError
        If the mode is unknown or needs a GPU, the widths do not ascend from 1 up, the capacity is below 1, or the
        model lies on several devices.
    """

    def __init__(self, model: PreTrainedModel, capacity: int, mode: str = "auto", widths: Sequence[int] = WIDTHS):
        devices = {parameter.device for parameter in model.parameters()}
        if len(devices) > 1:
            raise ValueError(f"the model lies on {sorted(map(str, devices))}; a runtime with buffers in place needs it on one "
                             "device: leave the runtime out, or load the model without device_map")
        self.device = model.get_input_embeddings().weight.device
        if mode not in MODES:
            raise ValueError(f"mode is {mode!r}; expected one of {', '.join(MODES)}")
        if mode == "auto":
            mode = "graph" if self.device.type == "cuda" else "static"
        if mode == "graph" and self.device.type != "cuda":
            raise ValueError(f"mode is 'graph', but the model is on {self.device}; CUDA graphs need a GPU: use 'static'")
        widths = tuple(widths)
        if not widths or widths[0] < 1 or list(widths) != sorted(set(widths)):
            raise ValueError(f"widths are {widths}; expected whole numbers from 1 up, each once, ascending")
        if not isinstance(capacity, int) or capacity < 1:
            raise ValueError(f"capacity is {capacity!r}; expected a whole number of tokens, 1 or more")
        self.model, self.capacity, self.mode, self.widths = model, capacity, mode, widths
        config = model.config.get_text_config(decoder=True)
        # Kernels want rows of masks that begin at multiples of 8.
        slots = -(-(capacity + max(widths[-1], WIDTHS[-1])) // 8) * 8
        self.cache = TreeCache(config.num_hidden_layers, slots, static=True)
        self.passes: Counter[int | str] = Counter()
        self._last_position = (getattr(config, "max_position_embeddings", None) or slots) - 1
        self._columns = torch.arange(slots, device=self.device)
        self._stream = torch.cuda.Stream(self.device) if mode == "graph" else None
        self._inputs = {width: self._buffers(width) for width in widths}
        self._kept: dict[Capture, _Kept] = {}
        self._pool = torch.cuda.graph_pool_handle() if mode == "graph" else None
        self._call = model
        if mode == "compiled":
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
            raise ValueError(f"prompt and output may take {longest} tokens and the runtime holds {self.capacity}; make it "
                             "with a larger capacity")
        if self.mode == "compiled" and capture != Capture():
            raise ValueError("mode 'compiled' captures no hidden states and attention rows, which the drafter needs; use "
                             "'static' or 'graph'")
        with _TAKING:
            if self._holder is not None and self._holder() is not None:
                raise RuntimeError("the runtime is in use by another generation; a draft model that is the target itself "
                                   "needs a runtime of its own")
            self._holder = weakref.ref(holder)
        self.cache.length = 0
        return self._kept.setdefault(capture, _Kept()).states

    def give_back(self, failed: bool = False) -> None:
        """Let another target have the buffers; after a failure, as zeros."""
        self._holder = None
        if failed:
            self.cache.clear()

    def width_for(self, count: int) -> int | None:
        """The width a pass over ``count`` tokens is padded to; None where none is wide enough."""
        return next((width for width in self.widths if width >= count), None)

    def run(self, forward: Forward, capture: Capture, tokens: Sequence[int], tree: DraftTree | None) -> torch.Tensor:
        """One pass over a block behind the committed positions.

        Parameters
        ----------
        forward : Forward
            Of the holder of the buffers.
        capture : Capture
            The one it came with.
        tokens : sequence of int
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
        if self.mode != "graph":
            return self._pass(width, forward)[: len(tokens)]
        recorded = self._kept[capture].recorded
        if not recorded:
            # All of them now, so that no later pass takes longer than its like.
            for each in self.widths:
                self._fill(each, [0], None)
                recorded[each] = self._record(each, forward)
            self._fill(width, tokens, tree)
        found = recorded[width]
        found.graph.replay()
        if forward.rows is not None:
            forward.rows.take(found.rows)
        return found.logits[: len(tokens)]

    def _buffers(self, width: int) -> _Inputs:
        pinned = self.device.type == "cuda"
        host = torch.zeros(2 * width + 1, dtype=torch.long, pin_memory=pinned)
        tree = torch.ones((width, width), dtype=torch.bool, pin_memory=pinned)
        chain = torch.ones((width, width), dtype=torch.bool, device=self.device).tril()
        return _Inputs(host, host.numpy(), host.to(self.device, copy=True), tree, tree.numpy(), chain.clone(), chain)

    def _fill(self, width: int, tokens: Sequence[int], tree: DraftTree | None) -> None:
        inputs, count = self._inputs[width], len(tokens)
        if inputs.copied is not None:
            inputs.copied.synchronize()  # the last copy out of this memory; long done where its pass was waited for
        bushy = tree is not None and not tree.is_causal
        # Padding continues the chain, or stands alone beside a tree: nothing attends to it.
        depths = [*tree.block_depths, *[0] * (width - count)] if bushy else range(width)
        inputs.values[:] = [*tokens, *[0] * (width - count), *depths, self.cache.length]
        inputs.line.copy_(inputs.host, non_blocking=True)
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
            inputs.copied = torch.cuda.Event()
            inputs.copied.record(torch.cuda.current_stream(self.device))

    def _pass(self, width: int, forward: Forward) -> torch.Tensor:
        inputs = self._inputs[width]
        tokens, depths, length = inputs.line[:width], inputs.line[width: 2 * width], inputs.line[2 * width]
        behind = self._columns - length
        block = inputs.tree[:, behind.clamp(0, width - 1)] & (behind >= 0) & (behind < width)
        rows = length + depths
        # Of the committed slots the index is the position; what lies past the block is seen by none.
        columns = None if forward.window is None else torch.where(
            behind < 0, self._columns, rows[behind.clamp(0, width - 1)])
        mask = forward.as_mask(block | (behind < 0), rows, columns)
        positions = rows.clamp(max=self._last_position)
        self.cache.slots = length + self._columns[:width]
        try:
            return forward(self._call, tokens[None], positions, mask, last_only=False)
        finally:
            self.cache.slots = None

    def _record(self, width: int, forward: Forward) -> _Recorded:
        # The capture's default stream is one of the current device, which need not be the model's.
        with torch.cuda.device(self.device):
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                for _ in range(2):
                    self._pass(width, forward)
            torch.cuda.current_stream().wait_stream(self._stream)
            return self._captured(width, forward)

    def _captured(self, width: int, forward: Forward) -> _Recorded:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                logits = self._pass(width, forward)
        except RuntimeError as error:
            raise RuntimeError(f"a pass of {type(self.model).__name__} cannot be recorded as a CUDA graph "
                               f"({str(error).splitlines()[0]}); use Runtime(..., mode='static')") from error
        return _Recorded(graph, logits, [] if forward.rows is None else forward.rows.held(), forward.rows)
