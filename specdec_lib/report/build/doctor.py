"""What this machine has, and what stands in the way."""

from __future__ import annotations

import os
from importlib import metadata

from specdec_lib import paths
from specdec_lib.report.display import provenance


def facts() -> dict[str, str]:
    """Return versions, devices and data of this machine by name."""
    named = {**provenance.versions(), **provenance.machine(), "commit": provenance.commit()}
    named["pocket models"] = str(paths.POCKET)
    named["data sets"] = os.environ.get("SPECDEC_DATASETS") or "none (SPECDEC_DATASETS is not set)"
    return named


def problems() -> list[str]:
    """Return what would make a command fail or mislead, one sentence each, with what to do."""
    faults = []
    installed = provenance.versions()
    if "faiss-cpu" in installed and "faiss-gpu" in installed:
        faults.append(
            "faiss-cpu and faiss-gpu are both installed and overwrite each other: uninstall both, "
            "then install one of the extras cpu and gpu"
        )
    elif "faiss-cpu" in installed or "faiss-gpu" in installed:
        try:
            import faiss
        except ImportError as error:
            faults.append(f"faiss is installed but cannot be imported ({error}): install it again")
        else:
            if not hasattr(faiss, "IndexFlatL2"):
                faults.append("the faiss package is an empty folder: uninstall faiss-cpu and faiss-gpu, install one")
    # An installed copy has no notebooks to execute and no book to render.
    for name in ("jupyter-book", "papermill") if paths.ROOT else ():
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            faults.append(f"{name} is missing: pip install -e '.[book]'")
    for part in ("target", "draft"):
        if not (paths.POCKET / part / "model.safetensors").is_file():
            faults.append(f"the pocket {part} model is not in {paths.POCKET}: install the package again")
    try:
        paths.datasets_root()
    except NotADirectoryError as error:
        faults.append(str(error))
    return faults
