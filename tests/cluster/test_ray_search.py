"""Shards that actors hold, against the same shards opened here."""

from __future__ import annotations

import time

import numpy as np
import pytest

from specdec_lib import datastores, generate
from specdec_lib.drafters import Rest
from tests.datastores.test_sharded import dense_shards, propose

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def shards(tmp_path_factory, llama):
    folder = tmp_path_factory.mktemp("shards")
    rng = np.random.default_rng(0)
    vocabulary = llama.config.vocab_size
    documents = [rng.integers(0, 6, 60).tolist() for _ in range(8)]
    for number in range(4):
        store = datastores.build_tokens(folder / str(number), documents[2 * number :][:2], vocabulary, progress=False)
        datastores.build_suffix_array(store, progress=False)
        datastores.add_shard(folder / "set", store)
    return folder / "set", documents, vocabulary


def remote(path, count, **options):
    from specdec_lib.datastores.remote import RemoteSuffixIndex

    return RemoteSuffixIndex.start(path, count, **options)


def stop(index) -> None:
    for handle in index.actors.handles:
        index.actors.ray.kill(handle)


# Each actor is a process that imports the library, which is most of the time of these tests.
@pytest.mark.parametrize("count", [1, 3])
def test_drafts_of_actors_are_those_of_the_shards_here(nodes, shards, count):
    path, documents, vocabulary = shards
    index = remote(path, count, deadline=None)
    for sizes in ({}, {"max_matches": 3}, {"selection": "released"}):
        here, there = Rest(path, min_ngram=1, **sizes), Rest(index, min_ngram=1, **sizes)
        for end in range(1, 30, 4):
            assert propose(there, documents[end % 8][:end], vocabulary) == propose(
                here, documents[end % 8][:end], vocabulary
            )
            assert there.last == here.last
    assert index.actors.late == index.actors.lost == 0 and index.actors.asked == 24 * count
    stop(index)


def test_a_slow_shard_is_late_and_changes_no_output(nodes, shards, llama):
    path, documents, vocabulary = shards
    index = remote(path, 2, deadline=0.5, delays=[0.0, 60.0])
    fast = Rest(index, min_ngram=1)
    # The actor that answers holds the first and the third shard.
    begin = time.perf_counter()
    tree = propose(fast, documents[0][:5], vocabulary)
    assert time.perf_counter() - begin < 30 and len(tree)
    plain = generate(llama, documents[0][:20], None, max_new_tokens=12)
    assert generate(llama, documents[0][:20], fast, max_new_tokens=12).tokens == plain.tokens
    # It is behind with its first question and is not asked again.
    assert index.actors.late >= index.actors.asked // 2 > 0 and index.actors.lost == 0
    stop(index)


def test_a_lost_actor_is_told_counted_and_started_again(nodes, shards):
    path, documents, vocabulary = shards
    index = remote(path, 2, deadline=None)
    drafter = Rest(index, min_ngram=1)
    whole = propose(drafter, documents[0][:9], vocabulary)
    nodes.ray.kill(index.actors.handles[0], no_restart=False)
    with pytest.warns(UserWarning, match="a holder of shards was lost"):
        deadline = time.monotonic() + 60
        while not index.actors.lost and time.monotonic() < deadline:
            propose(drafter, documents[0][:9], vocabulary)
    nodes.ray.get(index.actors.handles[0].ready.options(max_task_retries=-1).remote())
    assert propose(drafter, documents[0][:9], vocabulary) == whole
    stop(index)


def test_neighbours_of_actors_are_those_of_the_shards_here(nodes, tmp_path):
    from specdec_lib.datastores.remote import RemoteDenseIndex

    _, path, states = dense_shards(tmp_path, [3, 4])
    here = datastores.open_dense_index(path, device="cpu")
    there = RemoteDenseIndex.start(path, 2, deadline=None)
    assert there.width == here.width
    for state in states[::9] + 0.1:
        assert there.nearest(state[None], 20, 4) == here.nearest(state[None], 20, 4)
    stop(there)


def test_more_actors_than_shards_or_no_deadline_are_refused(nodes, shards):
    with pytest.raises(ValueError, match="5 actors are asked for; expected 1 to the number of shards, 4"):
        remote(shards[0], 5)
    with pytest.raises(ValueError, match="deadline is 0; expected seconds above 0"):
        remote(shards[0], 1, deadline=0)
