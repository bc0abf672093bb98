"""Old name of :mod:`specdec_lib.report.plots`, for notebooks 02, 06 and 07 until they are rewritten."""

import math

from specdec_lib.report.display import tables
from specdec_lib.report.plots import *  # noqa: F403


def text(value: float | None, spec: str, missing: str = "not available") -> str:
    """A number in words for prose: formatted, or ``missing`` where it is None, NaN or infinite."""
    return tables.format_cell(value, spec) if value is not None and math.isfinite(value) else missing
