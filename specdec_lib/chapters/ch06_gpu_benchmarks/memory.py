"""Whether a model fits into the memory of a device."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig

from specdec_lib.chapters.ch06_gpu_benchmarks.shapes import parameter_bytes


def available_bytes(device: torch.device) -> int | None:
    """Memory that can still be taken on a device; None where that cannot be asked."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    meminfo = Path("/proc/meminfo")
    if device.type != "cpu" or not meminfo.exists():
        return None
    rows = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    free = int(rows["MemAvailable"].split()[0]) * 1024
    limit, used = (Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory.current"))
    if limit.exists() and used.exists() and limit.read_text().strip() != "max":
        counted = int(used.read_text())
        told = Path("/sys/fs/cgroup/memory.stat")
        # Files that were read are counted as used and given back as soon as memory is asked for.
        kept = dict(line.split() for line in told.read_text().splitlines()) if told.exists() else {}
        free = min(free, int(limit.read_text()) - counted + int(kept.get("inactive_file", 0)))
    return free


def check_memory(config: LlamaConfig, dtype: torch.dtype, device: torch.device) -> None:
    """Refuse a model that does not fit, before any of it is built.

    Raises
    ------
    MemoryError
        If the parameters need more than the device has free.
    """
    needed, free = parameter_bytes(config, dtype), available_bytes(device)
    if free is not None and needed > free:
        raise MemoryError(
            f"the model takes {needed:,} bytes ({needed / 2**30:.1f} GiB) in {dtype} and {device} has "
            f"{free:,} ({free / 2**30:.1f} GiB) available; expected a smaller shape, a narrower type or "
            "another device"
        )
