"""``recordings``: commit what the shipped models write to the prompts of the book.

Needed where their weights changed: tokens of other weights are not used, and a run then decodes everything.
"""

from __future__ import annotations

from typing import Annotated

import typer

from specdec_lib import paths


def recordings(
    profile: Annotated[str, typer.Option(help="smoke, default or full.")] = "default",
    from_cache: Annotated[
        bool, typer.Option("--from-cache", help="Execute nothing: add what earlier runs decoded to what the file has.")
    ] = False,
) -> None:
    """Decode the prompts of the book again, and commit what the shipped models write into data/results/recordings."""
    paths.root()
    from specdec_lib.experiments import recordings
    from specdec_lib.models.loading import load_model
    from specdec_lib.report.build import runner
    from specdec_lib.report.display import provenance

    models = [recordings.identity(load_model(name, "cpu", "float32")[0]) for name in ("pocket", "pocket-draft")]
    facts = provenance.collect()
    about = {"command": "python -m specdec_lib recordings" + " --from-cache" * from_cache}
    about |= {"profile": profile, **{name: facts[name] for name in ("date", "commit", "versions", "machine")}}
    if from_cache:
        count = recordings.commit(recordings.folder(), paths.RECORDINGS, models, about, add=True)
    else:
        with recordings.fresh_folder() as folder:
            if runner.run(profile, force=True):
                raise typer.Exit(1)
            count = recordings.commit(folder, paths.RECORDINGS, models, about)
    typer.echo(f"{paths.RECORDINGS}: {count} outputs, {paths.RECORDINGS.stat().st_size:,} bytes")
