"""The command ``claims``: what it prints, and which tables it saves."""

from __future__ import annotations

import re

import pytest

from specdec_lib import paths
from specdec_lib.cli import main
from specdec_lib.report import numbers
from specdec_lib.report.claims import rules

pytestmark = pytest.mark.skipif(paths.ROOT is None, reason="the claims are judged in a checkout")


@pytest.fixture
def executed(tmp_path, monkeypatch):
    """Gives what makes the executed table of chapter 4 with a profile."""

    def write(profile):
        path = tmp_path / "files" / "04_x" / "04.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{','.join(numbers.COLUMNS)}\nplus_k,71,,,,{profile},\n", encoding="utf-8")
        return path

    found = numbers.table_files
    monkeypatch.setattr(numbers, "table_files", lambda executed=None: found(tmp_path))
    return write


def test_every_claim_is_printed_with_its_verdict(executed, capsys):
    assert main(["claims"]) == 0
    printed = capsys.readouterr().out
    assert [claim.id for claim in rules.load_claims() if claim.says not in printed] == []
    assert f"{rules.HOLDS:20} REST, " in printed
    counted = re.findall(r"(\d+) ([^;]+)", printed.splitlines()[-1])
    assert {verdict for _, verdict in counted} <= set(rules.VERDICTS)
    assert sum(int(count) for count, _ in counted) == len(rules.load_claims())


def test_the_tables_of_a_run_are_saved_and_those_of_a_smoke_run_are_not(executed, tmp_path, capsys):
    words = ["claims", "--save", str(tmp_path / "saved")]
    assert main(words) == 2 and "no notebook has been executed" in capsys.readouterr().err
    executed("smoke")
    assert main(words) == 2 and "04.csv is of a smoke run" in capsys.readouterr().err
    path = executed("default")
    assert main(words) == 0
    (saved,) = (tmp_path / "saved").iterdir()
    assert saved.name == "04.csv" and saved.read_bytes() == path.read_bytes()
