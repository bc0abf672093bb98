"""The page on the library's own speed: what it says follows from the file."""

from __future__ import annotations

import json

import pytest

from specdec_lib.report.build import speed


def row(name, ours, peer_value=None, **more):
    return {
        "name": name,
        "work": name.replace("_", " "),
        "unit": "ms",
        "value": ours,
        "p99": 2 * ours,
        "samples": 10,
        "higher_is_better": False,
        "peer": None if peer_value is None else "a peer",
        "peer_value": peer_value,
        "ratio": peer_value and ours / peer_value,
        "ratio_spread": peer_value and [0.8 * ours / peer_value, 1.0],
        "elsewhere": None,
    } | more


@pytest.fixture
def content():
    facts = {
        "commit": "c" * 40,
        "date": "today",
        "seconds": 1.0,
        "load": 9.5,
        "machine": {"processor": "P", "cores": "2"},
        "versions": {"torch": "1", "transformers": "2"},
    }
    rows = [
        row("loop_overhead_ms", 0.05, 0.2),
        row("pld_draft_us_32k", 8.0, 400.0, elsewhere="a | b"),
        row("rest_draft_us_20m", 5.0, samples=1),
        row("plain", 30.0, 20.0, higher_is_better=True, same_output=0.5),
    ]
    return {"loop": {"rows": rows, "provenance": facts}}


def test_the_ratio_is_read_in_the_direction_of_the_unit(content):
    loop, *_, plain = content["loop"]["rows"]
    assert speed.times_as_fast(loop) == pytest.approx((4, 1, 5))
    assert speed.times_as_fast(plain) == pytest.approx((1.5, 1.2, 1))


def test_the_page_names_every_row_and_where_it_comes_from(content):
    text = speed.text(content)
    assert "takes 0.05 ms beyond" in text and "decoding takes 0.2 ms" in text and "In 50%" in text
    table = [line for line in text.splitlines() if line.startswith("| ")]
    assert sum(line.startswith(("| loop overhead", "| pld draft", "| rest draft", "| plain")) for line in table) == 4
    assert "| rest draft us 20m | 5 ms | – | – | – |" in table, "one sample has no percentile"
    assert any("a \\| b" in line for line in table)
    assert any("cccccccccccc" in line and "9.5" in line for line in table)


def test_the_figure_has_a_bar_for_each_row_with_a_peer(content):
    figure = speed.figure(content)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [
        "loop overhead ms",
        "pld draft us 32k",
        "plain",
    ]


def test_a_missing_file_names_the_command(tmp_path):
    with pytest.raises(FileNotFoundError, match="python -m specdec_lib bench"):
        speed.sections(tmp_path / "none.json")
    (tmp_path / "bench.json").write_text(json.dumps({"sections": {}}))
    assert speed.sections(tmp_path / "bench.json") == {}
