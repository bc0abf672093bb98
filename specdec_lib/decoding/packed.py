"""Matrices of a few bits a weight, as the lean forward reads them, and the layers of a model that holds no others."""

from __future__ import annotations

import copy
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import nn

from specdec_lib.decoding import lean
from specdec_lib.decoding.compiled import compiled
from specdec_lib.decoding.lean import EIGHT_BITS, FLOAT32, KINDS
from specdec_lib.decoding.tiles import GROUP, OUTPUTS, bytes_of_group

#: Multiplications below which another thread takes longer to start than it helps.
SHARE = 2**22
#: Seconds that a thread loses to another program at least, by the order of size: a turn of Linux's scheduler.
TURN = 0.002
#: Seconds for which one thread works alone after a call that lost more than half of its time to other programs.
ALONE = 0.5


def size_of(kind: int, outputs: int, inputs: int) -> int:
    """Bytes of a matrix, in whole cache lines."""
    if kind == FLOAT32:
        return -(-4 * outputs * inputs // 64) * 64
    return -(-(-(-outputs // OUTPUTS) * (inputs // GROUP) * bytes_of_group(*KINDS[kind])) // 64) * 64


@partial(compiled, error_model="numpy")
def _pack(numbers, scales, minima, bits, group, size, out):
    outputs, inputs = numbers.shape
    groups = inputs // GROUP
    for output in range(outputs):
        lane, tile = output % OUTPUTS, output // OUTPUTS
        for place in range(groups):
            block = out[(tile * groups + place) * size : (tile * groups + place + 1) * size]
            own = numbers[output, place * GROUP : (place + 1) * GROUP]
            if bits == 4:
                for word in range(GROUP // 8):
                    for i in range(2):
                        low = own[8 * word + i] | own[8 * word + 2 + i] << 4
                        high = own[8 * word + 4 + i] | own[8 * word + 6 + i] << 4
                        at = 32 * word + 4 * lane + 2 * i
                        block[at], block[at + 1] = low, high
            else:
                for i in range(GROUP):
                    block[16 * (i // 2) + 2 * lane + i % 2] = own[i]
            at = GROUP * bits + 2 * lane
            for part in range(GROUP // group):
                scale = scales[output, place * (GROUP // group) + part]
                block[at], block[at + 1] = scale & 255, scale >> 8
                at += 2 * OUTPUTS
            if len(minima):
                least = minima[output, place]
                block[at], block[at + 1] = least & 255, least >> 8


def pack(out: np.ndarray, kind: int, numbers: np.ndarray, scales: np.ndarray, minima: np.ndarray | None = None) -> None:
    """Fill the bytes of a matrix, or of a part that begins at a multiple of 8 outputs.

    ``numbers`` are uint8 or int8, (n, k); ``scales`` float, (n, k / group); ``minima`` float, (n, k / 32), of kinds that have them.
    """
    bits, group, minimum = KINDS[kind]
    halves = [np.ascontiguousarray(part, np.float16).view(np.uint16) for part in (scales, minima) if part is not None]
    least = halves[1] if minimum else np.empty((0, 0), np.uint16)
    numbers = np.ascontiguousarray(numbers).view(np.uint8)
    _pack(numbers, halves[0], least, bits, group, bytes_of_group(bits, group, minimum), out)


def pack_floats(out: np.ndarray, kind: int, weights: np.ndarray) -> None:
    """Fill the bytes of a matrix from float32 weights: as they are, or rounded to 8 bits with a scale for 32 inputs."""
    if kind == FLOAT32:
        out[: weights.nbytes] = np.ascontiguousarray(weights).view(np.uint8).reshape(-1)
        return
    groups = weights.reshape(len(weights), -1, GROUP)
    scales = (np.abs(groups).max(-1) / 127).astype(np.float16)
    wide = scales.astype(np.float32)[..., None]
    numbers = np.rint(np.divide(groups, wide, out=np.zeros_like(groups), where=wide > 0)).clip(-127, 127)
    pack(out, EIGHT_BITS, numbers.astype(np.int8).reshape(weights.shape), scales)


class _Team:
    """Threads of a process that run one compiled call together, one call at a time.

    Threads wait for each other some hundred times a pass. Where other programs hold the cores, each of these waits lasts until
    the scheduler runs the thread that is missing, so calls are then left to one thread until the cores are free again.
    """

    def __init__(self) -> None:
        self.pool, self.free = ThreadPoolExecutor(os.cpu_count()), threading.Lock()
        #: Until when, by :func:`time.perf_counter`, calls are one thread's; None while the cores are free.
        self.alone_until: float | None = None

    def __call__(self, call: Callable, count: int) -> None:
        """``call(me, team, counter)`` on each of so many threads; on this one alone where others have the team or the cores."""
        if count == 1 or not self.free.acquire(blocking=False):
            call(0, 1, np.zeros(1, np.int64))
            return
        try:
            if self.alone_until is not None and time.perf_counter() >= self.alone_until:
                lost, _ = self._together(lean.gather, count)
                self._note(lost > TURN)
            if self.alone_until is not None:
                call(0, 1, np.zeros(1, np.int64))
                return
            lost, ran = self._together(call, count)
            self._note(lost > max(TURN, ran))
        finally:
            self.free.release()

    def _together(self, call: Callable, count: int) -> tuple[float, float]:
        """Seconds of a call in which this thread did not run, and in which it ran."""
        counter = np.zeros(1, np.int64)
        began, ran = time.perf_counter(), time.thread_time()
        others = [self.pool.submit(call, me, count, counter) for me in range(1, count)]
        call(0, count, counter)
        for other in others:
            other.result()
        ran = time.thread_time() - ran
        return time.perf_counter() - began - ran, ran

    def _note(self, busy: bool) -> None:
        self.alone_until = time.perf_counter() + ALONE if busy else None


@cache
def _team(process: int) -> _Team:
    """Of this process: a copy of it begins without the threads."""
    return _Team()


def run_on_team(call: Callable, work: int) -> None:
    """Run ``call(me, team, counter)`` on the threads that torch is given, or on fewer where ``work`` multiplications are few."""
    most = min(torch.get_num_threads(), os.cpu_count() or 1, max(1, work // SHARE))
    _team(os.getpid())(call, most)


class Matrix:
    """A matrix of ``outputs`` by ``inputs`` in an arena of bytes that other matrices lie in too."""

    def __init__(self, arena: np.ndarray, at: int, outputs: int, inputs: int, kind: int):
        self.arena, self.kind, self.shape = arena, kind, (outputs, inputs)
        self.about = np.array([at, outputs, inputs, kind], np.int64)

    def __deepcopy__(self, memo: dict) -> Matrix:
        """The same: nothing changes it."""
        return self

    @property
    def bytes(self) -> np.ndarray:
        """Its part of the arena."""
        at = int(self.about[0])
        return self.arena[at : at + size_of(self.kind, *self.shape)]

    def rows(self, outputs: np.ndarray) -> torch.Tensor:
        """The weights of some outputs in float32, shape (m, inputs)."""
        out = np.empty((len(outputs), self.shape[1]), np.float32)
        lean.unpack(self.arena, self.about, np.ascontiguousarray(outputs, np.int64), out)
        return torch.from_numpy(out)

    def product(self, states: torch.Tensor) -> torch.Tensor:
        """States of shape (m, inputs) times the matrix, (m, outputs), in float32; each row as if it were alone."""
        rows, inputs = states.shape
        padded = -(-self.shape[0] // OUTPUTS) * OUTPUTS
        groups = -(-inputs // GROUP)
        out = torch.empty((rows, padded), dtype=torch.float32)
        given = np.ascontiguousarray(states.detach().float().numpy())
        whole = np.empty(rows * inputs, np.int16)
        scales, sums = np.empty((2, rows * groups), np.float32)
        work = self.arena, self.about, given, whole, scales, sums, out.numpy()
        run_on_team(lambda *team: lean.multiply(*team, *work), rows * self.shape[0] * inputs)
        return out[:, : self.shape[0]]


class PackedWeights(nn.Module):
    """What layers with a :class:`Matrix` share; its bytes are their ``weight``, one row for each output."""

    def __init__(self, matrix: Matrix):
        super().__init__()
        self.matrix = matrix
        self.weight = nn.Parameter(as_rows(matrix), requires_grad=False)
        #: Where the bytes lay, and how often torch had seen them edited.
        self._made = self.weight.data_ptr(), self.weight._version

    def check(self, given: torch.Tensor) -> None:
        """Reject a pass that would give a wrong result: of other weights than are read, with gradients, or under a trace."""
        if torch.is_grad_enabled() and given.requires_grad:
            raise ValueError(
                "weights of load_model(..., dtype='file') pass no gradients on: load the model in 'float32' to train, or "
                "compute under torch.no_grad()"
            )
        if torch.jit.is_tracing():
            raise ValueError("a model of load_model(..., dtype='file') cannot be traced: load it in 'float32'")
        if (self.weight.data_ptr(), self.weight._version) != self._made:
            raise ValueError(
                "weights were changed or copied after load_model(..., dtype='file'), which keeps no others: load the file again, "
                "or load it in 'float32' to change it"
            )

    def __deepcopy__(self, memo: dict) -> PackedWeights:
        """A layer of its own over the same bytes."""
        memo[id(self.weight)] = self.weight
        other = type(self).__new__(type(self))
        other.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return other

    def _save_to_state_dict(self, *args: Any) -> None:
        raise ValueError(
            "packed weights of load_model(..., dtype='file') are not saved: keep the file, or load it in 'float32'"
        )

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], *args: Any, **kwargs: Any) -> nn.Module:
        """The same: packed weights stay where and what they are, and a ValueError says so."""
        asked = fn(torch.empty(0, dtype=torch.float32, device="cpu"))
        if asked.dtype != torch.float32 or asked.device.type != "cpu":
            raise ValueError(
                f"a model of load_model(..., dtype='file') cannot be brought to {asked.dtype} on {asked.device}: it computes in "
                "float32 on the processor; load it again with that dtype and device"
            )
        return self


def as_rows(matrix: Matrix) -> torch.Tensor:
    """The bytes of a matrix, one row for each output."""
    whole = torch.from_numpy(matrix.bytes)
    each = len(whole) // matrix.shape[0]
    return whole[: each * matrix.shape[0]].view(matrix.shape[0], each)


class PackedLinear(PackedWeights):
    """A linear layer; states and results are of float32."""

    def __init__(self, matrix: Matrix, bias: torch.Tensor | None = None):
        super().__init__(matrix)
        self.out_features, self.in_features = matrix.shape
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        self.check(states)
        out = self.matrix.product(states.reshape(-1, self.in_features)).view(*states.shape[:-1], self.out_features)
        return out if self.bias is None else out + self.bias


class PackedEmbedding(PackedWeights):
    """An embedding; ``factor`` is what a Gemma multiplies it by."""

    def __init__(self, matrix: Matrix, factor: float = 1.0):
        super().__init__(matrix)
        self.num_embeddings, self.embedding_dim = matrix.shape
        self.factor = factor

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.check(tokens)
        ids = tokens.reshape(-1).numpy()
        if len(ids) and not (0 <= ids.min() and ids.max() < self.num_embeddings):
            raise IndexError(f"token ids from {ids.min()} to {ids.max()}; expected 0 to {self.num_embeddings - 1}")
        rows = self.matrix.rows(ids).view(*tokens.shape, self.embedding_dim)
        return rows if self.factor == 1 else rows * self.factor
