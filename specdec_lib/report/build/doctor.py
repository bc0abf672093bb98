"""``python -m specdec_lib doctor``: what this machine has, and what stands in the way."""

from __future__ import annotations

import os
from importlib import metadata

from specdec_lib import paths
from specdec_lib.report.display import provenance


def problems() -> list[str]:
    """Return what would make a command fail or mislead, one sentence each, with what to do."""
    found = []
    installed = provenance.versions()
    if "faiss-cpu" in installed and "faiss-gpu" in installed:
        found.append(
            "faiss-cpu and faiss-gpu are both installed and overwrite each other: uninstall both, "
            "then install one of the extras cpu and gpu"
        )
    elif "faiss-cpu" in installed or "faiss-gpu" in installed:
        try:
            import faiss
        except ImportError as error:
            found.append(f"faiss is installed but cannot be imported ({error}): install it again")
        else:
            if not hasattr(faiss, "IndexFlatL2"):
                found.append(
                    "the faiss package is an empty folder: uninstall faiss-cpu and faiss-gpu, install one"
                )
    # An installed copy has no notebooks to execute and no book to render.
    for name in ("jupyter-book", "papermill") if paths.ROOT else ():
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            found.append(f"{name} is missing: pip install -e '.[book]'")
    for part in ("target", "draft"):
        if not (paths.POCKET / part / "model.safetensors").is_file():
            found.append(f"the pocket {part} model is not in {paths.POCKET}: train it with 'make pocket'")
    try:
        paths.datasets_root()
    except NotADirectoryError as error:
        found.append(str(error))
    return found


def main() -> int:
    """Print the report; the exit status is 1 when there is a problem."""
    facts = {**provenance.versions(), **provenance.machine(), "commit": provenance.commit()}
    facts["pocket models"] = str(paths.POCKET)
    facts["data sets"] = os.environ.get("SPECDEC_DATASETS") or "none (SPECDEC_DATASETS is not set)"
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:<{width}}  {value}")
    found = problems()
    for text in found:
        print(f"problem: {text}")
    if not found:
        print("no problem found")
    return 1 if found else 0
