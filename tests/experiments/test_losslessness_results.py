"""The committed comparisons of 1,000 prompts with plain decoding."""

import json

from specdec_lib import paths
from specdec_lib.experiments.losslessness import lossless_names

FILES = ("losslessness.json", "losslessness_other_systems.json")


def read(name):
    return json.loads((paths.DATA / "results" / "cpu" / name).read_text(encoding="utf-8"))


def test_every_variant_was_compared_on_a_thousand_prompts_and_no_output_differs():
    found = [read(name) for name in FILES]
    rows = [row for one in found for row in one["counts"]]
    assert {row["method"] for row in rows if row["sampling"] == "greedy"} == set(lossless_names())
    assert all(row["outputs"] == 1000 and row["mismatches"] == 0 for row in rows)
    assert all(one["provenance"]["parameters"]["max_new_tokens"] == 16 and not one["mismatches"] for one in found)


def test_what_the_page_on_the_verifier_says_of_them_is_so():
    outputs = sum(row["outputs"] for name in FILES for row in read(name)["counts"])
    page = (paths.ROOT / "book" / "methods" / "one-verifier.md").read_text(encoding="utf-8")
    assert f"None of the {outputs:,} outputs differs" in page
    sampled = {row["method"] for name in FILES for row in read(name)["counts"] if row["sampling"] == "sampled"}
    greedy_only = set(lossless_names()) - sampled
    assert greedy_only == {name for name in lossless_names() if name.startswith("SpecDec")}
