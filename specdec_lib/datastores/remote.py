"""Shards that do not fit on one host: actors of a Ray cluster hold them and are asked in parallel.

A drafter waits for answers until a deadline and drafts from those it has. Drafts decide how many passes a text takes and
never which text it is, so a late or lost shard costs passes and changes no output.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specdec_lib import paths
from specdec_lib.cluster import RETRIES, OnRay
from specdec_lib.datastores import faiss_index
from specdec_lib.datastores.dense import DenseIndex
from specdec_lib.datastores.sharded import (
    Answer,
    Neighbour,
    Question,
    ShardedDenseIndex,
    ShardedStore,
    ShardedSuffixIndex,
    SuffixShard,
    check_reductions,
    merge_nearest,
    nearest_of,
)
from specdec_lib.datastores.storage import fetch_shard, read_shards_at
from specdec_lib.datastores.store_files import StoreError
from specdec_lib.datastores.suffix_array import SuffixIndex


def _cache_of(url: str, about: dict[str, Any], dense: bool) -> Path:
    """Folder of a fetched shard: of its address, its content and what is needed of it, so that none stands for another."""
    key = json.dumps([str(url), about, dense], sort_keys=True).encode()
    return paths.cache() / "shards" / sha256(key).hexdigest()[:16]


class ShardHolder:
    """What an actor does: opens its shards, and answers questions about them.

    Parameters
    ----------
    url : str
        Of the store of shards.
    shards : sequence of dict
        What its manifest says of those that this one holds.
    dense : bool
        Hold their dense indexes instead of their suffix arrays.
    delay : float
        Seconds that every answer is held back: a slow network or disk, in measurements and tests.
    """

    def __init__(self, url: str, shards: Sequence[dict[str, Any]], dense: bool = False, delay: float = 0.0):
        stores = [fetch_shard(url, about, _cache_of(url, about, dense)) for about in shards]
        self._delay = delay
        self._shards = (
            [DenseIndex.open(store) for store in stores]
            if dense
            else [SuffixShard(SuffixIndex.open(store)) for store in stores]
        )

    def width(self) -> int:
        """Values of the states that the dense indexes take."""
        return self._shards[0].width

    def reduction(self) -> str:
        """Digest of the model and the reduction that all dense indexes here share.

        Raises
        ------
        StoreError
            If two differ.
        """
        check_reductions(self._shards)
        shard = self._shards[0]
        parts = [json.dumps(shard.manifest["model"], sort_keys=True).encode()]
        parts += [np.ascontiguousarray(part).tobytes() for part in faiss_index.reduction_of(shard.index)]
        return sha256(b"".join(parts)).hexdigest()

    def ready(self) -> bool:
        """Answered once the shards are open."""
        return True

    def answers(self, question: Question) -> list[Answer]:
        """The answer of each suffix array."""
        time.sleep(self._delay)
        return [shard.answer(question) for shard in self._shards]

    def nearest(self, states: np.ndarray, k: int, length: int) -> list[list[Neighbour]]:
        """The nearest stored states of each dense index."""
        time.sleep(self._delay)
        return [nearest_of(shard, states, k, length) for shard in self._shards]


@dataclass
class Actors:
    """Actors that hold shards, each asked unless it still works on an earlier question.

    Attributes
    ----------
    handles : list
        Of :class:`ShardHolder`, or of what answers as it does.
    deadline : float or None
        Seconds that an answer is waited for; None waits for all.
    asked, late, lost : int
        Questions, one for each actor and draft; those not answered in time or not asked because the actor was still
        behind; those whose actor or node was lost.
    """

    ray: Any
    handles: list[Any]
    deadline: float | None
    asked: int = 0
    late: int = 0
    lost: int = 0
    _behind: dict[int, Any] = field(default_factory=dict, repr=False)

    def ask(self, method: str, *words: Any) -> list[Any]:
        """What the actors answered in time, joined."""
        self.asked += len(self.handles)
        if self._behind:
            done, _ = self.ray.wait(list(self._behind.values()), num_returns=len(self._behind), timeout=0)
            self._behind = {number: ref for number, ref in self._behind.items() if ref not in done}
        asked = {
            number: getattr(handle, method).remote(*words)
            for number, handle in enumerate(self.handles)
            if number not in self._behind
        }
        self.late += len(self._behind)
        in_time, _ = (
            self.ray.wait(list(asked.values()), num_returns=len(asked), timeout=self.deadline) if asked else ([], [])
        )
        in_time = set(in_time)
        answers = []
        for number, ref in asked.items():
            if ref not in in_time:
                self._behind[number] = ref
                self.late += 1
                continue
            try:
                answers += self.ray.get(ref)
            except self.ray.exceptions.RayActorError as error:
                if not self.lost:
                    warnings.warn(
                        f"a holder of shards was lost ({str(error).splitlines()[0]}); drafts go on without its shards "
                        "until Ray has started it again, and outputs do not change",
                        stacklevel=2,
                    )
                self.lost += 1
        return answers


def start_actors(
    url: str | Path,
    count: int,
    *,
    deadline: float | None = 0.1,
    dense: bool = False,
    address: str | None = None,
    delays: Sequence[float] = (),
) -> Actors:
    """Start actors that hold the shards of a store, an equal number of shards each, and wait until they have opened them.

    Parameters
    ----------
    url : path or str
        Of the store of shards; a folder that all nodes see, or an address that each one fetches its shards from.
    count : int
        Number of actors, no more than there are shards.
    deadline : float, optional
        Seconds that an answer is waited for; None waits for all.
    dense : bool
        Hold the dense indexes instead of the suffix arrays.
    address : str, optional
        As for :class:`~specdec_lib.cluster.OnRay`.
    delays : sequence of float
        Seconds that each actor holds its answers back; none by default.

    Raises
    ------
    ValueError
        If there are fewer shards than actors, or the deadline is not above 0.
    ImportError
        If Ray is not installed.
    """
    shards = read_shards_at(url)["shards"]
    if not isinstance(count, int) or not 1 <= count <= len(shards):
        raise ValueError(f"{count!r} actors are asked for; expected 1 to the number of shards, {len(shards)}")
    if deadline is not None and not deadline > 0:
        raise ValueError(f"deadline is {deadline!r}; expected seconds above 0, or None to wait for all")
    ray = OnRay(address).ray
    holder = ray.remote(num_cpus=0, scheduling_strategy="SPREAD", max_restarts=RETRIES)(ShardHolder)
    delays = list(delays) or [0.0] * count
    handles = [
        holder.remote(str(url), shards[number::count], dense, delay)
        for number, delay in zip(range(count), delays, strict=True)
    ]
    ray.get([handle.ready.remote() for handle in handles])
    return Actors(ray, handles, deadline)


@dataclass(frozen=True, eq=False)
class RemoteSuffixIndex(ShardedSuffixIndex):
    """The suffix arrays of shards that actors hold; what :class:`~specdec_lib.drafters.rest.Rest` takes.

    Where every actor answers in time, drafts are those of the same shards opened here, except that a uniform draw
    depends on the order of the shards.
    """

    actors: Actors = None

    @classmethod
    def start(cls, url: str | Path, count: int, **options: Any) -> RemoteSuffixIndex:
        """Start the actors; parameters as for :func:`start_actors`."""
        actors = start_actors(url, count, **options)
        return cls(ShardedStore(Path(str(url)), read_shards_at(url)), [], actors)

    def answers(self, question: Question) -> list[Answer]:
        """What the shards answered in time."""
        return [Answer(*answer) for answer in self.actors.ask("answers", question)]


@dataclass(frozen=True, eq=False)
class RemoteDenseIndex(ShardedDenseIndex):
    """The dense indexes of shards that actors hold; what :class:`~specdec_lib.drafters.dresd.Dresd` takes."""

    actors: Actors = None

    @classmethod
    def start(cls, url: str | Path, count: int, **options: Any) -> RemoteDenseIndex:
        """Start the actors; parameters as for :func:`start_actors`."""
        actors = start_actors(url, count, dense=True, **options)
        width = actors.ray.get(actors.handles[0].width.remote())
        if len(set(actors.ray.get([handle.reduction.remote() for handle in actors.handles]))) > 1:
            raise StoreError(
                f"the shards of {url} have several reductions or models, so that their scores cannot be compared: build the dense "
                "index of all shards with 'python -m specdec_lib datastore dense'"
            )
        return cls(ShardedStore(Path(str(url)), read_shards_at(url)), width, [], actors)

    def nearest(self, states: np.ndarray | torch.Tensor, k: int, length: int) -> list[Neighbour]:
        """The nearest of what the shards answered in time."""
        states = torch.as_tensor(states).detach().float().cpu().numpy()
        return merge_nearest(self.actors.ask("nearest", states, k, length), k)
