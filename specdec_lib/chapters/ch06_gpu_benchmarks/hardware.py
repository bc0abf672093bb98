"""What a machine can do, measured, and what a verify step needs of it, counted.

A step of t tokens reads every weight once and multiplies every matrix by t states. With the memory's
bandwidth and the rate of matrix products, both measured in the same run as the step, the roofline bounds its
time from below.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from transformers import LlamaConfig

from specdec_lib.chapters.ch06_gpu_benchmarks.memory import available_bytes
from specdec_lib.chapters.ch06_gpu_benchmarks.shapes import matrix_parameters, parameters_read
from specdec_lib.models.loading import resolve_device

#: Bytes read for the bandwidth: far beyond the caches (tens of megabytes, on large servers hundreds).
CPU_BYTES, CUDA_BYTES = 2 << 30, 4 << 30
#: The buffer is at least this many times the largest cache, whatever share of it stays in the cache.
CACHE_MULTIPLE = 8
#: Rows and columns of the square matrices.
CPU_SIDE, CUDA_SIDE = 2048, 8192
WARM_UP = 2
#: On a GPU at least so many seconds of warm-up: its clock is low after idle time.
WARM_SECONDS = 0.3
#: Columns of the matrix whose product with one state is timed.
GEMV_COLUMNS = 8192


def folder_of(device: str) -> str:
    """Name of the folder of a device's results: letters, digits and hyphens.

    Examples
    --------
    >>> folder_of("NVIDIA H200")
    'nvidia-h200'
    """
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


@dataclass(frozen=True)
class Rate:
    """Repeated measurements of one rate, per second, each of ``amount`` bytes or operations. What else the machine does
    only lowers a rate, so the best is what it can do. ``what`` was done."""

    best: float
    median: float
    amount: int
    repeats: int
    what: str = field(default="", compare=False)

    @classmethod
    def of(cls, amount: int, seconds: list[float], what: str = "") -> Rate:
        """The rate of an amount done in each of several times, s."""
        return cls(amount / min(seconds), amount / median(seconds), amount, len(seconds), what)


@dataclass(frozen=True)
class Machine:
    """Bandwidth (bytes per second of what moves most) and matrix rate (operations per second of a large square product)
    of one device, by :func:`measure_machine`; the CPU's depend on ``threads``."""

    device: str
    threads: int
    dtype: str
    bandwidth: Rate
    matrix_rate: Rate

    def as_dict(self) -> dict[str, Any]:
        """For a JSON file."""
        return asdict(self)


class Work(NamedTuple):
    """What one step has to do: bytes to read, and floating-point operations."""

    bytes: int
    flops: int


def roofline(bytes: float, flops: float, bandwidth: float, rate: float) -> float:
    """Least time of some work, s: max(bytes / bandwidth, flops / rate)."""
    return max(bytes / bandwidth, flops / rate)


def step_work(config: LlamaConfig, width: int, context: int, dtype: torch.dtype) -> Work:
    """What a target step has to read and to compute.

    Bytes: every parameter but the embedding once, of that one row a token, and the keys and values of the
    context. Operations: two for each token and matrix element, and for each layer and query head two products
    of ``head_dim`` between each token and each key, its own and those of the step included. Norms, rotary
    embedding, activation and softmax are left out, as are the keys and values that the step itself writes.

    Parameters
    ----------
    config : LlamaConfig
    width : int
        Tokens in the step: a draft and the token before it.
    context : int
        Tokens whose keys and values are cached.
    dtype : torch.dtype
        Of weights, keys and values.

    Raises
    ------
    ValueError
        If width is below 1 or context below 0.
    """
    if width < 1 or context < 0:
        raise ValueError(f"width is {width} and context {context}; expected at least 1 and at least 0")
    cached = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * context
    read = parameters_read(config) + width * config.hidden_size + cached
    pairs = width * (context + width)
    attention = 4 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * pairs
    return Work(read * dtype.itemsize, 2 * width * matrix_parameters(config) + attention)


def largest_cache() -> int:
    """Bytes of the CPU's largest cache; 0 where the system does not say."""
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text.rstrip("KMG")) * {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1], 1))
    return max(sizes)


def read_bytes(device: torch.device) -> int:
    """How much to read so that caches do not matter: a multiple of 8 bytes, within a quarter of free memory.

    Raises
    ------
    MemoryError
        If a quarter of what is free is less than four times the CPU's largest cache.
    """
    cache = largest_cache() if device.type == "cpu" else 0
    wanted = CUDA_BYTES if device.type == "cuda" else max(CPU_BYTES, CACHE_MULTIPLE * cache)
    free = available_bytes(device)
    size = wanted if free is None else min(wanted, free // 4)
    if size < 4 * cache:
        raise MemoryError(
            f"{device} has {free:,} bytes available; expected {16 * cache:,} at least: a bandwidth is "
            f"measured on four times the cache of {cache:,} bytes, which may take a quarter of them"
        )
    return size // 8 * 8


def timed(run: Callable[[], Any], device: torch.device, repeats: int) -> list[float]:
    """Seconds of each of several runs, after a warm-up; by the device's own events on a GPU."""
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}; expected at least 1")
    for _ in range(WARM_UP):
        run()
    if device.type != "cuda":
        seconds = []
        for _ in range(repeats):
            began = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - began)
        return seconds
    events = []
    began_at = time.perf_counter()
    while time.perf_counter() - began_at < WARM_SECONDS:
        run()
        torch.cuda.synchronize(device)
    with torch.cuda.device(device):
        for _ in range(repeats):
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            began.record()
            run()
            ended.record()
            events.append((began, ended))
        torch.cuda.synchronize()
    return [began.elapsed_time(ended) / 1e3 for began, ended in events]


def bandwidths(
    device: str = "auto", size: int | None = None, repeats: int = 7, dtype: torch.dtype = torch.bfloat16
) -> list[Rate]:
    """Bytes per second of three ways through a large memory.

    ``sum``: the sum of 64-bit integers, which reads alone; ``copy``: half of it to the other half, read and written
    bytes counted; ``product``: a matrix of ``dtype`` with one state, as a pass over one token reads weights.

    Parameters
    ----------
    device : str
    size : int, optional
        Bytes; by default :func:`read_bytes` says.
    repeats : int
    dtype : torch.dtype

    Raises
    ------
    ValueError
        If the device is unknown, or size or repeats is too small.
    MemoryError
        If too little memory is free for a buffer larger than the caches.
    """
    place = resolve_device(device)
    size = read_bytes(place) if size is None else size
    row = GEMV_COLUMNS * dtype.itemsize
    if size < 2 * row:
        raise ValueError(f"size is {size}; expected at least {2 * row} bytes, two rows of the matrix")
    # Written, because untouched pages would all be one page of zeros.
    matrix = torch.empty(size // row, GEMV_COLUMNS, dtype=dtype, device=place).uniform_(-0.02, 0.02)
    numbers = matrix.view(torch.int64).flatten()
    half = len(numbers) // 2
    state = torch.ones(1, GEMV_COLUMNS, dtype=dtype, device=place)
    with torch.inference_mode():
        return [
            Rate.of(numbers.nbytes, timed(lambda: numbers.sum(), place, repeats), "sum"),
            Rate.of(matrix.nbytes, timed(lambda: torch.nn.functional.linear(state, matrix), place, repeats), "product"),
            # Last, for it writes.
            Rate.of(16 * half, timed(lambda: numbers[half : 2 * half].copy_(numbers[:half]), place, repeats), "copy"),
        ]


def memory_bandwidth(device: str = "auto", size: int | None = None, repeats: int = 7) -> Rate:
    """Bytes per second of a large read, the sum of 64-bit integers; on a GPU, where a sum need not reach what the
    memory gives, the best of :func:`bandwidths`. :func:`read_bytes` says the default size.
    ValueError for an unknown device or too small numbers, MemoryError without room."""
    place = resolve_device(device)
    size = read_bytes(place) if size is None else size
    if size < 8:
        raise ValueError(f"size is {size}; expected at least 8 bytes")
    if place.type == "cuda":
        return max(bandwidths(str(place), size, repeats), key=lambda rate: rate.best)
    # Written, because untouched pages would all be one page of zeros.
    buffer = torch.empty(size // 8, dtype=torch.int64, device=place).fill_(1)
    with torch.inference_mode():
        return Rate.of(buffer.nbytes, timed(lambda: buffer.sum(), place, repeats), "sum")


def matrix_rate(
    dtype: torch.dtype, device: str = "auto", side: int | None = None, repeats: int = 7, seed: int = 0
) -> Rate:
    """Floating-point operations per second of a product of two square matrices, 2 n^3 for n = ``side``.

    The matrices are random, because processors draw less power on zeros and may run faster on them. ValueError for an
    unknown device or numbers below 1.
    """
    place = resolve_device(device)
    side = (CUDA_SIDE if place.type == "cuda" else CPU_SIDE) if side is None else side
    if side < 1:
        raise ValueError(f"side is {side}; expected at least 1")
    generator = torch.Generator(place).manual_seed(seed)
    shape = (side, side)
    left, right = (torch.empty(shape, dtype=dtype, device=place).normal_(generator=generator) for _ in range(2))
    out = torch.empty(shape, dtype=dtype, device=place)
    with torch.inference_mode():
        return Rate.of(2 * side**3, timed(lambda: torch.mm(left, right, out=out), place, repeats), "product")


def measure_machine(device: str = "auto", dtype: torch.dtype = torch.bfloat16, repeats: int = 7) -> Machine:
    """Bandwidth and matrix rate of a device with torch's present number of threads.

    Raises
    ------
    ValueError, MemoryError
        As :func:`memory_bandwidth` and :func:`matrix_rate`.
    """
    place = resolve_device(device)
    name = torch.cuda.get_device_name(place) if place.type == "cuda" else place.type
    return Machine(
        name,
        torch.get_num_threads(),
        str(dtype).removeprefix("torch."),
        memory_bandwidth(str(place), repeats=repeats),
        matrix_rate(dtype, str(place), repeats=repeats),
    )
