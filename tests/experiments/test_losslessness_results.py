"""The committed comparison of 1,000 prompts with plain decoding."""

import json

from specdec_lib import paths
from specdec_lib.experiments.losslessness import lossless_names

COMPARED = json.loads((paths.DATA / "results" / "cpu" / "losslessness.json").read_text(encoding="utf-8"))
ROWS = COMPARED["counts"]


def test_every_variant_was_compared_on_a_thousand_prompts_and_no_output_differs():
    assert {row["method"] for row in ROWS if row["sampling"] == "greedy"} >= set(lossless_names())
    assert all(row["outputs"] == 1000 and row["mismatches"] == 0 for row in ROWS)
    assert COMPARED["provenance"]["parameters"]["max_new_tokens"] == 16
    assert not COMPARED["mismatches"] and not COMPARED["left_out"]
