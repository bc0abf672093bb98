"""What the page on running again takes from the notebooks."""

from datetime import UTC, datetime, timedelta

import nbformat
from nbformat.v4 import new_markdown_cell, new_notebook

from specdec_lib.report.build import rerun


def test_times_and_machine_come_from_the_executed_copies(tmp_path):
    machine = {"processor": "Some | CPU", "device": "cpu", "torch threads": "2"}
    for number, seconds in ((1, 90.0), (2, 120.0)):
        name = f"0{number}_small"
        content = new_notebook(cells=[new_markdown_cell(f"# Title {number}")])
        # The second began a minute before the first ended.
        began = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=30 * (number - 1))
        times = {"start_time": began.isoformat(), "end_time": (began + timedelta(seconds=seconds)).isoformat()}
        content.metadata["papermill"] = times
        content.metadata["specdec"] = {
            "profile": "default",
            "seconds": seconds,
            "provenance": {"machine": machine, "date": "2026-01-01 00:00 UTC"},
        }
        nbformat.write(content, tmp_path / f"{name}.ipynb")
    (tmp_path / "files" / "01_small").mkdir(parents=True)
    (tmp_path / "files" / "01_small" / "tab-x.csv").write_bytes(b"x" * 1_000_000)
    text = rerun.times_text(tmp_path.glob("*.ipynb"), 2_000_000_000)
    assert "| [](notebooks/01_small.ipynb) | default | 90 | 1.0 | Some \\| CPU, 2 threads |" in text
    assert "Together 2 minutes" in text and "2.0 GB" in text  # 150 s
    assert rerun.minutes([("2026-01-01T00:00", "2026-01-01T00:03"), ("2026-01-02T00:00", "2026-01-02T00:04")]) == 7
