"""Notebooks executed on a cluster against the same ones in this process."""

from __future__ import annotations

import pytest

from specdec_lib.cluster import OnRay
from specdec_lib.report.build import runner
from tests.report.build.test_runner import GRID, GRID_CODE, GRID_PARAMETERS, compare_grids
from tests.report.notebook_factory import write_notebook

pytestmark = pytest.mark.ray


def test_a_grid_on_ray_has_the_results_provenance_and_failures_of_one_here(nodes, tmp_path):
    write_notebook(tmp_path / "notebooks", parameters=GRID_PARAMETERS, code=GRID_CODE)
    failed = {}
    for name, place in (("here", None), ("there", OnRay())):
        folders = {kind: tmp_path / name / kind for kind in ("output", "kept", "sweeps")}
        (failed[name],) = runner.run("smoke", overrides=GRID, notebooks=tmp_path / "notebooks", place=place, **folders)
    compare_grids(tmp_path / "here" / "sweeps", tmp_path / "there" / "sweeps")
    here, there = (failed[name].message.replace(str(tmp_path / name), "") for name in ("here", "there"))
    assert here == there and failed["there"].job.point == "seed=2"
