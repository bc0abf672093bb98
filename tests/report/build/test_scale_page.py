"""The page "Beyond one machine": what it says follows from the file."""

from __future__ import annotations

import copy

import pytest

from specdec_lib.experiments.scale import project
from specdec_lib.report.build import scale


@pytest.fixture
def file():
    spread = {"median": 10.0, "p95": 20.0}
    build = {"tokenize_seconds": 2.0, "sort_seconds": 1.0, "memory_before": 5}
    builds = [
        build | {"tokens": 1000, "bytes": 6000, "memory_peak": 5},
        build | {"tokens": 4000, "bytes": 24000, "memory_peak": 40005},
    ]
    workers = [{"workers": name, "tokens": 800, "seconds": 8 / n, "tokens_per_second": 100 * n} for n, name in WORKERS]
    return {
        "measured": {
            "builds": builds,
            "searches": [{"tokens": row["tokens"], "search": spread, "draft": spread} for row in builds],
            "workers": workers,
            "actors": [
                {"actors": 0, "tokens": 800, **spread},
                {"actors": 2, "tokens": 800, "median": 700.0, "p95": 900.0, "round_trip": spread, "late": 0.25},
            ],
            "dense": {"states": 100, "seconds": 2.0, "bytes_per_state": 264.0},
            "pass_seconds": 0.008,
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
    text = scale.text(file)
    assert "| 4,000 | 2,000 | 4,000 | 6.0 | 10.0 | 10.0 (20.0) | 10 (20) |" in text
    assert "| 1,000 | 500 | 1,000 | 6.0 | – |" in text
    assert "| 2 processes | 800 | 4 | 200 | 2.00 |" in text
    assert "| actors: 2 | 700 (900) | 10 (20) | 25.0% |" in text
    billion = project(file["measured"], 10**9)
    assert f"6 GB and {billion.core_hours:,.1f} core-hours" in text and "fits no host; 24 hosts" in text
    assert "warning" not in text


def test_a_busy_machine_is_told_at_the_top(file):
    busy = copy.deepcopy(file)
    busy["provenance"]["load after"] = [9.5, 1.0, 1.0]
    assert scale.text(busy).startswith(":::{warning}")


def test_a_missing_file_names_the_command(tmp_path):
    with pytest.raises(FileNotFoundError, match="python -m specdec_lib scale"):
        scale.content(tmp_path / "scale.json")
