"""Passes of a few fixed widths over buffers that stay in place: as they are, or as CUDA graphs.

A pass over a draft is padded to the next of these widths and attends over the whole buffers. Nothing of it then depends
on the step but the contents of its input buffers, so that it can be recorded once for each width and replayed.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import PreTrainedModel

from specdec_lib.decoding.attention import AttentionRows
from specdec_lib.decoding.cache import TreeCache
from specdec_lib.decoding.checks import one_of, whole_number
from specdec_lib.decoding.contract import Capture
from specdec_lib.decoding.forward import Forward
from specdec_lib.decoding.served_models import (
    UnsupportedModel,
    decoder_config,
    input_device,
    last_position,
    recurrent_layers,
    rope_settings,
    state_of,
    unwrapped,
)
from specdec_lib.decoding.tree import DraftTree

#: Widths of a pass in tokens, the last emitted one included.
WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128)
#: Rotary embeddings whose frequencies depend on the largest position, which the host reads in each pass.
_READ_BY_HOST = {"dynamic", "longrope"}
_TAKING = threading.Lock()
#: What runs the passes of a model where nothing else is asked for: of models whose weights only their own forward reads.
OF_MODEL: weakref.WeakKeyDictionary[PreTrainedModel, object] = weakref.WeakKeyDictionary()


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


class CudaRecorder:
    """Records what a call does as a CUDA graph, and the tensor that holds what it returns after each replay."""

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

    graph: torch.cuda.CUDAGraph
    logits: torch.Tensor
    rows: list[torch.Tensor]
    reader: AttentionRows | None


@dataclass
class _Kept:
    """Buffers of the hidden states of one capture, and the graphs that write into them."""

    states: dict[int, torch.Tensor] = field(default_factory=dict)
    #: By width.
    recorded: dict[int, _Recorded] = field(default_factory=dict)


class Runtime:
    """How the passes of one model are run; made once and used by many generations, one at a time.

    At the start of a generation, graphs are recorded again if weights were moved, or hooks or adapters switched. Do not change
    them during a generation, because nothing notices it.

    Parameters
    ----------
    model : PreTrainedModel
        On one device.
    capacity : int
        Longest sequence in tokens, prompt and output together.
    mode : {"auto", "static", "graph"}
        ``"static"`` runs the model as it is; ``"graph"`` records that as CUDA graphs and replays them. ``"auto"`` is
        ``"graph"`` on a GPU, where the model allows it, and ``"static"`` elsewhere.
    widths : sequence of int
        Ascending. A draft wider than the last of them is verified by an eager pass over the same cache, for which there is
        room up to a width of 128.
    recorder : callable, optional
        Records the passes of graph mode as :class:`CudaRecorder` does, which is the default.

    Raises
    ------
    ValueError
        If the model lies on several devices, or its rotary embedding cannot be recorded and ``mode`` is ``"graph"``.

    Examples
    --------
    >>> from specdec_lib import Runtime, generate
    >>> from specdec_lib.drafters import PromptLookup
    >>> runtime = Runtime(model, capacity=128)
    >>> fast = generate(model, prompt, PromptLookup(), max_new_tokens=24, runtime=runtime)
    >>> fast.tokens == generate(model, prompt, max_new_tokens=24).tokens
    True
    >>> dict(runtime.passes)
    {'eager': 1, 16: 2, 1: 2, 4: 1}
    """

    def __init__(
        self,
        model: PreTrainedModel,
        capacity: int,
        mode: str = "auto",
        widths: Sequence[int] = WIDTHS,
        recorder: Callable[[Callable[[], torch.Tensor]], tuple] | None = None,
    ):
        model = unwrapped(model)
        places = {parameter.device for parameter in model.parameters()}
        if len(places) > 1 or torch.device("meta") in places:
            raise ValueError(f"the model is on {sorted(map(str, places))}; a runtime needs one device: leave it out")
        self.device = input_device(model)
        if any(recurrent_layers(model)):
            name = type(model).__name__
            raise UnsupportedModel(f"{name} has layers with one state of the whole text; leave the runtime out")
        one_of("mode", mode, ("auto", "static", "graph"))
        read = {entry.get("rope_type") for entry in rope_settings(model)} & _READ_BY_HOST
        if mode == "auto":
            mode = "graph" if self.device.type == "cuda" and not read else "static"
        if mode == "graph" and read:
            raise ValueError(
                f"mode is {mode!r}, but the rotary embedding of {type(model).__name__} is {sorted(read)[0]!r}, "
                "for which the host reads the positions of each pass; it cannot be recorded: use 'static'"
            )
        if mode == "graph" and recorder is None:
            if self.device.type != "cuda":
                raise ValueError(f"mode is {mode!r}, the model on {self.device}; CUDA graphs need a GPU: use 'static'")
            recorder = CudaRecorder(self.device)
        widths = tuple(widths)
        if not widths or widths[0] < 1 or list(widths) != sorted(set(widths)):
            raise ValueError(f"widths are {widths}; expected whole numbers from 1 up, each once, ascending")
        self.model, self.capacity, self.mode, self.widths = model, whole_number("capacity", capacity, 1), mode, widths
        # Kernels want rows of masks that begin at multiples of 8.
        slots = -(-(self.capacity + max(widths[-1], WIDTHS[-1])) // 8) * 8
        self.cache = TreeCache(decoder_config(model).num_hidden_layers, slots, static=True)
        #: Passes run by width, and eager ones, the prompts' among them, under ``"eager"``.
        self.passes: Counter[int | str] = Counter()
        self._last_position = last_position(model, slots - 1)
        self._columns = torch.arange(slots, device=self.device)
        self._inputs = {width: self._buffers(width) for width in widths}
        self._kept: dict[Capture, _Kept] = {}
        self._recorder = recorder if mode == "graph" else None
        #: Where the model's tensors lay, and how it was, when graphs were recorded.
        self._of: list[list] = []
        self._holder: weakref.ref | None = None

    def take(self, holder: object, model: PreTrainedModel, capture: Capture, longest: int) -> None:
        """Lend the emptied cache, with the buffers of this capture's states, to ``holder`` until :meth:`give_back`, or while it
        lives."""
        if model is not self.model:
            raise ValueError("the runtime was made for another model; make one for this model")
        if longest > self.capacity:
            raise ValueError(f"{longest} tokens may be needed, the runtime holds {self.capacity}; make a larger one")
        place = input_device(model)
        if place != self.device:
            raise ValueError(f"the model has moved to {place}, the runtime is on {self.device}; make a new runtime")
        with _TAKING:
            if self._holder is not None and self._holder() is not None:
                raise RuntimeError("the runtime is in use by another generation; give each model one of its own")
            self._holder = weakref.ref(holder)
        self.cache.length = 0
        if self._recorder is not None:
            places = [tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())]
            recorded = [places, state_of(model)]
            if recorded != self._of:
                # Graphs read the memory that the weights were in, and run the hooks and adapters that were there.
                self._kept.clear()
                self._of = recorded
        self.cache.states = self._kept.setdefault(capture, _Kept()).states

    def give_back(self, failed: bool = False) -> None:
        """Let another target have the buffers; after a failure, as zeros."""
        self._holder = None
        if failed:
            self.cache.clear()

    def width_for(self, count: int) -> int | None:
        """The width a pass over ``count`` tokens is padded to; None where none is wide enough."""
        return next((width for width in self.widths if width >= count), None)

    def run(
        self, forward: Forward, capture: Capture, tokens: Sequence[int] | torch.Tensor, tree: DraftTree | None
    ) -> torch.Tensor:
        """One pass over a block after the committed positions; logits of shape (len(tokens), vocabulary).

        The next pass overwrites them. ``forward`` and ``capture`` are those of the holder; ``tokens`` at most as many as
        the widest width; ``tree`` is what those after the first form, its auxiliary tokens last, None for a chain.
        """
        width = self.width_for(len(tokens))
        self._fill(width, tokens, tree)
        self.passes[width] += 1
        if self._recorder is None:
            return self._pass(width, forward)[: len(tokens)]
        recorded = self._kept[capture].recorded
        if width not in recorded:
            # All widths now, so that no later pass takes longer than its like.
            for each in self.widths:
                # What a recording computes is used by nobody.
                self._fill(each, [0], None)
                recorded[each] = self._record(each, forward)
            self._fill(width, tokens, tree)
        recording = recorded[width]
        recording.graph.replay()
        if forward.rows is not None:
            forward.rows.take(recording.rows)
        return recording.logits[: len(tokens)]

    def _buffers(self, width: int) -> _Inputs:
        pinned = self.device.type == "cuda"
        host = torch.zeros(2 * width + 1, dtype=torch.long, device="cpu", pin_memory=pinned)
        tree = torch.ones((width, width), dtype=torch.bool, device="cpu", pin_memory=pinned)
        chain = torch.ones((width, width), dtype=torch.bool, device=self.device).tril()
        return _Inputs(host, host.numpy(), host.to(self.device, copy=True), tree, tree.numpy(), chain.clone(), chain)

    def _fill(self, width: int, tokens: Sequence[int] | torch.Tensor, tree: DraftTree | None) -> None:
        inputs, count = self._inputs[width], len(tokens)
        if inputs.copied is not None:
            inputs.copied.synchronize()  # the last copy out of this memory; long done where its pass was waited for
        bushy = tree is not None and not tree.is_causal
        # Padding continues the chain, or follows a tree without a parent: nothing attends to it.
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

    def _pass(self, width: int, forward: Forward) -> torch.Tensor:
        inputs, slots = self._inputs[width], self._columns
        tokens, depths, length = inputs.line[:width], inputs.line[width : 2 * width], inputs.line[2 * width]
        behind = slots - length
        block = inputs.tree[:, behind.clamp(0, width - 1)] & (behind >= 0) & (behind < width)
        rows = length + depths
        # Of the committed slots the index is the position; what lies past the block is seen by none.
        columns = None if forward.window is None else torch.where(behind < 0, slots, rows[behind.clamp(0, width - 1)])
        positions = rows.clamp(max=self._last_position)
        self.cache.slots = length + slots[:width]
        try:
            mask = forward.as_mask(block | (behind < 0), rows, columns)
            return forward(tokens[None], positions, mask)
        finally:
            self.cache.slots = None

    def _record(self, width: int, forward: Forward) -> _Recorded:
        try:
            graph, logits = self._recorder(lambda: self._pass(width, forward))
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
