"""Shards built on a cluster: Ray Data reads and tokenizes, and tasks sort.

One stream of Ray Data goes through all documents in order. Its tasks read and tokenize pieces of them on all cores, and
this process writes the tokens of one shard after another. Ray holds tasks back while this process is behind, so memory is
bounded. As soon as the tokens of a shard are complete, a task sorts its suffixes, and the stream goes on.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from specdec_lib.datastores.build import encoder
from specdec_lib.datastores.ray_cluster import local_cluster
from specdec_lib.datastores.sharded_build import ShardJob
from specdec_lib.datastores.suffix_array import build_suffix_array
from specdec_lib.datastores.tokens import TokenStore

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BATCH = 64
#: Times that a task is tried again after its worker or node was lost.
RETRIES = 5
#: Bytes of text that one task of the stream reads and tokenizes.
PIECE_BYTES = 8 * 2**20
#: Bytes of memory for each token while its shard is sorted.
SORT_BYTES = 15


@contextmanager
def started(address: str | None = None) -> Iterator[Any]:
    """The module ray, connected to the cluster at ``address``, ``"auto"`` for the one this machine is part of.

    Without an address a Ray that runs in this process is used, else one is started on this machine that ends with the block,
    or with this process.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # what a cluster does is nobody else's business
    if not address and "ray" not in sys.modules:
        # A cluster that Ray starts asks for a token. Who joins one by its address has to say so before Ray is imported.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ImportError(f"builds on a cluster need Ray Data ({error}): pip install 'specdec-lib[ray]'") from None
    if ray.is_initialized():
        yield ray
        return
    # Without an address Ray would join the cluster that was last started on this machine, anyone's.
    with nullcontext(address) if address else local_cluster() as where:
        ray.init(address=where, log_to_driver=False)
        try:
            yield ray
        finally:
            ray.shutdown()


class Row(NamedTuple):
    """One document: the number of its shard, its token ids, and what was wrong with it."""

    shard: int
    ids: bytes
    error: str

    def tokens(self) -> np.ndarray:
        """Token ids; a ValueError where the document could not be read."""
        if self.error:
            raise ValueError(self.error)
        return np.frombuffer(self.ids, np.uint32) if self.ids else np.empty(0, np.uint32)


@dataclass(frozen=True)
class ReadAndTokenize:
    """A task of the stream: turns a piece of the documents into rows; what cannot be read ends it with a row that says why."""

    pieces: Sequence[tuple[int, Iterable[str]]]
    tokenizer: PreTrainedTokenizerBase

    def __call__(self, row: dict[str, int]) -> Iterator[dict[str, Any]]:
        """The rows of the piece with this number."""
        shard, documents = self.pieces[int(row["id"])]
        encode, texts = encoder(self.tokenizer), iter(documents)
        try:
            while batch := list(itertools.islice(texts, _BATCH)):
                for ids in encode(batch):
                    yield Row(shard, np.asarray(ids, np.uint32).tobytes(), "")._asdict()
        except ValueError as error:
            yield Row(shard, b"", str(error) or "a document is no text")._asdict()


def _rows(ray: Any, jobs: Sequence[ShardJob]) -> Iterator[Row]:
    """All documents of the shards in order, read and tokenized on the cluster."""
    pieces = []
    for number, job in enumerate(jobs):
        cut = getattr(job.documents, "pieces", None)
        pieces += [(number, piece) for piece in (cut() if cut else [job.documents])]
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    work = ReadAndTokenize(pieces, jobs[0].tokenizer)
    stream = ray.data.range(len(pieces), override_num_blocks=len(pieces)).flat_map(work, num_cpus=1)
    for table in stream.iter_batches(batch_size=None, batch_format="pyarrow"):
        for shard, ids, error in zip(*(table[name] for name in Row._fields), strict=True):
            yield Row(shard.as_py(), ids.as_py(), error.as_py())


def write_from(rows: Iterable[Row], jobs: Sequence[ShardJob]) -> Iterator[TokenStore]:
    """Write the tokens of one shard after another from the stream."""
    groups = itertools.groupby(rows, key=lambda row: row.shard)
    for number, job in enumerate(jobs):
        found, own = next(groups, (number, ()))
        # Tokens that were written and not sorted are written again: the stream brings them anyway.
        yield job.write((row.tokens() for row in own) if found == number else ())


def sort_shard(folder: Path) -> Path:
    """Sort the suffixes of a shard whose tokens are there."""
    build_suffix_array(folder, progress=False)
    return folder


@contextmanager
def _cancelled_at_end(ray: Any) -> Iterator[deque[Any]]:
    """Tasks that run; those that are left after an error are stopped."""
    running: deque[Any] = deque()
    try:
        yield running
    finally:
        for one in running:
            ray.cancel(one)


def _results(ray: Any, running: deque[Any]) -> Iterator[Any]:
    while running:
        yield ray.get(running[0])
        running.popleft()


def build_shards(jobs: Sequence[ShardJob]) -> Iterator[Path]:
    """Build shards of one tokenizer on the cluster of :func:`started`; their folders, in order."""
    if not jobs:
        return
    with started() as ray, _cancelled_at_end(ray) as running:
        largest = max((node["Resources"].get("memory", 0) for node in ray.nodes() if node["Alive"]), default=0)
        sort = ray.remote(max_retries=RETRIES, num_cpus=1)(sort_shard)
        for store in write_from(_rows(ray, jobs), jobs):
            memory = SORT_BYTES * store.count
            if memory > largest:
                raise ValueError(
                    f"to sort {store.path.name} takes {memory / 2**30:.1f} GiB, the largest node offers "
                    f"{largest / 2**30:.1f}: cut the texts into more --shards"
                )
            running.append(sort.options(memory=memory).remote(store.path))
        yield from _results(ray, running)


def map_on_ray(function: Callable[[Any], Any], jobs: Sequence[Any]) -> Iterator[Any]:
    """``map`` on the cluster of :func:`started`, each job on a GPU where there are some."""
    with started() as ray, _cancelled_at_end(ray) as running:
        gpus = 1 if ray.cluster_resources().get("GPU") else 0
        task = ray.remote(max_retries=RETRIES, num_cpus=1, num_gpus=gpus)(function)
        running.extend(task.remote(job) for job in jobs)
        yield from _results(ray, running)
