"""Shards built on a cluster: Ray Data reads and tokenizes, and tasks sort.

One stream of Ray Data goes through all documents in order. Its tasks read and tokenize pieces of them on all cores, and
this process writes the tokens of one shard after another. Ray holds tasks back while this process is behind, so memory is
bounded. As soon as the tokens of a shard are complete, a task sorts its suffixes, and the stream goes on.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from specdec_lib import files
from specdec_lib.cluster import OnRay
from specdec_lib.datastores.build import build_tokens
from specdec_lib.datastores.sharded import describe_shard
from specdec_lib.datastores.storage import Storage
from specdec_lib.datastores.suffix_array import build_suffix_array
from specdec_lib.datastores.tokens import TokenStore, tokenizer_fingerprint, tokenizer_vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specdec_lib.datastores.sharded_build import ShardJob

_BATCH = 64
#: Bytes of text that one task of the stream reads and tokenizes.
PIECE_BYTES = 8 * 2**20
#: Ending of a folder with the tokens of a shard that is not sorted yet, where nodes share no folder.
TOKENS = ".tokens"


def load_ray_data() -> Any:
    """The module ray.data.

    Raises
    ------
    ImportError
        If it cannot be imported; the message names the extra.
    """
    try:
        import ray.data
    except ImportError as error:
        raise ImportError(
            f"builds on a cluster need Ray Data, which cannot be imported ({error}); install the extra 'ray': "
            "pip install 'specdec-lib[ray]'"
        ) from None
    return ray.data


class Row(NamedTuple):
    """One document on its way: the place of its shard, its token ids, and what was wrong with it."""

    shard: int
    ids: bytes
    error: str


@dataclass(frozen=True)
class ReadAndTokenize:
    """What a task of the stream does: turns one piece of the documents into rows, one a document.

    A document that cannot be read ends its piece with a row that says why.
    """

    pieces: Sequence[tuple[int, Iterable[str]]]
    tokenizer: PreTrainedTokenizerBase

    def __call__(self, row: dict[str, int]) -> Iterator[dict[str, Any]]:
        """The rows of the piece with this number."""
        from specdec_lib.datastores import encoder

        shard, documents = self.pieces[int(row["id"])]
        encode, texts = encoder(self.tokenizer), iter(documents)
        try:
            while batch := list(itertools.islice(texts, _BATCH)):
                for ids in encode(batch):
                    yield Row(shard, np.asarray(ids, np.uint32).tobytes(), "")._asdict()
        except ValueError as error:
            yield Row(shard, b"", str(error) or "a document is no text")._asdict()


class Stream:
    """The rows of all shards in order, of which those of one shard after another are taken."""

    def __init__(self, rows: Iterator[Row]):
        self._rows = rows
        self._next = next(rows, None)

    def shard(self, number: int) -> Iterator[np.ndarray]:
        """Token ids of the documents of one shard.

        Raises
        ------
        ValueError
            If one of its documents could not be read.
        """
        while self._next is not None and self._next.shard == number:
            row = self._next
            if row.error:
                raise ValueError(row.error)
            yield np.frombuffer(row.ids, np.uint32) if row.ids else np.empty(0, np.uint32)
            self._next = next(self._rows, None)

    def skip(self, number: int) -> None:
        """Pass over what is left of a shard that has all the tokens it takes."""
        while self._next is not None and self._next.shard == number:
            self._next = next(self._rows, None)


@dataclass(frozen=True)
class _Documents:
    """The documents of one shard as :func:`~specdec_lib.datastores.build.build_tokens` takes them; they are read once."""

    stream: Stream
    number: int

    def __iter__(self) -> Iterator[np.ndarray]:
        return self.stream.shard(self.number)


def _rows(jobs: Sequence[ShardJob]) -> Iterator[Row]:
    """All documents of the shards in order, read and tokenized on the cluster."""
    data = load_ray_data()
    pieces = []
    for number, job in enumerate(jobs):
        cut = getattr(job.documents, "pieces", None)
        pieces += [(number, piece) for piece in (cut() if cut else [job.documents])]
    context = data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    work = ReadAndTokenize(pieces, jobs[0].tokenizer)
    stream = data.range(len(pieces), override_num_blocks=len(pieces)).flat_map(work, num_cpus=1)
    for table in stream.iter_batches(batch_size=None, batch_format="pyarrow"):
        for shard, ids, error in zip(*(table[name] for name in Row._fields), strict=True):
            yield Row(shard.as_py(), ids.as_py(), error.as_py())


class SortJob(NamedTuple):
    """A shard whose tokens are there."""

    url: str
    name: str


def sort_shard(job: SortJob) -> dict[str, Any]:
    """Sort the suffixes of a shard, bring it where it belongs, and return what the manifest says of it."""
    storage = Storage(job.url)
    if storage.local is not None:
        store = TokenStore.open(storage.local / job.name)
        build_suffix_array(store, progress=False)
        return describe_shard(job.name, store.manifest)
    folder = storage.scratch(job.name)
    storage.get(job.name + TOKENS, folder)
    store = TokenStore.open(folder)
    build_suffix_array(store, progress=False)
    storage.put(folder, job.name)
    shutil.rmtree(folder)
    return describe_shard(job.name, store.manifest)


def write_tokens(job: ShardJob, stream: Stream, number: int) -> SortJob:
    """Write the tokens of one shard from the stream, and pass over what it does not take.

    Raises
    ------
    ValueError
        If it has no documents, or one of them is no text.
    """
    storage = Storage(job.url)
    folder = storage.scratch(job.name) if storage.local is None else storage.local / job.name
    # Documents come once, so a shard that was begun begins again.
    shutil.rmtree(files.beside(folder, ".partial"), ignore_errors=True)
    try:
        build_tokens(
            folder,
            _Documents(stream, number),
            tokenizer_vocabulary(job.tokenizer),
            fingerprint=tokenizer_fingerprint(job.tokenizer),
            sources=job.sources,
            max_tokens=job.max_tokens,
            short_documents=job.short_documents,
            progress=False,
        )
    except ValueError as error:
        raise ValueError(f"{job.name} of {job.url}: {error}; where it has no documents, ask for fewer shards") from None
    stream.skip(number)
    if storage.local is None:
        storage.put(folder, job.name + TOKENS)
        shutil.rmtree(folder)
    return SortJob(job.url, job.name)


def remove_tokens(job: ShardJob) -> None:
    """Remove what was there to be sorted."""
    storage = Storage(job.url)
    if storage.local is None:
        storage.remove(job.name + TOKENS)


def build_shards(place: OnRay, jobs: Sequence[ShardJob], memory: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """The number of each shard, and what the manifest says of it, as it ends.

    Parameters
    ----------
    place : OnRay
    jobs : sequence of ShardJob
        With one tokenizer; in order.
    memory : int
        Bytes that sorting one shard needs, 0 if unknown.

    Raises
    ------
    ValueError
        If a shard has no documents or a document is no text, or no node has so much memory.
    ImportError
        If Ray Data cannot be imported.
    """
    load_ray_data()
    place.check_memory(memory)
    if not jobs:
        return
    stream = Stream(_rows(jobs))
    with place.started(sort_shard, memory) as sorting:
        for number, job in enumerate(jobs):
            sorting.start(number, write_tokens(job, stream, number))
            for ended, about in sorting.ended():
                remove_tokens(jobs[ended])
                yield ended, about
        for ended, about in sorting.rest():
            remove_tokens(jobs[ended])
            yield ended, about
