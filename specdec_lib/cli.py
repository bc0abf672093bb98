"""``python -m specdec_lib``: the commands. What they import beyond typer, they import when they run."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from specdec_lib import paths
from specdec_lib.commands import calibrate, claims, diagnose, find_heads, fit_tree, losslessness, run, training
from specdec_lib.processes import wait_without_spinning


class Program(TyperGroup):
    """The group of commands: what a command refuses is a sentence and exit status 2, an interruption 130."""

    def invoke(self, ctx: typer.Context) -> Any:
        """Run the command that was named."""
        wait_without_spinning()
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            _end("interrupted; what was finished before is kept", 130)
        except ModuleNotFoundError as error:
            where = "-e '.[book,test,cpu]'" if paths.ROOT else "'specdec-lib[book,cpu]'"
            _end(f"error: {error}. Install the extras: pip install {where}", 2)
        except (ValueError, OSError, ImportError) as error:
            _end(f"error: {error}", 2)


def _end(message: str, status: int) -> None:
    typer.echo(message, err=True)
    raise typer.Exit(status) from None


app = typer.Typer(
    cls=Program,
    help="Speculative decoding, reproduced: execute and render the book, and the tools of the library.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(run.run)
app.command()(run.rows)


@app.command()
def book() -> None:
    """Render the book from the executed notebooks."""
    paths.root()
    from specdec_lib.report.build import book

    book.build()


@app.command()
def check() -> None:
    """Check notebooks, parameters, pages, links and claims without running anything."""
    root = paths.root()
    from specdec_lib.report.build.check import check_all

    faults = check_all(root)
    typer.echo("\n".join([*faults, f"{len(faults)} faults" if faults else "no fault found"]))
    raise typer.Exit(1 if faults else 0)


app.command()(diagnose.diagnose)
app.command()(calibrate.calibrate)
app.command()(losslessness.losslessness)
app.command()(find_heads.find_heads)
app.command()(training.train_acceptance_head)
app.command()(training.train_heads)
app.command()(fit_tree.fit_tree)
app.command()(claims.claims)


@app.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False},
)
def datastore(context: typer.Context) -> None:
    """Build, describe and verify datastores."""
    from specdec_lib.commands import datastore

    program = "python -m specdec_lib datastore"
    raise typer.Exit(datastore.app(context.args, prog_name=program, standalone_mode=False) or 0)


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def main(words: Sequence[str] | None = None) -> int:
    """Run the command of these words, by default those of the command line; returns the exit status."""
    if words is None:
        # What ends a job at its time limit ends it as a key does, so that temporary files are removed.
        signal.signal(signal.SIGTERM, _interrupt)
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(errors="replace")  # a character that the terminal has not is no reason to stop
    try:
        app(args=None if words is None else list(words), prog_name="python -m specdec_lib")
    except SystemExit as end:
        return int(end.code or 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
