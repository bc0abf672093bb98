"""The page "Beyond one machine": what it says follows from the file."""

from __future__ import annotations

import copy

import pytest

from specdec_lib.experiments.scale import project
from specdec_lib.report.build import scale


@pytest.fixture
def file():
    spread = {"median": 10.0, "p95": 20.0}
    build = {"sort_seconds": 1.0, "memory_before": 5, "load": 0.5}
    builds = [
        build | {"tokens": 1000, "bytes": 6000, "memory_peak": 5},
        build | {"tokens": 4000, "bytes": 24000, "memory_peak": 40005},
    ]
    workers = [
        {"workers": name, "tokens": 800, "seconds": 8 / n, "tokens_per_second": 100 * n}
        | {"processor_seconds": 7.0, "load": 1.5}
        for n, name in WORKERS
    ]
    shard = {"tokens": 2000, "processor_seconds": 60.0, "seconds": 70.0}
    return {
        "measured": {
            "text": {"files": 1234, "bytes": 5 * 10**6, "archives": 3},
            "tokenizing": {"tokens": 4000, "processor_seconds": 2.0, "seconds": 3.0, "load": 0.5},
            "builds": builds,
            "searches": [{"tokens": row["tokens"], "search": spread, "draft": spread, "load": 0.5} for row in builds],
            "shards": {"processes": 2, "built": [shard | {"name": f"{i}", "load": 1.0 + i} for i in range(2)]},
            "sharded": [
                {"shards": n, "tokens": 2000 * n, "median": 10.0 * n, "p95": 30.0, "load": 0.5} for n in (1, 2)
            ],
            "workers": workers,
            "actors": [
                {"actors": 0, "tokens": 800, **spread, "load": 0.5},
                {
                    "actors": 2,
                    "tokens": 800,
                    "median": 700.0,
                    "p95": 900.0,
                    "round_trip": spread,
                    "late": 0.25,
                    "load": 0.7,
                },
            ],
            "dense": {"states": 100, "seconds": 3.0, "processor_seconds": 2.0, "bytes_per_state": 264.0},
            "pass_seconds": 0.008,
            "pass_load": 0.5,
        },
        "provenance": {
            "command": "python -m specdec_lib scale",
            "commit": "c" * 40,
            "date": "today",
            "seconds": 1.0,
            "load before": [0.5, 0.5, 0.5],
            "load after": [0.5, 0.5, 0.5],
            "machine": {"processor": "P", "cores": "2"},
        },
    }


WORKERS = ((1.5, "this process"), (1, "1 process"), (2, "2 processes"))


def test_the_page_shows_the_files_numbers_and_what_follows_from_them(file):
    text, answer = scale.text(file), scale.answer(file)
    assert "1,234 Python files, 5 MB" in text and "of 3 downloaded archives" in text
    assert "tokenizes 4,000 tokens makes 2,000 tokens in a second of the processor" in text
    assert "| 4,000 | 4,000 | 6.0 | 10.0 | 10.0 (20.0) | 10 (20) | 0.5 |" in text
    assert "| 1,000 | 1,000 | 6.0 | – |" in text
    assert "| 2 | 4,000 | 20 (30) | 0.5 |" in text
    assert (
        "2 shards with 4,000 tokens took 2 core-minutes, that is 33 tokens per core-second, at loads of 1.0 to 2.0"
        in text
    )
    assert "| 2 processes | 800 | 4 | 200 | 2.00 | 7 | 1.5 |" in text
    assert "| actors: 2 | 700 (900) | 10 (20) | 25.0% | 0.7 |" in text
    billion = project(file["measured"], 10**9)
    assert f"6 GB and {billion.core_hours:,.1f} core-hours" in answer and "fits no host; 24 hosts" in text
    assert "4,000 tokens take 20 µs. A pass of the pocket target takes 8 ms." in answer
    assert "warning" not in answer


def test_a_store_from_the_cache_has_no_build_to_tell_of(file):
    file["measured"]["shards"]["built"] = []
    assert "core-minutes" not in scale.text(file)


def test_the_figure_has_the_single_stores_and_the_shards(file):
    drawn = scale.figure(file)
    (ax,) = drawn.axes
    assert [list(line.get_xdata()) for line in ax.lines] == [[1000, 4000], [2000, 4000]]
    assert [list(line.get_ydata()) for line in ax.lines] == [[10.0, 10.0], [10.0, 20.0]]


def test_a_busy_machine_is_told_at_the_top(file):
    busy = copy.deepcopy(file)
    busy["measured"]["sharded"][0]["load"] = 9.5
    assert "warning" not in scale.answer(busy)
    for row in (*busy["measured"]["sharded"], *busy["measured"]["searches"]):
        row["load"] = 9.5
    assert ":::{warning}" in scale.answer(busy)


def test_a_missing_file_names_the_command(tmp_path):
    with pytest.raises(FileNotFoundError, match="python -m specdec_lib scale"):
        scale.content(tmp_path / "scale.json")
