"""What a datastore costs at any size, computed from what was measured."""

from __future__ import annotations

import pytest

from specdec_lib.cluster import Here
from specdec_lib.experiments import scale
from specdec_lib.experiments.package_files import package_files

MEASURED = {
    "tokenizing": {"tokens": 2**19, "processor_seconds": 1.0},
    "builds": [
        {"tokens": 1000, "sort_seconds": 9.0, "bytes": 9000},
        {"tokens": 2**20, "sort_seconds": 2.0, "bytes": 8 * 2**20},
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
    "shards": {"processes": 1, "built": []},
    "dense": {"states": 100, "seconds": 9.0, "processor_seconds": 2.0, "bytes_per_state": 264.0},
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


def test_core_hours_are_those_of_the_shards_where_their_build_was_timed():
    built = [{"tokens": 1000, "processor_seconds": 5.0}, {"tokens": 3000, "processor_seconds": 3.0}]
    assert scale.project(MEASURED | {"shards": {"built": built}}, 10**9).core_hours == pytest.approx(2e6 / 3600)


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


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """Forty short files of Python, and a cache of this test's own."""
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    for i in range(40):
        (tmp_path / "site-packages").mkdir(exist_ok=True)
        body = "".join(f"    value_{j} = call_{i}({j}, name='{i * j}')\n" for j in range(30))
        (tmp_path / "site-packages" / f"m{i}.py").write_text(f"def made_{i}():\n{body}")
    return package_files(installed=[tmp_path / "site-packages"])


def test_a_measurement_is_written_after_each_size_and_goes_on_where_it_stopped(texts, tmp_path, monkeypatch):
    monkeypatch.setattr(scale, "Processes", lambda count: Here())
    plan = scale.Plan((2000, 9000), shard_tokens=3000, worker_tokens=4000, actors=())
    told = []
    begun = scale.measure(tmp_path / "work", texts, plan, tell=told.append)
    first = next(begun)
    assert len(first["builds"]) == 1 and first["text"]["files"] == 40
    begun.close()
    monkeypatch.setattr(scale, "_measure_shards", lambda *_: pytest.fail("measured a second time"))
    *_, last = scale.measure(tmp_path / "work", texts, plan, tell=told.append)
    assert last["builds"][0] == first["builds"][0] and last["workers"] == first["workers"]
    assert [row["shards"] for row in last["sharded"]] == [1, 2, 3]
    assert sum(row["tokens"] for row in last["shards"]["built"]) == last["sharded"][-1]["tokens"] <= 9000
    for row, size in zip(last["builds"], plan.sizes, strict=True):
        assert 0.8 * size < row["tokens"] <= size and row["sort_seconds"] > 0
    assert not (tmp_path / "work").exists()


def test_notes_of_another_measurement_are_dropped(tmp_path):
    notes = scale.Notes(tmp_path / "notes.json", {"plan": 1})
    assert notes.step("a", lambda: [1]) == [1]
    again = scale.Notes(tmp_path / "notes.json", {"plan": 1})
    assert again.step("a", lambda: pytest.fail("done a second time")) == [1]
    assert "a" not in scale.Notes(tmp_path / "notes.json", {"plan": 2})


def test_a_quiet_machine_is_waited_for_and_no_longer_than_allowed(monkeypatch):
    loads, slept = iter([9.0, 9.0, 0.1, 9.0, 9.0, 9.0]), []
    monkeypatch.setattr(scale, "load_average", lambda: [next(loads)])
    monkeypatch.setattr(scale.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(scale.time, "sleep", slept.append)
    quiet = scale.Quiet(35, lambda _: None)
    assert quiet.wait() == 0.1 and slept == [10.0, 10.0]
    assert quiet.wait() == 9.0 and slept == [10.0, 10.0, 10.0, 5.0]
