"""``python -m specdec_lib doctor``: what this machine has, and what stands in the way."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from specdec_lib.report.build import doctor


def build_parser() -> argparse.ArgumentParser:
    """The command has no options but ``--help``."""
    return argparse.ArgumentParser(prog="python -m specdec_lib doctor", description=__doc__)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report; the exit status is 1 when there is a problem."""
    build_parser().parse_args(argv)
    facts = doctor.facts()
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:<{width}}  {value}")
    problems = doctor.problems()
    for text in problems:
        print(f"problem: {text}")
    if not problems:
        print("no problem found")
    return 1 if problems else 0
