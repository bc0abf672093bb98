"""``python -m specdec_lib pocket-data``: fetch and prepare the text that the pocket models are trained on."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from specdec_lib import paths
from specdec_lib.chapters.a1_pocket_models import training_text
from specdec_lib.commands import exit_status


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(prog="python -m specdec_lib pocket-data", description=main.__doc__)
    parser.add_argument("--folder", type=Path, default=paths.cache() / "pocket",
                        help="receives packages/ and the tokens (default: %(default)s)")
    return parser


def _run(folder: Path) -> None:
    corpus = training_text.Corpus.read()
    training_text.fetch(corpus, folder / "packages")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(paths.POCKET / "target")
    training_text.prepare(tokenizer, folder, corpus)
    print((folder / "corpus.json").read_text())


def main(argv: Sequence[str] | None = None) -> int:
    """Fetch the packages of the corpus and turn all training text into tokens."""
    options = build_parser().parse_args(argv)
    return exit_status(lambda: _run(options.folder),
                       "interrupted; the same command goes on with the packages that are missing")
