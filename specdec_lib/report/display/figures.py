"""Old name of :mod:`specdec_lib.report.plots`, for notebooks 02, 06 and 07 until they are rewritten."""

from specdec_lib.report.plots import *  # noqa: F403
