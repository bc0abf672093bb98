"""``run``: execute the notebooks into ``book/notebooks``."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Annotated

import typer

from specdec_lib import paths


def run(
    profile: Annotated[str, typer.Option(help="smoke, default or full.")] = "default",
    only: Annotated[list[str] | None, typer.Option(metavar="01", help="One notebook; may be repeated.")] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-p", metavar="01.name=value", help="One parameter; may be repeated."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Execute also what has not changed.")] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Decode every prompt again, taking no recorded tokens; implies --force.")
    ] = False,
) -> None:
    """Execute the notebooks into book/notebooks."""
    paths.root()
    from specdec_lib.experiments import recordings
    from specdec_lib.report.build import runner

    with recordings.fresh_folder() if fresh else nullcontext():
        failed = runner.run(profile, only or (), parameter or (), force or fresh)
    raise typer.Exit(1 if failed else 0)
