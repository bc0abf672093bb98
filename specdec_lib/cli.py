"""``python -m specdec_lib``: the commands. What they import beyond typer, they import when they run."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, TextIO

import typer
from typer.core import TyperGroup

from specdec_lib import paths
from specdec_lib.commands import (
    calibrate,
    calibrate_vllm,
    claims,
    diagnose,
    find_heads,
    fit_tree,
    losslessness,
    run,
    training,
)
from specdec_lib.files import printable
from specdec_lib.processes import wait_without_spinning

#: Typer's own, which it has under no name that lasts.
_UsageError = typer.BadParameter.__base__


class Program(TyperGroup):
    """The group of commands: what a command refuses is a sentence and exit status 2, an interruption 130."""

    def invoke(self, ctx: typer.Context) -> Any:
        """Run the command that was named."""
        wait_without_spinning()
        try:
            return super().invoke(ctx)
        except _UsageError as error:
            error.message = "\n".join(map(printable, error.message.splitlines()))
            raise
        except KeyboardInterrupt:
            _end("interrupted; what was finished before is kept", 130)
        except ModuleNotFoundError as error:
            where = "-e '.[book,test,cpu]'" if paths.ROOT else "'specdec-lib[book,cpu]'"
            _end(f"error: {error}. Install the extras: pip install {where}", 2)
        except (ValueError, OSError, ImportError) as error:
            _end(f"error: {error}", 2)


def _end(message: str, status: int) -> None:
    # A message may quote a file, whose control characters could steer the terminal.
    typer.echo("\n".join(map(printable, message.splitlines())), err=True)
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
app.command()(calibrate_vllm.calibrate_vllm)
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


class _Pipe(io.FileIO):
    """A file to write to, whose reader may go away: what comes after that is dropped, and the command goes on."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            _to_nowhere(self.fileno())
            return len(data)


def _to_nowhere(number: int) -> None:
    """Let a file descriptor lead to the null device."""
    null = os.open(os.devnull, os.O_RDWR)
    if null != number:
        os.dup2(null, number)
        os.close(null)


def _output(stream: TextIO | None, number: int) -> TextIO:
    """Standard output or error, which may be closed from the start; a character that the terminal has not is no reason to stop."""
    try:
        os.fstat(number)
    except OSError:
        _to_nowhere(number)  # else the next file that is opened would get the number, and what is printed
    if stream is not None and not isinstance(stream, io.TextIOWrapper):
        return stream  # someone else's
    at_once = stream is not None and (stream.line_buffering or stream.write_through)
    encoding = stream.encoding if stream is not None else "utf-8"
    inside = io.BufferedWriter(_Pipe(number, "w", closefd=False))
    return io.TextIOWrapper(inside, encoding=encoding, errors="replace", line_buffering=at_once or number == 2)


def main(words: Sequence[str] | None = None) -> int:
    """Run the command of these words, by default those of the command line; returns the exit status."""
    if words is None:
        # What ends a job at its time limit ends it as a key does, so that temporary files are removed.
        signal.signal(signal.SIGTERM, _interrupt)
        sys.stdout, sys.stderr = (_output(stream, number) for number, stream in ((1, sys.stdout), (2, sys.stderr)))
    try:
        app(args=None if words is None else list(words), prog_name="python -m specdec_lib")
    except SystemExit as end:
        return int(end.code or 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
