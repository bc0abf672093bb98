"""Where independent pieces of work run: one after another in this process, or on the nodes of a Ray cluster.

Both give the same results; Ray is the extra ``ray``. A piece that dies with its worker or its node is done again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any, Protocol

#: Times that a piece of work is tried again after its worker or node was lost.
RETRIES = 5


def load_ray() -> Any:
    """The ray module.

    Raises
    ------
    ImportError
        If it is not installed; the message names the extra.
    """
    # What a cluster does is nobody else's business.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise ImportError(
            f"work on more than one machine needs Ray, which cannot be imported ({error}); install the extra 'ray': "
            "pip install 'specdec-lib[ray]'"
        ) from None
    return ray


class Place(Protocol):
    """Where work runs."""

    def tasks(
        self, function: Callable, jobs: Sequence[Any], memory: int = 0, gpu: bool = False
    ) -> Iterator[tuple[int, Any]]:
        """The number and result of each job as it ends; ``memory`` is how many bytes one needs, 0 if unknown, and ``gpu``
        whether it runs on a GPU where there are some."""

    def actors(self, maker: Callable[[], Callable], jobs: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """The same, by workers that are made once each, load a model say, and then called for one job after another."""


class Here:
    """This process, one job after another."""

    def tasks(
        self, function: Callable, jobs: Sequence[Any], memory: int = 0, gpu: bool = False
    ) -> Iterator[tuple[int, Any]]:
        """The number and result of each job, in order."""
        for number, job in enumerate(jobs):
            yield number, function(job)

    def actors(self, maker: Callable[[], Callable], jobs: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """The same by one worker."""
        return self.tasks(maker(), jobs)


class Processes:
    """Processes of this machine, without Ray.

    Parameters
    ----------
    count : int
        Of processes that work at once.

    Raises
    ------
    ValueError
        If the count is below 1.
    """

    def __init__(self, count: int):
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"{count!r} processes are asked for; expected a whole number, 1 or more")
        self.count = count

    def tasks(
        self, function: Callable, jobs: Sequence[Any], memory: int = 0, gpu: bool = False
    ) -> Iterator[tuple[int, Any]]:
        """The number and result of each job as it ends."""
        # A process that is forked from one with threads, such as torch's, can stand still.
        with ProcessPoolExecutor(self.count, mp_context=get_context("spawn")) as pool:
            running = {pool.submit(function, job): number for number, job in enumerate(jobs)}
            for ended in as_completed(running):
                yield running[ended], ended.result()


class OnRay:
    """The nodes of a Ray cluster.

    Parameters
    ----------
    address : str, optional
        Of a cluster that runs, ``"auto"`` for the one this machine is part of; without one, Ray is started here.

    Raises
    ------
    ImportError
        If Ray is not installed.
    ConnectionError
        If there is no cluster at the address.
    """

    def __init__(self, address: str | None = None):
        self.ray = load_ray()
        if not self.ray.is_initialized():
            # Without an address Ray would join the cluster that was last started on this machine, anyone's.
            start = {"address": address} if address else {"address": "local", "include_dashboard": False}
            self.ray.init(**start, log_to_driver=False)

    def tasks(
        self, function: Callable, jobs: Sequence[Any], memory: int = 0, gpu: bool = False
    ) -> Iterator[tuple[int, Any]]:
        """The number and result of each job as it ends.

        Ray starts as many as there are cores, or GPUs where jobs run on one, and where ``memory`` is known no more on a
        node than fit its memory. An error of a job is raised once it comes, and the other jobs are stopped.

        Raises
        ------
        ValueError
            If no node has so much memory.
        """
        with self.started(function, memory, gpu) as running:
            for number, job in enumerate(jobs):
                running.start(number, job)
            yield from running.rest()

    def check_memory(self, memory: int) -> None:
        """Refuse a job that needs more memory than a node has.

        Raises
        ------
        ValueError
        """
        largest = max((node["Resources"].get("memory", 0) for node in self.ray.nodes() if node["Alive"]), default=0)
        if memory > largest:
            raise ValueError(
                f"one piece of this work needs {memory / 2**30:.1f} GiB of memory, the largest node offers "
                f"{largest / 2**30:.1f}: cut it into more pieces, with --shards"
            )

    def started(self, function: Callable, memory: int = 0, gpu: bool = False) -> Started:
        """What starts one job after another, with the arguments of :meth:`tasks`; used in a ``with`` statement."""
        self.check_memory(memory)
        gpus = 1 if gpu and self.ray.cluster_resources().get("GPU") else 0
        return Started(
            self.ray, self.ray.remote(max_retries=RETRIES, num_cpus=1, num_gpus=gpus, memory=memory)(function)
        )

    def actors(self, maker: Callable[[], Callable], jobs: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """The same by one actor a GPU, or a core where there are no GPUs."""
        have = self.ray.cluster_resources()
        gpus = int(have.get("GPU", 0))
        count = min(len(jobs), gpus or int(have.get("CPU", 1)))
        # The whole machine may be lost with an actor: both are made again elsewhere.
        options = {"num_gpus": 1 if gpus else 0, "num_cpus": 1, "max_restarts": RETRIES, "max_task_retries": RETRIES}
        actors = [self.ray.remote(**options)(_Worker).remote(maker) for _ in range(count)]
        waiting = list(enumerate(jobs))[::-1]
        running: dict[Any, tuple[int, Any]] = {}
        while waiting or running:
            busy = {actor for _, actor in running.values()}
            for actor in [actor for actor in actors if actor not in busy][: len(waiting)]:
                number, job = waiting.pop()
                running[actor.work.remote(job)] = number, actor
            (ended,), _ = self.ray.wait(list(running), num_returns=1)
            number, _ = running.pop(ended)
            yield number, self.ray.get(ended)
        for actor in actors:
            self.ray.kill(actor)


class Started:
    """Tasks of Ray that run while others are still to be started; those that run at the end are stopped."""

    def __init__(self, ray: Any, function: Any):
        self.ray, self._function = ray, function
        self._running: dict[Any, int] = {}

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._running:
            self.ray.cancel(one)

    def start(self, number: int, job: Any) -> None:
        """Start a job under a number."""
        self._running[self._function.remote(job)] = number

    def ended(self, timeout: float | None = 0) -> Iterator[tuple[int, Any]]:
        """The number and result of each job that has ended; ``timeout`` None waits for one."""
        if not self._running:
            return
        count = len(self._running) if timeout == 0 else 1
        done, _ = self.ray.wait(list(self._running), num_returns=count, timeout=timeout)
        for one in done:
            yield self._running.pop(one), self.ray.get(one)

    def rest(self) -> Iterator[tuple[int, Any]]:
        """The same of all others, each as it ends."""
        while self._running:
            yield from self.ended(None)


class _Worker:
    """What an actor does: makes its worker once, and calls it."""

    def __init__(self, maker: Callable[[], Callable]):
        self._worker = maker()

    def work(self, job: Any) -> Any:
        return self._worker(job)
