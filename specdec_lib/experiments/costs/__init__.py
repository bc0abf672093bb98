"""Measured times of passes and drafts.

What a pass over w tokens costs is :class:`specdec_lib.drafters.pass_costs.PassCosts`. ``with_cost`` of ``runs/results.py`` adds it
up over the steps of a run, with the drafting.
"""
