"""What passes and drafts take, measured. ``runs/results.py`` has the one sum of both over the steps of a run, ``with_cost``."""
