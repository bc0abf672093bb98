"""What a datastore costs at any size, computed from what was measured."""

from __future__ import annotations

import math

import pytest

from specdec_lib.experiments import scale

MEASURED = {
    "builds": [
        {"tokens": 1000, "tokenize_seconds": 9.0, "sort_seconds": 9.0, "bytes": 9000},
        {"tokens": 2**20, "tokenize_seconds": 2.0, "sort_seconds": 2.0, "bytes": 8 * 2**20},
    ],
    "searches": [
        {"tokens": 2**10, "draft": {"median": 20.0}},
        {"tokens": 2**20, "draft": {"median": 40.0}},
    ],
    "actors": [
        {"actors": 0, "median": 30.0},
        {"actors": 1, "median": 530.0},
        {"actors": 2, "median": 430.0},
    ],
    "dense": {"states": 100, "seconds": 2.0, "bytes_per_state": 264.0},
}


def test_the_law_goes_through_two_measurements_and_never_falls():
    assert scale.search_law(MEASURED["searches"]) == pytest.approx((0.0, 2.0))
    falling = [{"tokens": 2**10, "draft": {"median": 30.0}}, {"tokens": 2**20, "draft": {"median": 10.0}}]
    assert scale.search_law(falling) == pytest.approx((20.0, 0.0))
    assert scale.search_law(falling[:1]) == (30.0, 0.0)


def test_one_host_holds_what_fits_and_many_are_asked_at_the_same_time():
    one = scale.project(
        MEASURED, 2**30, shard_tokens=2**28, host_bytes=2**33, network_seconds=0.001, tokens_per_pass=1.5
    )
    assert one.bytes == 2**33 and one.hosts == 1 and one.shards == 4
    # Four seconds for each 2**20 tokens.
    assert one.core_hours == pytest.approx(4 * 2**10 / 3600)
    # 2 * 28 microseconds a shard, one shard after another.
    assert one.local_seconds == pytest.approx(4 * 56e-6)
    assert one.remote_seconds == pytest.approx(400e-6 + 0.001 + 4 * 56e-6)
    assert one.least_pass_seconds == pytest.approx(one.remote_seconds / 0.5)
    assert one.dense_bytes == 264 * 2**30 and one.dense_hours == pytest.approx(2**30 * 0.02 / 3600)
    four = scale.project(MEASURED, 2**30, shard_tokens=2**28, host_bytes=2**31, network_seconds=0.001)
    assert four.hosts == 4 and four.local_seconds is None
    assert four.remote_seconds == pytest.approx(400e-6 + 0.001 + 56e-6)


def test_a_lookup_pays_exactly_above_the_least_pass():
    row = scale.project(MEASURED, 10**9, tokens_per_pass=1.8)
    for pass_seconds, pays in ((0.99 * row.least_pass_seconds, False), (1.01 * row.least_pass_seconds, True)):
        with_store, without = 1.8 / (pass_seconds + row.remote_seconds), 1 / pass_seconds
        assert (with_store > without) == pays


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shard_tokens": 2**31}, "shard_tokens is 2147483648; expected 1 to"),
        ({"tokens_per_pass": 1.0}, "expected 1 or more, and more than 1"),
        ({"tokens": 0}, "tokens is 0"),
    ],
)
def test_numbers_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        scale.project(MEASURED, **({"tokens": 10} | options))


def test_a_file_without_actors_projects_nothing():
    with pytest.raises(ValueError, match="no actor was measured"):
        scale.project(MEASURED | {"actors": [{"actors": 0}]}, 10)


def test_the_parts_of_the_files_are_all_of_them_and_no_module_that_is_held_out(tmp_path):
    paths = []
    for i in range(10):
        paths.append(tmp_path / f"{i}.py")
        paths[-1].write_text("x" * 100)
    everything = scale.Files(tuple(paths))
    assert [p for part in everything.split(3) for p in part.paths] == paths
    assert len(everything.first(250).paths) == 3 and math.isclose(sum(map(len, everything.first(250))), 300)
    with pytest.raises(ValueError, match="1,000 bytes of text, 2,000 are needed"):
        everything.first(2000)
