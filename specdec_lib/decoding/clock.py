"""Clocks of the decoding loop: the host's, and the device's own events."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

import torch


class HostClock:
    """Wall clock: marks moments, and tells later how far apart they were. Use it where a call returns only when its work is done.

    Examples
    --------
    >>> from specdec_lib.decoding.clock import HostClock
    >>> clock = HostClock()
    >>> start, end = clock.mark(), clock.mark()
    >>> clock.settle()
    >>> clock.seconds(start, end) >= 0
    True
    """

    def mark(self) -> Any:
        """This moment."""
        return time.perf_counter()

    def settle(self) -> None:
        """Wait until every moment marked has come."""

    def seconds(self, start: Any, end: Any) -> float:
        """Seconds between two moments; after :meth:`settle`."""
        return end - start


class DeviceClock(HostClock):
    """Events in the queue of a GPU: marking one waits for nothing, and idle time counts to the part that kept the GPU waiting."""

    def __init__(self, device: torch.device):
        self.device = device

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def settle(self) -> None:
        torch.cuda.synchronize(self.device)

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return 1e-3 * start.elapsed_time(end)


def clock_of(devices: Collection[torch.device]) -> HostClock:
    """A GPU's own clock. A CPU has the host's, and so have several GPUs: the events of one say nothing about the work of another.

    Parameters
    ----------
    devices : collection of torch.device
        Those that a model lies on.

    Returns
    -------
    HostClock or DeviceClock

    Examples
    --------
    >>> from specdec_lib.decoding.clock import clock_of
    >>> type(clock_of([model.device])).__name__
    'HostClock'
    """
    cards = {device for device in devices if device.type == "cuda"}
    return DeviceClock(*cards) if len(cards) == 1 else HostClock()
