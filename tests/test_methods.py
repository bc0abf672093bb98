"""All methods on one pair of models."""
from specdec_lib import Sampling
from specdec_lib.drafters import REGISTRY
from specdec_lib import methods
from specdec_lib.experiments import made_tasks, recorded_runs
from specdec_lib.experiments.losslessness import compare_all


def test_every_method_that_needs_no_training_is_compared():
    compared = {name.split(",")[0].split(" (transformers")[0] for name in methods.METHODS}
    assert compared == set(REGISTRY) - {"SpecDec++"}, "SpecDec++ needs a head trained for its draft model"


def test_all_methods_write_what_plain_decoding_does(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    monkeypatch.setattr(methods, "SPARSE_TOKENS", 30_000)
    monkeypatch.setattr(methods, "DENSE_TOKENS", 3_000)
    bench = methods.Bench(*recorded_runs.load_pair("pocket", "pocket-draft", dtype="float32"))
    prompts = [(p.id, recorded_runs.render(p, bench.tokenizer)) for p in made_tasks.prompts("code-completion", 2)]
    found = compare_all(bench, prompts, [Sampling(), Sampling(0.7, 0.9, seed=0)], 16, progress=False)
    assert found["mismatches"] == []
    assert {row["method"] for row in found["counts"]} == set(methods.METHODS)
    drafting = {row["method"]: row["calls"] < 2 * 15 for row in found["counts"] if row["sampling"] == "greedy"}
    assert drafting["REST"] and drafting["DReSD"] and drafting["SpecDec"]
