"""``python -m specdec_lib recordings``: decode the prompts of the book and commit what the shipped models write.

Needed where the pocket pair was trained again: tokens of other weights are not used, and a run then decodes everything.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m specdec_lib recordings",
        description="Execute the notebooks, decoding everything again, and write the tokens of the shipped models into "
        "data/results/recordings.",
    )
    parser.add_argument("--profile", default="default", help="smoke, default or full (default: %(default)s)")
    parser.add_argument(
        "--from-cache",
        action="store_true",
        help="execute nothing: add what earlier runs decoded to what the file has of the same models",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status is 1 when a notebook failed, and nothing is written then."""
    options = build_parser().parse_args(argv)
    from specdec_lib import paths
    from specdec_lib.experiments import recordings
    from specdec_lib.models.loading import POCKET_PARTS, load_model
    from specdec_lib.report.build import runner  # needs the extra `book`, which --help does not
    from specdec_lib.report.display import provenance

    models = [recordings.identity(load_model(name, "cpu", "float32")[0]) for name in POCKET_PARTS]
    facts = provenance.collect()
    about = {"command": "python -m specdec_lib recordings" + " --from-cache" * options.from_cache}
    about |= {"profile": options.profile, **{name: facts[name] for name in ("date", "commit", "versions", "machine")}}
    if options.from_cache:
        count = recordings.commit(recordings.folder(), paths.RECORDINGS, models, about, add=True)
    else:
        with recordings.fresh_folder() as folder:
            if runner.run(options.profile, force=True):
                return 1
            count = recordings.commit(folder, paths.RECORDINGS, models, about)
    print(f"{paths.RECORDINGS}: {count} outputs, {paths.RECORDINGS.stat().st_size:,} bytes")
    return 0
