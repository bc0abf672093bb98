"""The real data sets of the papers, read in their published formats; see :mod:`specdec_lib.experiments.data.tasks`."""
