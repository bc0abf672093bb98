"""Old name of :mod:`specdec_lib.report.plots`, for notebook 06 until it is rewritten."""

from specdec_lib.report.plots import *  # noqa: F403
