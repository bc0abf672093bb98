"""``python -m specdec_lib pocket-data``: fetch and prepare the text that the pocket models are trained on."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from specdec_lib import paths
from specdec_lib.chapters.a1_pocket_models import carrying, training_text
from specdec_lib.commands import exit_status


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(prog="python -m specdec_lib pocket-data", description=main.__doc__)
    parser.add_argument(
        "--folder",
        type=Path,
        default=paths.cache() / "pocket",
        help="receives packages/ and the tokens (default: %(default)s)",
    )
    parser.add_argument(
        "--compact",
        nargs=2,
        metavar=("TOKENS", "FILE"),
        help="fetch nothing: write the first TOKENS of what is prepared into one compressed file",
    )
    return parser


def _run(folder: Path) -> None:
    corpus = training_text.Corpus.read()
    # Checked before the packages are fetched, which takes minutes.
    training_text.conversation_files(corpus)
    training_text.fetch(corpus, folder / "packages")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(paths.POCKET / "target")
    training_text.prepare(tokenizer, folder, corpus)
    print((folder / "corpus.json").read_text())


def _compact(folder: Path, tokens: str, file: str) -> None:
    if not tokens.isdigit():
        raise ValueError(f"--compact has {tokens!r}; expected a number of tokens and a file")
    print(f"{carrying.compact(folder, int(tokens), Path(file)):,} bytes in {file}")


def main(argv: Sequence[str] | None = None) -> int:
    """Fetch the packages of the corpus and turn all training text into tokens."""
    options = build_parser().parse_args(argv)
    return exit_status(
        lambda: _compact(options.folder, *options.compact) if options.compact else _run(options.folder),
        "interrupted; the same command goes on with the packages that are missing",
    )
