"""Rates and curves of replayed outputs against closed forms and the library's metrics; both methods on growing stores, and on recorded outputs."""

import dataclasses
import itertools
import json
from functools import partial

import numpy as np
import pandas as pd
import pytest
from transformers import AutoTokenizer

from specdec_lib import Sampling, load_model, paths
from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval import alpaca, codealpaca, duplicates
from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval import growing_stores as retrieval
from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval.growing_stores import Case
from specdec_lib.chapters.ch03_dense_vs_sparse_retrieval.package_files import package_files
from specdec_lib.decoding.contract import LAST, Capture
from specdec_lib.decoding.generate import record
from specdec_lib.decoding.loop import replay
from specdec_lib.drafters import Dresd, PromptLookup, Rest
from specdec_lib.experiments.data import prompts as book_prompts
from specdec_lib.experiments.data import stores
from specdec_lib.experiments.data.prompt import Prompt, render
from specdec_lib.experiments.data.published_sets.replies import Reply, arena_hard_replies
from specdec_lib.experiments.data.reply_texts import mixed_texts, plain
from specdec_lib.experiments.runs import recorded_runs, results, row_files
from specdec_lib.experiments.runs.checked_rows import CheckedRows
from specdec_lib.experiments.runs.metrics import pooled_metrics
from specdec_lib.experiments.runs.recorded_runs import replay_all
from specdec_lib.experiments.runs.results import ACCEPTANCE, PER_PASS, with_cost
from specdec_lib.experiments.runs.retrieval import match_lengths, record_replies
from specdec_lib.experiments.statistics.intervals import Interval
from specdec_lib.files import sha256
from tests.experiments.made import made_up


def recordings():
    texts = np.random.default_rng(0).integers(0, 3, (6, 50)).tolist()
    return [made_up(text[:10], text[10:], str(i), "code") for i, text in enumerate(texts)]


def outputs(length=10):
    return retrieval.outputs(recordings(), {"PLD": PromptLookup(num_tokens=length)})


#: The task, turn and seed of every made-up output; only the prompts differ.
OUTPUT = {"task": "code completion", "turn": 0, "seed": 0}


def sized(level, slope, prompts=5, sizes=(1e3, 1e4, 1e6)):
    """Counts whose rate is exactly level + slope * log10(size) for every prompt."""
    rows = [(p, size, 100.0 * (p + 1)) for p in range(prompts) for size in sizes]
    frame = pd.DataFrame({"prompt": str(p), "stored": int(size), "passes": passes} for p, size, passes in rows)
    return frame.assign(**OUTPUT, tokens=frame.passes * (level + slope * np.log10(frame.stored)))


@pytest.mark.parametrize("cost", [{1: 1.0, 300: 4.0}, {1: 1.0, 8: 1.5, 64: 2.0, 300: 9.0}])
def test_every_pass_costs_what_interpolation_says(cost):
    widths = np.random.default_rng(1).integers(1, 257, 200)
    brute = sum(np.interp(width, list(cost), list(cost.values())) for width in widths)
    rows = pd.DataFrame({"method": ["PLD"], "prompt": ["a"], "tokens": [7]})
    rows = rows.assign(**OUTPUT, widths=[np.bincount(widths)])
    assert with_cost(rows, cost).cost[0] == pytest.approx(brute)
    assert retrieval.speed(rows, cost).value == pytest.approx(7 / brute)


def test_counts_of_replays_are_those_of_the_metrics():
    of, frame = pooled_metrics([replay(r.trace, PromptLookup()) for r in recordings()]), outputs()
    assert retrieval.rate(frame, PER_PASS).value == pytest.approx(of["tokens_per_forward"])
    assert retrieval.rate(frame, retrieval.LENGTH).value == pytest.approx(of["mean_accepted_drafts"])
    assert retrieval.rate(frame, ACCEPTANCE).value == pytest.approx(of["acceptance_rate"])
    expected = frame.tokens.sum() / (frame.passes + frame.drafted).sum()
    assert retrieval.speed(frame, {1: 1.0, 256: 256.0}).value == pytest.approx(expected)


def test_several_drafters_are_counted_as_each_alone(monkeypatch):
    drafters = {length: PromptLookup(num_tokens=length) for length in (2, 5)}
    monkeypatch.setattr("specdec_lib.experiments.runs.all_cores.ALONE_SECONDS", 0.0)  # in processes of their own
    rows = retrieval.outputs(recordings(), drafters)
    for length in drafters:
        found, alone = rows[rows.method == length], outputs(length)
        assert found.prompt.tolist() == alone.prompt.tolist() == [f"code {i}" for i in range(6)]
        counted = ["tokens", "passes", "accepted", "depth"]
        assert found[counted].values.tolist() == alone[counted].values.tolist()


def test_a_ratio_of_a_frame_to_itself_is_one_for_certain():
    frame = outputs()
    assert retrieval.ratio(frame, frame)[:3] == (1.0, 1.0, 1.0)
    doubled = frame.assign(tokens=2 * frame.tokens)
    assert retrieval.ratio(doubled, frame)[:3] == pytest.approx((2.0, 2.0, 2.0))
    assert retrieval.geometric_mean([(doubled, frame), (frame, frame)])[:3] == pytest.approx((2**0.5,) * 3)


def test_settings_pair_the_same_store_size_way_and_group():
    axes = {"store": ("a", "b"), "stored": (1, 2), "way": ("x", "y"), "group": ("code",), "method": ("ours", "theirs")}
    rows = [dict(zip(axes, each, strict=True)) for each in itertools.product(*axes.values())]
    pairs = retrieval.settings(pd.DataFrame(rows), "ours", "theirs")
    assert len(pairs) == 8
    for ours, theirs in pairs:
        assert (ours.method.item(), theirs.method.item()) == ("ours", "theirs")
        assert ours.drop(columns="method").values.tolist() == theirs.drop(columns="method").values.tolist()
    assert len(retrieval.settings(pd.DataFrame(rows), "ours", "theirs", ["store"])) == 2


def growing(lead):
    """Rows of two methods whose ratio of tokens per pass is ``lead`` of the size of the store."""
    rows = []
    for prompt, stored, way, method in itertools.product("abc", (10, 1000), ("greedy", "nucleus"), ("DReSD", "REST")):
        tokens = 100 * (lead(stored) if method == "DReSD" else 1)
        rows.append({"prompt": prompt, "stored": stored, "way": way, "method": method, "tokens": tokens, "passes": 100})
    return pd.DataFrame(rows).assign(**OUTPUT, store="packages", group="code")


def test_the_lead_in_every_setting_and_its_change_from_the_smallest_store_to_the_largest():
    rows = growing(lambda stored: 1.5 if stored == 10 else 0.9)
    elsewhere = growing(lambda stored: 7.0).assign(store="own", stored=lambda own: 10 * own.stored)
    both = pd.concat([rows, elsewhere])
    assert [each.value for each in retrieval.dresd_leads(rows, "REST")] == pytest.approx([1.5, 1.5, 0.9, 0.9])
    last, first = (retrieval.geometric_mean(retrieval.at_end(both, "REST", end)) for end in ("max", "min"))
    assert (last.value, first.value) == pytest.approx((0.9, 1.5)), "the larger store of another text does not count"
    assert retrieval.lead_change(both, "REST")[:3] == pytest.approx((0.6,) * 3)
    assert retrieval.speed_at_step_cost(rows[rows.method == "REST"], 1.25).value == pytest.approx(0.8)


def test_shapes_and_variants_are_replayed_as_each_alone(pocket, monkeypatch, tmp_path):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    model, tokenizer = pocket
    prompts = book_prompts.load("report", ("code editing",), 1)
    recorded = recorded_runs.record_prompts(model, tokenizer, prompts, None, 16, Capture(layers=(LAST,)))
    index = stores.text_store("stdlib", tokenizer, 2_000)
    dense = stores.dense_index(stores.dense_states(model, index), index)
    counted = ["tokens", "passes", "drafted", "accepted"]

    def alone(drafter):
        return results.table(recorded, {"one": replay_all(recorded, drafter)})[counted].values.tolist()

    shapes = retrieval.by_way_and_method(retrieval.with_prompt_names(retrieval.shape_counts(recorded, index, dense)))[
        "greedy"
    ]
    for name in (retrieval.DEEP, retrieval.WIDE, retrieval.MATCHED):
        number, length = map(int, name.split(" x "))
        assert shapes[name][counted].values.tolist() == alone(Dresd(dense, number, length))
    assert shapes["REST"][counted].values.tolist() == alone(Rest(index))
    assert shapes["both"].accepted.item() >= shapes["PLD"].accepted.item()
    parts = [stores.first_part(index, 500), index]
    rows = retrieval.store_counts(recorded, parts)
    of = dict(list(rows.groupby(["method", "stored"])))
    assert {name for name, stored in of if stored == parts[0].store.count} == {retrieval.PUBLISHED}
    assert {name for name, stored in of if stored == index.store.count} == {
        retrieval.PUBLISHED,
        *retrieval.REST_VARIANTS,
    }
    for name, how in retrieval.REST_VARIANTS.items():
        assert of[name, index.store.count][counted].values.tolist() == alone(Rest(index, **how))
    assert (rows.row_tokens >= rows.drafted).all(), "rows hold the tokens that they share once each"


def test_a_line_is_found_again_at_any_size():
    frame = sized(0.5, 0.25)
    assert retrieval.extrapolate_to_size(frame, 1e9)[:3] == pytest.approx((2.75,) * 3)
    assert retrieval.extrapolate_to_size(frame, 1e9, then=lambda rate: rate / 1.1).value == pytest.approx(2.5)
    assert [step.value for step in retrieval.steps(frame)] == pytest.approx([1.5 / 1.25, 2.0 / 1.5])
    with pytest.raises(ValueError, match="a line through 1 size; expected two"):
        retrieval.extrapolate_to_size(sized(1, 1, sizes=(1e3,)), 1e9)


def test_the_fit_follows_the_prompts_that_a_sample_draws():
    rng = np.random.default_rng(3)
    frame = sized(0.5, 0.25, prompts=40)
    frame["tokens"] *= rng.normal(1, 0.1, 40)[frame.prompt.astype(int)]
    interval = retrieval.extrapolate_to_size(frame, 1e9)
    sizes = np.log10(np.unique(frame.stored))
    rates = frame.groupby("stored")[["tokens", "passes"]].sum()
    slope, level = np.polyfit(sizes, rates.tokens / rates.passes, 1)
    assert interval.value == pytest.approx(level + 9 * slope) and interval.low < interval.value < interval.high


@pytest.mark.slow
def test_each_size_is_a_store_of_its_own_with_its_own_states(pocket, monkeypatch, tmp_path):
    """The counts with the first part of a store are those of DReSD on an index that was built for that part alone."""
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    model, tokenizer = pocket
    index = stores.text_store("stdlib", tokenizer, 8_000)
    prompts = book_prompts.load("report", ("code editing",), 2)
    recorded = {"greedy": recorded_runs.record_prompts(model, tokenizer, prompts, None, 24, Capture(layers=(LAST,)))}
    methods = ("REST", "DReSD", "DReSD, no filter")
    frame = retrieval.size_counts(model, index, recorded, (4_000, 8_000), methods, methods, store="stdlib")
    assert frame.stored.nunique() == 2 and set(frame.method) == set(methods) and set(frame.store) == {"stdlib"}
    part = stores.first_part(index, 4_000)
    alone = stores.dense_index(stores.dense_states(model, part), part)
    for method, make in (("DReSD", Dresd), ("DReSD, no filter", retrieval.UnfilteredDresd)):
        of = pooled_metrics(recorded_runs.replay_all(recorded["greedy"], make(alone, 10, 6, 50)))
        rows = frame[(frame.method == method) & (frame.stored == part.store.count)]
        assert rows.passes.sum() > 1
        assert retrieval.rate(rows).value == pytest.approx(of["tokens_per_forward"], rel=0.02)
    assert stores.first_states(stores.dense_states(model, part), part).path.is_dir(), "the whole"
    few = retrieval.size_counts(model, index, recorded, (4_000, 8_000), methods, smaller=("REST",))
    kept = set(zip(few.stored == part.store.count, few.method, strict=True))
    assert kept == {(True, "REST"), *((False, method) for method in methods)}
    # A store that ends before two of the sizes is measured once.
    same = retrieval.size_counts(model, index, recorded, (4_000, 8_000, 9_000), ("REST",), ("REST",))
    assert same.stored.nunique() == 2 and not same.duplicated(["stored", "way", "prompt"]).any()
    with pytest.raises(ValueError, match="expected a part of this store"):
        stores.first_states(stores.dense_states(model, part), index)


def test_a_record_that_was_made_from_an_asked_prompt_is_not_stored(monkeypatch):
    records = {
        "evol-code-1": [("Sort a list of numbers, in place.", "a"), ("Reverse a string.", "b")],
        "evol-code-2": [("Sort a list of distinct numbers twice.", "c"), ("Reverse a string.", "b")],
    }
    monkeypatch.setattr(
        codealpaca, "chat_texts", lambda name: [Reply(name, name, "", text, (asked,)) for asked, text in records[name]]
    )
    asked = Prompt("0", "codealpaca", ("",), meta={"instruction": "Sort a list of numbers"})
    assert list(codealpaca.store_texts([asked])) == ["Question: Reverse a string.\nAnswer:\nb"]
    assert sorted(codealpaca.store_texts([]))[-1] == "Question: Sort a list of numbers, in place.\nAnswer:\na"
    assert codealpaca.store_texts([]).key != codealpaca.store_texts([asked]).key


def test_dresd_s_setting_counts_each_method_with_each_size_of_the_store(pocket, monkeypatch, tmp_path):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    monkeypatch.setattr(codealpaca, "LONGEST", 40)
    model, tokenizer = pocket
    prompts, index = book_prompts.load("report", ("code editing",), 2), stores.text_store("stdlib", tokenizer, 8_000)
    states = stores.dense_states(model, stores.first_part(index, 4_000))
    counted = partial(codealpaca.counts, model, model, tokenizer, prompts, prompts[:1], index, sizes=(2_000, 4_000))
    frame = codealpaca.named(counted(states))
    assert set(frame.method) == {*codealpaca.DENSE, *codealpaca.SPARSE, "PLD", "SpecDec"}
    outputs = frame.groupby(["way", "prompt"]).seed.nunique().to_dict()
    (one, other), ways = frame.prompt.unique(), ("greedy", "nucleus")
    assert outputs == {(ways[0], one): 1, (ways[0], other): 1, (ways[1], one): codealpaca.SEEDS}
    assert not frame.duplicated([*results.OUTPUT, "way", "method", "stored"]).any()
    assert set(frame[frame.method.isin(["PLD", "SpecDec"])].stored) == {0}
    assert (frame[(frame.method == "SpecDec")].accepted > 0).all(), "the target drafts for itself"
    recorded = recorded_runs.record_prompts(model, tokenizer, prompts, None, 40, Capture(layers=(LAST,)))
    part = stores.first_part(index, 2_000)
    dense = stores.dense_index(stores.dense_states(model, part), part)
    for method, drafter in {
        "DReSD, 3 x 20": Dresd(dense, 3, 20),
        "DReSD": Dresd(dense, 10, 6),
        "REST, as DReSD ran it": Rest(part, **retrieval.AS_DRESD_RAN_IT),
    }.items():
        alone = results.table(recorded, {method: replay_all(recorded, drafter)})
        rows = frame[(frame.method == method) & (frame.stored == part.store.count) & (frame.way == "greedy")]
        assert (
            rows[["tokens", "passes", "drafted"]].values.tolist()
            == alone[["tokens", "passes", "drafted"]].values.tolist()
        )
    assert set(codealpaca.of_largest(frame).stored) == {0, stores.first_part(index, 4_000).store.count}
    without = counted(None)
    assert set(without.method) == set(frame.method) - set(codealpaca.DENSE)
    assert not stores.has_states(model, index) and stores.has_states(model, stores.first_part(index, 4_000))
    assert codealpaca.searched(index, states)["states"] == (sha256(states.path / "states.npy"), codealpaca.DENSE)
    assert codealpaca.searched(index, None) == {
        "evolved": (index.store.digest, codealpaca.SPARSE),
        "states": (None, codealpaca.DENSE),
    }


def test_a_store_with_copies_has_each_state_of_a_copied_document_twice(pocket, monkeypatch, tmp_path):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    model, tokenizer = pocket
    # Their first tokens differ, so no two documents have a state in common.
    documents = [
        tokenizer(f"{name} = [x + 1 for x in {name}]\n")["input_ids"] for name in ("one", "all", "my", "we", "is")
    ]
    index = stores.document_store("few", documents, tokenizer)
    states = stores.dense_states(model, index)
    twice, copied = duplicates.with_copies(index, states, tokenizer, every=2)
    assert [twice.store.document(i).tolist() for i in range(8)] == [*documents, *documents[::2]]
    whole = stores.dense_states(model, twice)  # each document read by the model
    assert copied.positions.tolist() == whole.positions.tolist()
    np.testing.assert_allclose(copied.states.astype(float), whole.states.astype(float), atol=0.05)
    # Of two equal states the second is found second; a state that is there once is found first.
    monkeypatch.setattr(duplicates, "SIZE", index.store.count)
    monkeypatch.setattr(duplicates, "EVERY", 2)
    monkeypatch.setattr(duplicates, "LOOKED_UP", 1)
    rows = duplicates.ranks(index, states, tokenizer).set_index(["method", "document"])
    assert (rows.loc[duplicates.ONCE]["rank"] == rows.loc[duplicates.ONCE].states).all()
    found = rows.loc[duplicates.TWICE]
    lengths = [len(document) - 1 for document in (*documents, *documents[::2])]
    assert found.states.tolist() == lengths
    for document in range(5):
        places = [document] if document % 2 else [document, 5 + document // 2]
        each = sum(found["rank"].loc[place] for place in places)
        assert each == lengths[document] * (1.5 if len(places) == 2 else 1)


def test_stores_of_answers_to_alpaca_s_prompts_are_the_target_s_and_those_that_come_with_it(
    pocket, monkeypatch, tmp_path
):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    monkeypatch.setattr(codealpaca, "LONGEST", 12)
    model, tokenizer = pocket
    texts = ["Name a color, any color.", "Add two and two.", "Say hi."]
    every = [Prompt(str(i), "alpaca", (text,), reference=f"{text} " * 9) for i, text in enumerate(texts)]
    some, answered = every[:1], every[1:]
    held = {whose: alpaca.answer_store(whose, model, tokenizer, answered) for whose in (alpaca.OWN, alpaca.THEIRS)}
    asked = [render(one, tokenizer) for one in answered]
    theirs = {tuple(ids + tokenizer(one.reference)["input_ids"][:12]) for ids, one in zip(asked, answered, strict=True)}
    store = held[alpaca.THEIRS].store
    assert {tuple(store.document(i).tolist()) for i in range(len(store))} == theirs
    own = held[alpaca.OWN].store
    assert own.count <= store.count
    for i in range(len(own)):
        ids = next(ids for ids in asked if own.document(i).tolist()[: len(ids)] == ids)
        written = record(model, ids, max_new_tokens=12).tokens
        assert own.document(i).tolist()[len(ids) :] == written[: len(own.document(i)) - len(ids)]
    rows = alpaca.counts(model, tokenizer, some, [], answered)
    assert set(zip(rows.answers, rows.method, strict=True)) == set(alpaca.PARTS)
    part = ("Alpaca", "REST")
    alone = alpaca.counts(model, tokenizer, some, [], answered, [part])
    kept = rows[(rows.answers == part[0]) & (rows.method == part[1])]
    assert row_files.differences(kept, alone, ["passes", "drafted"], [*row_files.KEY, "answers"]) == {}


def design(rate):
    """Counts of eight cells whose tokens per pass are a function of the three alignments."""
    cells = pd.DataFrame(itertools.product((False, True), repeat=3), columns=retrieval.AXES).add_suffix("_aligned")
    counted = cells.assign(passes=100, tokens=[100 * rate(*cell) for cell in cells.values])
    return pd.concat([counted.assign(**OUTPUT, prompt=str(p)) for p in range(6)])


def test_effects_of_alignments_that_multiply_are_their_factors_and_those_that_add_do_not_multiply():
    factors = {"prompt": 1.5, "response": 1.2, "sampling": 1.1}
    effects = retrieval.alignment_effects(design(lambda a, b, c: 1.1 * 1.5**a * 1.2**b * 1.1**c))
    for axis, factor in factors.items():
        assert effects[axis][:3] == pytest.approx((factor,) * 3)
        assert effects[f"without_{axis}"][:3] == pytest.approx((1 / factor,) * 3)
    assert effects["product"][:3] == pytest.approx((1.0,) * 3)
    effects = retrieval.alignment_effects(design(lambda a, b, c: 1.0 + 0.5 * a + 0.5 * b + 0.5 * c))
    assert effects["product"].high < 1 and effects["product"].value == pytest.approx(2.5 / 1.5**3)


def test_every_store_of_answers_is_replayed_by_both_groups_and_aligned_with_one(pocket, monkeypatch, tmp_path):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    monkeypatch.setattr(retrieval, "ANSWER", 8)
    (model, tokenizer), (other, _) = pocket, load_model("pocket-draft", "cpu", "float32")
    tasks = {"code": ("code editing",), "editing": ("short text editing",)}
    how = {"greedy": None, "nucleus": Sampling(0.7, top_p=0.95, seed=0)}

    def record(task, sampling):
        prompts = book_prompts.load("report", task, 1)
        return recorded_runs.record_prompts(model, tokenizer, prompts, sampling, 8, Capture(layers=(LAST,)))

    recorded = {way: {group: record(task, own) for group, task in tasks.items()} for way, own in how.items()}
    asked = {group: book_prompts.load("choose", task, 2) for group, task in tasks.items()}
    cells = retrieval.cells(asked, how)
    rows = retrieval.alignment_counts(model, other, tokenizer, recorded, asked, how, cells)
    axes = [f"{axis}_aligned" for axis in retrieval.AXES]
    one = rows[rows.answers == 1].groupby(["group", "way", "method"])
    assert len(one) == 2 * 2 * len(retrieval.LEADING)
    assert all(len(part) == 8 and not part.duplicated(axes).any() for _, part in one)
    several = rows[rows.answers == retrieval.SEVERAL]
    assert several.response_aligned.all() and set(several.group[several.prompt_aligned]) == {"code"}
    with pytest.raises(ValueError, match="expected as many of each"):
        retrieval.alignment_counts(model, other, tokenizer, recorded, asked | {"code": []}, how, cells)
    # One cell alone, which a check makes, has the rows that it has among all.
    name = "editing, other model, nucleus, 1"
    alone = retrieval.alignment_counts(model, other, tokenizer, recorded, asked, how, {name: cells[name]})
    columns = [column for column in alone if not column.endswith("_s")]
    assert row_files.differences(rows[rows.cell == name], alone, columns, [*row_files.KEY, "cell"]) == {}


def test_committed_rows_that_need_a_model_are_of_the_book_s_model_and_cases_stand_for_what_is_replayed():
    models = json.loads(paths.RECORDINGS.with_suffix(".json").read_text(encoding="utf-8"))["models"]
    for name in ("sizes", "alignment", "codealpaca"):
        _, about = row_files.read(f"03/{name}")
        assert about["models"]["target"] in {model["weights"] for model in models}
    rows, _ = row_files.read("03/recorded")
    assert set(rows.task) == {case.task for case in retrieval.CASES}
    assert not retrieval.case_rows(rows, retrieval.CODE, variant="8 nodes").empty


TEXT = "The quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 4


@pytest.fixture
def case(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    turns = [(q, turn) for q in range(3) for turn in range(2)]
    replies = [Reply(f"{q}-{turn}", "m", f"Say {q}.", TEXT, questions=(f"{q}?",)) for q, turn in turns]
    stored = [TEXT + str(i) for i in range(30)]
    return Case("someone", "chat", "greedy", replies, {"chat": lambda: stores.Texts(lambda: iter(stored), "stored")})


def test_rows_are_prompts_and_count_what_the_replays_do(case, tokenizer):
    frame = retrieval.case_counts(case, tokenizer, (300, 2000))
    assert list(frame.groupby("stored").size()) == [3, 3] and set(frame.method) == {retrieval.PUBLISHED}
    rows = retrieval.largest(retrieval.case_rows(frame, "someone"))
    index = stores.text_store("at-scale-chat", tokenizer, 2000, case.stores["chat"]())
    recorded = record_replies(case.replies, tokenizer)
    runs = replay_all(recorded, Rest(index))
    assert rows.passes.sum() == sum(len(run.steps) for run in runs)
    # After the prefill, whose token and forward are left out.
    characters = sum(len(tokenizer.decode(run.tokens[1:])) for run in runs)
    assert retrieval.rate(rows, retrieval.CHARACTERS).value == pytest.approx(characters / rows.passes.sum())
    lengths = match_lengths(recorded, Rest(index))
    assert rows.matched_10.sum() == sum(n for length, n in lengths.items() if length >= 10)
    assert rows.matched.sum() == sum(n for length, n in lengths.items() if length >= 2)
    assert rows.cut.sum() == 0


def test_text_in_parts_fills_shards_and_each_size_holds_the_one_before(case, tokenizer, monkeypatch, tmp_path):
    (tmp_path / "packages").mkdir()
    for i in range(30):
        (tmp_path / "packages" / f"m{i}.py").write_text(f"{TEXT}{i}\n{TEXT}")
    monkeypatch.setattr(stores, "SHARD_TOKENS", 1000)
    packages = {"code": lambda: package_files(installed=[tmp_path / "packages"])}
    code = dataclasses.replace(case, name=retrieval.CODE, kind="code", stores=packages)
    rows = retrieval.case_counts(code, tokenizer, (300, 1000, 2000, 4000))
    frame = rows[rows.method == retrieval.PUBLISHED]
    sizes = frame.stored.unique()
    assert len(sizes) == 4 and list(sizes) == sorted(sizes)
    assert all(0.6 * asked < size <= asked for size, asked in zip(sizes, (300, 1000, 2000, 4000), strict=True))
    assert set(frame.store) == {"code"} and list(frame.groupby("stored").size()) == [3] * 4
    variants = rows[rows.method != retrieval.PUBLISHED]
    assert set(variants.stored) == {sizes[-1]} and set(variants.method) == set(retrieval.VARIANTS)


def test_stores_in_the_papers_proportion_are_compared_at_the_cost_and_sizes_that_it_implies():
    ours, theirs = (pd.DataFrame({"stored": sizes}) for sizes in ([10, 100, 210, 1000], [9.5, 50, 100]))
    first, second = retrieval.with_stores_in_proportion(ours, theirs, 2)
    assert (first.stored.item(), second.stored.item()) == (210, 100)
    with pytest.raises(ValueError, match="3 times as large as the largest of theirs, to a tenth"):
        retrieval.with_stores_in_proportion(ours, theirs, 3)
    # Table 2: mean length, and milliseconds a token, of which plain decoding takes 27.89.
    table_2 = [(1.96, 15.28), (2.18, 13.98), (2.35, 13.24), (2.45, 12.99), (2.65, 11.82)]
    found = retrieval.own_step_cost()
    assert found == pytest.approx(sum(length * ms for length, ms in table_2) / 5 / 27.89)
    assert retrieval.released_tokens(27) == 4.5e9
    assert retrieval.released_tokens(12, 4 / 3) == pytest.approx(12e9 / 6 * 4 / 3)
    rows = pd.DataFrame({"characters": [120], "tokens": [40]})
    assert retrieval.in_llama_tokens(rows, {"characters_per_token": Interval(4.0, 3.0, 5.0)}).tokens.tolist() == [30]


def test_the_authors_files_say_what_table_1_prints():
    rows, _ = row_files.read("03/authors")
    found = retrieval.authors_run(rows)
    assert found["speed_up"].low < 1.69 < found["speed_up"].high
    assert found["tokens"].value == pytest.approx(1.99, abs=0.005)
    assert found["speed_up"].value == pytest.approx(found["tokens"].value / found["step"].value)
    with pytest.raises(ValueError, match="answer other turns"):
        retrieval.authors_run(rows.iloc[:-1])


@pytest.mark.realdata
def test_the_committed_rows_are_those_of_the_authors_files():
    rows, about = row_files.read("03/authors")
    assert not row_files.differences(rows, retrieval.authors_rows(retrieval.authors_questions()), about["columns"])


@pytest.mark.realdata
def test_a_changed_row_of_the_authors_or_of_a_store_of_answers_stops_the_page(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(paths.SMOLLM2 / "draft")
    counted = partial(retrieval.count_recorded_outputs, tokenizer)
    answers = {"parts": dict.fromkeys(retrieval.ANSWERS), "by": "store"}
    answers["stores"] = {"other text": (None, retrieval.LARGER)}
    for name, make, asked, more in (
        ("authors", retrieval.authors_rows, retrieval.authors_questions(), {}),
        ("recorded", counted, retrieval.questions_with_answers(), answers),
    ):
        rows, about = row_files.read(f"03/{name}")
        book = CheckedRows("03", {}, folder=tmp_path)
        row_files.write(f"03/{name}", rows, about, tmp_path)
        book.rows(name, make, asked, **more)
        assert book.outcomes[0].made > 0
        row_files.write(f"03/{name}", rows.assign(passes=rows.passes + 1), about, tmp_path)
        with pytest.raises(row_files.RowsError, match=f"03/{name}.*passes was"):
            book.rows(name, make, asked, **more)


def test_an_answer_to_a_replayed_question_is_not_stored_and_the_order_is_that_of_the_texts_alone():
    stored = [
        Reply("x", "b", "Question: who wrote hamlet", "He did.", questions=("who wrote  Hamlet",)),
        Reply("y", "b", "And when?", "Then.", questions=("AND WHEN?",)),
        Reply("z", "b", "Who wrote Faust?", "Goethe.", questions=("Who wrote Faust?",)),
        Reply("z", "c", "Who wrote Faust?", "Goethe.", questions=("Who wrote Faust?",)),
    ]
    texts = mixed_texts(stored, ["Who wrote Hamlet?", "And when?"])
    assert list(texts) == ["Who wrote Faust? Goethe."]
    replies = [Reply(str(i), "m", f"Ask {i}?", "Yes.") for i in range(20)]
    texts, reversed_texts = (mixed_texts(these, []) for these in (replies, replies[::-1]))
    assert list(texts) == list(reversed_texts) != sorted(texts) and texts.key == reversed_texts.key
    assert sorted(texts) == sorted(f"{r.prompt} {r.text}" for r in replies)


@pytest.mark.realdata
def test_no_store_holds_an_answer_to_a_question_that_is_replayed():
    cases = retrieval.recorded_cases()
    asked = {plain(q) for case in cases for reply in case.replies for q in reply.questions}
    assert (
        {case.name for case in cases} == {one.task for one in retrieval.CASES}
        and len(cases[0].replies) > 100
        and len(asked) > 300
    )
    for store in {name: read for case in cases if case.kind == "chat" for name, read in case.stores.items()}.values():
        first = [text.removeprefix("USER: ").split(" ASSISTANT:")[0] for text in store()]
        assert not asked.intersection(map(plain, first))
    # Arena-Hard's file of answers has no questions, so its own are compared with those that are replayed.
    rows = (paths.datasets_root() / "arena_hard" / "question.jsonl").read_text().splitlines()
    questions = {plain(turn["content"]) for row in rows for turn in json.loads(row)["turns"]}
    assert len(questions) > 400 and arena_hard_replies() and not questions & asked
