"""``run``: execute the notebooks into ``book/notebooks``; ``rows``: make the rows again that they read."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Annotated

import typer

from specdec_lib import paths


def run(
    only: Annotated[list[str] | None, typer.Option(metavar="01", help="One notebook; may be repeated.")] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-p", metavar="01.name=value", help="One parameter; may be repeated."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Also execute notebooks that have not changed.")] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Decode every prompt again, taking no recorded tokens; implies --force.")
    ] = False,
) -> None:
    """Execute the notebooks into book/notebooks."""
    paths.root()
    from specdec_lib.experiments.runs import recordings
    from specdec_lib.report.build import runner

    with recordings.fresh_folder() if fresh else nullcontext():
        failed = runner.run(only or (), parameter or (), force or fresh)
    raise typer.Exit(1 if failed else 0)


def rows(
    which: Annotated[
        list[str] | None,
        typer.Argument(metavar="01 | 01/greedy", help="A chapter, or one of its files (default: all)."),
    ] = None,
) -> None:
    """Make the rows in data/rows again, which every build reads; an interrupted run goes on where it was."""
    paths.root()
    from specdec_lib.experiments.runs import checked_rows, row_files
    from specdec_lib.report.build import runner
    from specdec_lib.report.params import UsageError

    known = {f"{path.parent.name}/{path.name.removesuffix('.csv.gz')}" for path in row_files.FOLDER.glob("*/*.csv.gz")}
    seconds = {name: row_files.read(name)[1]["seconds"] for name in known}
    asked: dict[str, list[str]] = {}
    for name in which or sorted({name.split("/")[0] for name in known}):
        chapter, _, file = name.partition("/")
        if not (chapter.isdigit() and len(chapter) == 2):
            raise UsageError(
                f"{name!r} names no rows; expected a chapter such as 01, or one of {', '.join(sorted(known))}"
            )
        took = sum(spent for one, spent in seconds.items() if one == name or not file and one.startswith(f"{chapter}/"))
        print(
            f"{name}: took {took / 3600:.1f} hours the last time"
            if took
            else f"{name}: how long it takes is not known",
            flush=True,
        )
        asked.setdefault(chapter, []).append(name)
    for chapter, names in asked.items():
        os.environ[checked_rows.MAKE] = " ".join(names)
        if runner.run([chapter], force=True):
            raise typer.Exit(1)
