"""Both methods on growing stores and on eight stores of answers."""

import itertools
import json

import pandas as pd
import pytest

from specdec_lib import Sampling, load_model, paths
from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval import dense_at_scale, measures
from specdec_lib.decoding.contract import LAST, Capture
from specdec_lib.drafters import Dresd
from specdec_lib.experiments import prompts as book_prompts
from specdec_lib.experiments import recorded_runs, stores
from specdec_lib.experiments.metrics import pooled


def test_each_size_is_a_store_of_its_own_with_its_own_states(pocket, monkeypatch, tmp_path):
    """The counts with the first part of a store are those of DReSD on an index that was built for that part alone."""
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    model, tokenizer = pocket
    index = stores.text_store("stdlib", tokenizer, 8_000)
    prompts = book_prompts.load("report", ("code editing",), 2)
    recorded = {"greedy": recorded_runs.record_prompts(model, tokenizer, prompts, None, 24, Capture(layers=(LAST,)))}
    methods = ("REST", "DReSD", "DReSD, no filter")
    frame = dense_at_scale.size_counts(model, index, recorded, (4_000, 8_000), methods, methods, store="stdlib")
    assert frame.stored.nunique() == 2 and set(frame.method) == set(methods) and set(frame.store) == {"stdlib"}
    part = stores.first_part(index, 4_000)
    alone = stores.dense_index(stores.dense_states(model, part), part)
    for method, make in (("DReSD", Dresd), ("DReSD, no filter", dense_at_scale.UnfilteredDresd)):
        of = pooled(recorded_runs.replay_all(recorded["greedy"], make(alone, 10, 6, 50)))
        rows = frame[(frame.method == method) & (frame.stored == part.store.count)]
        assert rows.passes.sum() > 1
        assert measures.rate(rows).value == pytest.approx(of["tokens_per_forward"], rel=0.02)
    assert stores.first_states(stores.dense_states(model, part), part).path.is_dir(), "the whole"
    few = dense_at_scale.size_counts(model, index, recorded, (4_000, 8_000), methods, smaller=("REST",))
    kept = set(zip(few.stored == part.store.count, few.method, strict=True))
    assert kept == {(True, "REST"), *((False, method) for method in methods)}
    # Documents stay whole: one and two tokens are the same part, which is measured once.
    same = dense_at_scale.size_counts(model, index, recorded, (1, 2, 8_000), ("REST",), ("REST",))
    assert same.stored.nunique() == 2 and not same.duplicated(["stored", "way", "prompt"]).any()
    with pytest.raises(ValueError, match="expected a part of this store"):
        stores.first_states(stores.dense_states(model, part), index)


def design(rate):
    """Counts of eight cells whose tokens per pass are a function of the three alignments."""
    cells = pd.DataFrame(itertools.product((False, True), repeat=3), columns=dense_at_scale.AXES).add_suffix("_aligned")
    counted = cells.assign(passes=100, tokens=[100 * rate(*cell) for cell in cells.values])
    return pd.concat([counted.assign(prompt=str(p)) for p in range(6)])


def test_effects_of_alignments_that_multiply_are_their_factors_and_those_that_add_do_not_multiply():
    factors = {"prompt": 1.5, "response": 1.2, "sampling": 1.1}
    effects = dense_at_scale.alignment_effects(design(lambda a, b, c: 1.1 * 1.5**a * 1.2**b * 1.1**c))
    for axis, factor in factors.items():
        assert effects[axis] == pytest.approx((factor,) * 3)
        assert effects[f"without_{axis}"] == pytest.approx((1 / factor,) * 3)
    assert effects["product"] == pytest.approx((1.0,) * 3)
    effects = dense_at_scale.alignment_effects(design(lambda a, b, c: 1.0 + 0.5 * a + 0.5 * b + 0.5 * c))
    assert effects["product"].high < 1 and effects["product"].value == pytest.approx(2.5 / 1.5**3)


def test_every_store_of_answers_is_replayed_by_both_groups_and_aligned_with_one(pocket, monkeypatch, tmp_path):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    monkeypatch.setattr(dense_at_scale, "ANSWER", 8)
    (model, tokenizer), (other, _) = pocket, load_model("pocket-draft", "cpu", "float32")
    tasks = {"code": ("code editing",), "editing": ("short text editing",)}
    how = {"greedy": None, "nucleus": Sampling(0.7, top_p=0.95, seed=0)}

    def record(task, sampling):
        prompts = book_prompts.load("report", task, 1)
        return recorded_runs.record_prompts(model, tokenizer, prompts, sampling, 8, Capture(layers=(LAST,)))

    recorded = {way: {group: record(task, own) for group, task in tasks.items()} for way, own in how.items()}
    asked = {group: book_prompts.load("choose", task, 2) for group, task in tasks.items()}
    rows = dense_at_scale.alignment_counts(model, other, tokenizer, recorded, asked, how)
    axes = [f"{axis}_aligned" for axis in dense_at_scale.AXES]
    one = rows[rows.answers == 1].groupby(["group", "way", "method"])
    assert len(one) == 2 * 2 * len(dense_at_scale.LEADING)
    assert all(len(part) == 8 and not part.duplicated(axes).any() for _, part in one)
    several = rows[rows.answers == dense_at_scale.SEVERAL]
    assert several.response_aligned.all() and set(several.group[several.prompt_aligned]) == {"code"}
    with pytest.raises(ValueError, match="expected as many of each"):
        dense_at_scale.alignment_counts(model, other, tokenizer, recorded, asked | {"code": []}, how)


def test_shipped_counts_that_need_a_model_are_of_the_book_s_model():
    """The page would otherwise count them again in every run; its parameter `recount` makes a file again."""
    names = [path.name.removesuffix(".csv.gz") for path in (paths.DATA / "results" / "cpu").glob("retrieval_*.csv.gz")]
    shipped = {name: measures.committed(name) for name in names}
    assert "retrieval_rest" in shipped and all(len(rows) for rows, _ in shipped.values())
    models = json.loads(paths.RECORDINGS.with_suffix(".json").read_text(encoding="utf-8"))["models"]
    assert {about.get("target") for _, about in shipped.values()} <= {None, *(model["weights"] for model in models)}
