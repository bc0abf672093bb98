"""Rows of counts: written and read whole, and a sample of them made again, which nothing but rounding may change."""

import gzip
import json
import re
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from specdec_lib import Capture, DraftTree, Sampling, paths
from specdec_lib.datastores import DenseIndex
from specdec_lib.drafters import PromptLookup
from specdec_lib.experiments.data.prompt import Prompt
from specdec_lib.experiments.runs import checked_rows, recorded_runs, recordings, results, row_files
from specdec_lib.experiments.runs.checked_rows import CheckedRows
from specdec_lib.experiments.runs.recordings import record_once
from specdec_lib.experiments.runs.row_files import RowsError
from tests import families

TEXT = "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n" * 3
PROMPTS = [Prompt(str(i), "code", (TEXT[i:],), chat=False) for i in range(5)]
ABOUT = {"models": {}, "stores": {}, "seconds": 1.0}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(checked_rows.MAKE, raising=False)


@pytest.fixture(scope="module")
def model(tokenizer):
    return families.build("llama-gqa", 0, vocab_size=len(tokenizer), max_position_embeddings=512, eos_token_id=0)


def rows_of(model, tokenizer, prompts, drafter=PromptLookup(2, 4), longest=24):
    recordings = record_once(model, tokenizer, prompts, Sampling(), longest)
    return results.table(recordings, {"PLD": recorded_runs.replay_all(recordings, drafter)})


@pytest.fixture
def made(model, tokenizer, tmp_path, monkeypatch):
    """A folder in which rows of all prompts were made, and the function that makes them."""
    make = partial(rows_of, model, tokenizer)
    monkeypatch.setenv(checked_rows.MAKE, "01")
    CheckedRows("01", {"target": model}, folder=tmp_path).rows("greedy", make, PROMPTS)
    monkeypatch.delenv(checked_rows.MAKE)
    return tmp_path, make


def counted(**columns) -> pd.DataFrame:
    base = {"task": "t", "prompt": ["001", "NA"], "turn": 0, "seed": 0, "temperature": 0.0, "method": "None"}
    return pd.DataFrame(base | columns)


def test_scores_that_tie_change_places_and_others_keep_theirs(monkeypatch):
    """Neighbours 0 and 1 tie, and so do the last one asked for and the next; 2 lies between."""
    scores, positions = np.float32([[0.9, 0.9, 0.7, 0.5, 0.5, 0.1]]), np.arange(6)[None]
    monkeypatch.setattr(DenseIndex, "search", lambda index, states, k: (scores[:, :k], positions[:, :k]))
    found = set()
    for seed in range(20):
        with checked_rows.perturbed_scores(seed):
            near, places = DenseIndex.search(None, None, 4)
        np.testing.assert_allclose(near, scores[:, :4], rtol=1e-5)
        found.add(tuple(places[0]))
    assert found == {(a, 1 - a, 2, last) for a in (0, 1) for last in (3, 4)}
    assert DenseIndex.search(None, None, 4)[1].tolist() == [[0, 1, 2, 3]]


def test_what_is_written_is_read_without_what_was_timed(tmp_path):
    frame = counted(
        tokens=[3, 4], share=[0.25, np.nan], draft_s=[1.0, 2.0], widths=[np.array([0, 2, 0, 1]), np.array([0])]
    )
    row_files.write("01/greedy", frame, ABOUT, tmp_path)
    found, about = row_files.read("01/greedy", tmp_path)
    assert list(found.widths.iloc[0]) == [0, 2, 0, 1] and list(found.widths.iloc[1]) == [0]
    pd.testing.assert_frame_equal(
        found.drop(columns="widths"), frame.drop(columns=["widths", "draft_s"]), check_dtype=False
    )
    assert about["rows"] == 2 and about["seconds"] == 1.0


def cut(path):
    path.write_bytes(path.read_bytes()[:-20])


def without_a_column(path):
    head, names, *rows = gzip.decompress(path.read_bytes()).decode().splitlines()
    lines = [head, *(line.rpartition(",")[0] for line in (names, *rows))]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))


def without_a_row(path):
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    path.write_bytes(gzip.compress("\n".join(lines[:-1]).encode()))


def without_origin(path):
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    path.write_bytes(gzip.compress("\n".join(lines[1:]).encode()))


def flipped(path):
    content = bytearray(path.read_bytes())
    content[20:60] = bytes(40)
    path.write_bytes(content)


def said(**about):
    """Damage to what the file says about itself."""

    def damage(path):
        head, *lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        head = "# " + json.dumps(json.loads(head[2:]) | about)
        path.write_bytes(gzip.compress("\n".join([head, *lines]).encode()))

    return damage


def twice(path):
    text = gzip.decompress(path.read_bytes()).decode().replace('"rows": 2', '"rows": 3')
    path.write_bytes(gzip.compress((text + text.splitlines()[-1] + "\n").encode()))


def told_otherwise(before, after):
    def damage(path):
        text = gzip.decompress(path.read_bytes()).decode()
        assert before in text
        path.write_bytes(gzip.compress(text.replace(before, after).encode()))

    return damage


def counting(words):
    """Damage to a row, which holds counts that no memory does."""
    return lambda path: path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()).replace(b"1:3", words)))


@pytest.mark.parametrize(
    "damage",
    [
        cut,
        flipped,
        without_a_column,
        without_a_row,
        without_origin,
        lambda path: path.unlink(),
        twice,
        told_otherwise('"columns"', '"colums"'),
        told_otherwise('"rows"', '"row"'),
        told_otherwise("1:3", "1:x"),
        said(arrays=3),
        said(arrays="task"),
        said(columns=None),
        said(models=["target"]),
        said(stores=0),
        counting(b"999999999999:3"),
        counting(b"-1:3"),
        counting(b"1:" + b"9" * 30),
    ],
)
def test_a_damaged_file_is_named_in_one_sentence_with_what_to_do(damage, tmp_path):
    frame = counted(tokens=[3, 4], widths=[np.array([0, 3])] * 2)
    path = row_files.write("01/greedy", frame, ABOUT, tmp_path)
    damage(path)
    with pytest.raises(RowsError, match=f"{re.escape(str(path))}.*python -m specdec_lib rows 01/greedy"):
        row_files.read("01/greedy", tmp_path)


def test_two_rows_of_one_output_and_a_folder_that_cannot_be_written_are_refused(tmp_path):
    with pytest.raises(RowsError, match="two rows of .*'prompt': '001'"):
        row_files.write("01/greedy", counted(tokens=[3, 4]).assign(prompt="001"), ABOUT, tmp_path)
    (tmp_path / "01").write_text("a file where the folder would be")
    with pytest.raises(RowsError, match=r"01/greedy.csv.gz cannot be written"):
        row_files.write("01/greedy", counted(tokens=[3, 4]), ABOUT, tmp_path)


@pytest.mark.parametrize("seed", range(3))
def test_every_build_reads_all_rows_and_makes_a_sample_again(made, model, seed, monkeypatch):
    folder, make = made
    monkeypatch.setattr(checked_rows, "SECONDS", 0.0)
    asked = []
    book = CheckedRows("01", {"target": model}, seed=seed, folder=folder)
    rows = book.rows("greedy", lambda prompts: asked.append(prompts[0].id) or make(prompts), PROMPTS[1:])
    assert set(rows.prompt) == {prompt.id for prompt in PROMPTS}
    (outcome,) = book.outcomes
    assert (outcome.prompts, outcome.here, outcome.again, outcome.made, outcome.rounded) == (5, 4, 1, 1, 0)
    assert len(asked) == 1 and asked[0] != "0"


def test_prompts_whose_rows_take_long_are_drawn_seldom_and_those_without_rows_to_check_never(made, model, monkeypatch):
    folder, _ = made
    frame, about = row_files.read("01/greedy", folder)
    frame = frame.assign(tokens=[1, 1, 10, 1, 1], method=["PLD"] * 4 + ["REST"])
    row_files.write("01/greedy", frame, about | {"stores": {"text": "old"}}, folder)
    monkeypatch.setattr(checked_rows, "SECONDS", 0.0)
    drawn = []

    def known(prompts):
        drawn.append(prompts[0].id)
        return frame[frame.prompt == prompts[0].id]

    for seed in range(200):
        book = CheckedRows("01", {"target": model}, seed=seed, folder=folder)
        book.rows("greedy", known, PROMPTS, {"text": ("new", ["REST"])})
        assert (book.outcomes[0].here, book.outcomes[0].made) == (4, 1)
    often = {prompt.id: drawn.count(prompt.id) for prompt in PROMPTS}
    # 268 units of work each, and 905 of the third prompt.
    assert min(often["0"], often["1"], often["3"]) > 40 and 0 < often["2"] < 30 and often["4"] == 0


class OneTokenLess(PromptLookup):
    """A drafter with a fault: it forgets the last token of each draft."""

    def propose(self, context, limit):
        draft = super().propose(context, limit)
        return DraftTree.chain(draft.tokens[:-1])


def test_a_row_changed_by_hand_another_drafter_or_another_tokenizer_stop_the_page(made, model, tokenizer):
    folder, make = made
    book = CheckedRows("01", {"target": model}, folder=folder)
    faulty = partial(rows_of, model, tokenizer, drafter=OneTokenLess(2, 4))
    with pytest.raises(RowsError, match=r"01/greedy.*\('code', .*: \w+ was \d+ and is \d+; rounding does not"):
        book.rows("greedy", faulty, PROMPTS)

    other = partial(rows_of, model, Reversed(tokenizer))
    with pytest.raises(RowsError, match="rounding does not"):
        book.rows("greedy", other, PROMPTS)

    frame, about = row_files.read("01/greedy", folder)
    row_files.write("01/greedy", frame.assign(accepted=frame.accepted + 1), about, folder)
    with pytest.raises(RowsError, match=r"accepted was \d+ and is \d+"):
        book.rows("greedy", make, PROMPTS)


class Reversed:
    """A tokenizer that gives other ids to the same text."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)

    def __call__(self, text):
        return {"input_ids": self.tokenizer(text)["input_ids"][::-1]}


def test_a_check_takes_a_committed_answer_after_a_pass_which_shows_that_the_model_writes_it(
    model, tokenizer, tmp_path, monkeypatch
):
    monkeypatch.delenv(recordings.FRESH)
    monkeypatch.setattr(paths, "RECORDINGS", tmp_path / "committed" / "own.npz")
    (known,), weights = record_once(model, tokenizer, PROMPTS[:1], Sampling(), 24), recordings.identity(model)
    monkeypatch.setattr(recordings, "record", lambda *_, **__: pytest.fail("decoded"))

    def asked(name, verify=True, capture=Capture()):
        with checked_rows.recordings_in(str(tmp_path / name), verify):
            (found,) = record_once(model, tokenizer, PROMPTS[:1], Sampling(), 16, capture)
        return found.trace.tokens

    def commit(tokens):
        key = recordings.key_of(weights, Sampling(), known.trace.prompt)
        recordings.save_answer(key, recordings.Answer(tokens, "length"), weights)
        recordings.pack_answers(recordings.folder(), paths.RECORDINGS, [weights], {})

    commit(known.trace.tokens)
    assert asked("one") == asked("two", capture=Capture((1,))) == known.trace.tokens[:16]
    with pytest.raises(pytest.fail.Exception, match="decoded"):
        asked("three", verify=False)
    commit([*known.trace.tokens[:9], known.trace.tokens[9] ^ 1, *known.trace.tokens[10:]])
    for name, capture in {"four": Capture(), "five": Capture((1,))}.items():
        with pytest.raises(recordings.RecordingError, match="token 9 of the recording"):
            asked(name, capture=capture)
    # A fresh run, whose folder is named outside of the check, decodes all.
    monkeypatch.setenv(recordings.FRESH, str(tmp_path / "fresh"))
    with pytest.raises(pytest.fail.Exception, match="decoded"):
        asked("six")


def test_a_difference_that_rounding_makes_is_counted_and_does_not_stop_the_page(made, model):
    folder, make = made
    threshold = next(model.parameters()).detach().double().sum().item()

    def on_the_edge(prompts):
        """Counts one more where the sum of some weights is beyond what it is now: any rounding may decide that."""
        beyond = next(model.parameters()).detach().double().sum().item() != threshold
        return make(prompts).assign(tokens=lambda rows: rows.tokens + 1 + beyond)

    book = CheckedRows("01", {"target": model}, folder=folder)
    before = [parameter.clone() for parameter in model.parameters()]
    book.rows("greedy", on_the_edge, PROMPTS)
    assert book.outcomes[0].rounded == book.outcomes[0].made > 0
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))


def test_rounding_explains_a_row_only_if_it_changes_that_row(made, model):
    folder, make = made
    threshold = next(model.parameters()).detach().double().sum().item()

    def of_two_methods(prompts):
        """Any rounding changes the rows of another method."""
        beyond = next(model.parameters()).detach().double().sum().item() != threshold
        rows = make(prompts)
        return pd.concat([rows, rows.assign(method="REST", tokens=rows.tokens + beyond)])

    frame, about = row_files.read("01/greedy", folder)
    both = pd.concat([frame, frame.assign(method="REST")])
    book = CheckedRows("01", {"target": model}, folder=folder)

    def check(changed):
        row_files.write("01/greedy", both.assign(tokens=both.tokens + (both.method == changed)), about, folder)
        book.rows("greedy", of_two_methods, PROMPTS)
        return book.outcomes[-1].rounded

    assert check("neither") == 0 < check("REST")
    with pytest.raises(RowsError, match="'PLD'.*tokens was"):
        check("PLD")


def test_parts_are_told_apart_by_any_column_and_a_row_of_one_that_is_made_stops_the_page(made, model):
    folder, make = made
    frame, about = row_files.read("01/greedy", folder)

    def stored(prompts, parts):
        return pd.concat([make(prompts).assign(store=name) for name in parts])

    def check(changed=None):
        both = pd.concat([frame.assign(store=name) for name in ("own", "far")])
        both = both.assign(accepted=both.accepted + (both.store == changed))
        row_files.write("01/greedy", both, about | {"key": ["store"]}, folder)
        book = CheckedRows("01", {"target": model}, folder=folder)
        book.rows("greedy", stored, PROMPTS[:1], {"far text": (None, ["far"])}, parts={"own": 0, "far": 0}, by="store")
        return book.outcomes[0]

    assert check("far").unchecked == {"far text would take too long here": ["far"]} and check().made == 1
    with pytest.raises(RowsError, match="accepted was"):
        check("own")


def test_a_prompt_that_another_experiment_decoded_takes_as_long_as_it_did_there(made, model, monkeypatch):
    folder, make = made
    frame, about = row_files.read("01/greedy", folder)
    row_files.write("01/again", frame, about, folder)
    clock, decoded = [0.0], set()
    monkeypatch.setattr(checked_rows, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def dear(prompts):
        (prompt,) = prompts
        clock[0] += 0.0 if prompt.id in decoded else 0.8
        decoded.add(prompt.id)
        return make(prompts)

    def drawn(book, name):
        book.rows(name, dear, PROMPTS)
        return book.outcomes[-1].again

    book = CheckedRows("01", {"target": model}, folder=folder)
    assert drawn(book, "greedy") == drawn(replace(book), "again") == 1, "the next prompt would be new to both"
    decoded.update(prompt.id for prompt in PROMPTS)
    assert drawn(CheckedRows("01", {"target": model}, folder=folder), "again") == len(PROMPTS)


def test_rows_whose_data_sets_are_not_here_cannot_be_made(tmp_path, model, tokenizer, monkeypatch):
    monkeypatch.setenv(checked_rows.MAKE, "01/greedy")
    with pytest.raises(RowsError, match="01/greedy need published data sets .* SPECDEC_DATASETS"):
        CheckedRows("01", {"target": model}, folder=tmp_path).rows("greedy", partial(rows_of, model, tokenizer), [])


def test_rows_of_another_model_and_missing_rows_say_how_they_are_made(made, model, tokenizer):
    folder, make = made
    with pytest.raises(RowsError, match="another target model .* rows 01/greedy"):
        CheckedRows("01", {"target": families.perturbed(model)}, folder=folder).rows("greedy", make, PROMPTS)
    with pytest.raises(RowsError, match="there is no .*sampled.* rows 01/sampled"):
        CheckedRows("01", {"target": model}, folder=folder).rows("sampled", make, PROMPTS)


def test_rows_of_one_output_and_method_are_told_apart_by_columns_that_the_file_names(
    model, tokenizer, tmp_path, monkeypatch
):
    def tokens(prompts, wrong=()):
        runs = rows_of(model, tokenizer, prompts)
        each = pd.concat([runs.drop(columns=["widths", "kept", "looked_at"]).assign(place=at) for at in range(3)])
        return each.assign(chance=lambda rows: 0.25 + rows.place / 10 + rows.place.isin(wrong))

    book = CheckedRows("01", {"target": model}, folder=tmp_path)
    monkeypatch.setenv(checked_rows.MAKE, "01/tokens")
    with pytest.raises(RowsError, match="two rows of"):
        book.rows("tokens", tokens, PROMPTS)
    book.rows("tokens", tokens, PROMPTS, key=["place"])
    monkeypatch.delenv(checked_rows.MAKE)
    assert len(book.rows("tokens", tokens, PROMPTS, key=["place"])) == 15
    with pytest.raises(RowsError, match=r"'PLD', 2\): chance was 0.45 and is 1.45"):
        book.rows("tokens", partial(tokens, wrong=[2]), PROMPTS, key=["place"])


def test_methods_whose_datastore_differs_here_are_left_out_and_named(made, model):
    folder, make = made
    frame, about = row_files.read("01/greedy", folder)
    rest = frame.assign(method="REST", accepted=frame.accepted + 9)
    row_files.write("01/greedy", pd.concat([frame, rest]), about | {"stores": {"text": "old"}}, folder)
    book = CheckedRows("01", {"target": model}, folder=folder)

    def both(prompts):
        return pd.concat([make(prompts), make(prompts).assign(method="REST")])

    book.rows("greedy", both, PROMPTS, {"text": ("new", ["REST"])})
    assert book.outcomes[0].unchecked == {"text is another text here": ["REST"]}
    with pytest.raises(RowsError, match="accepted was"):
        book.rows("greedy", both, PROMPTS, {"text": ("old", ["REST"])})


def test_rows_of_a_model_that_is_not_at_hand_are_read_and_named_and_cannot_be_made(made, model, monkeypatch):
    folder, make = made
    book = CheckedRows("01", {"target": None}, folder=folder)
    read = book.rows("greedy", lambda prompts: pytest.fail("rows were made"), PROMPTS)
    pd.testing.assert_frame_equal(
        read, CheckedRows("01", {"target": model}, folder=folder).rows("greedy", make, PROMPTS)
    )
    (outcome,) = book.outcomes
    assert (outcome.rows, outcome.prompts, outcome.here, outcome.again) == (5, 5, 0, 0)
    assert outcome.unchecked == {"the target model is not at hand": ["all"]}
    monkeypatch.setenv(checked_rows.MAKE, "01/greedy")
    with pytest.raises(RowsError, match="01/greedy are of a target model, which is not at hand"):
        book.rows("greedy", make, PROMPTS)


def test_a_part_with_few_tokens_is_drawn_more_often(made, model):
    folder, make = made
    frame, about = row_files.read("01/greedy", folder)
    both = pd.concat([frame, frame.assign(method="REST", tokens=3 * frame.tokens)])
    row_files.write("01/greedy", both, about, folder)
    drawn = []

    def several(prompts, parts):
        (name,) = parts
        drawn.append(name)
        return both[(both.method == name) & both.prompt.isin([one.id for one in prompts])]

    for seed in range(40):
        book = CheckedRows("01", {"target": model}, seed=seed, folder=folder)
        book.rows("greedy", several, PROMPTS[:1], parts={"PLD": 0, "REST": 0})
    assert 0 < drawn.count("REST") < len(drawn) / 6, "one in 18 on average"


def test_a_part_may_be_a_method_at_a_temperature(made, model):
    folder, make = made
    frame, about = row_files.read("01/greedy", folder)
    ways = pd.concat([frame, frame.assign(temperature=1.0)])
    both = pd.concat([ways, ways.assign(method="REST")])
    row_files.write("01/greedy", both, about | {"stores": {"text": "old"}}, folder)

    def several(prompts, parts):
        rows = [
            make(prompts).assign(method=method, temperature=temperature).assign(accepted=lambda it: it.accepted + more)
            for (method, temperature), more in parts.items()
        ]
        return pd.concat(rows)

    def check(seed, wrong=None):
        book = CheckedRows("01", {"target": model}, seed=seed, folder=folder)
        parts = {(method, way): int((method, way) == wrong) for method in ("PLD", "REST") for way in (0.0, 1.0)}
        rest = [part for part in parts if part[0] == "REST"]
        book.rows("greedy", several, PROMPTS[:1], {"text": ("new", rest)}, parts=parts, by=["method", "temperature"])
        (outcome,) = book.outcomes
        assert outcome.made == 1 and outcome.unchecked == {"text is another text here": rest}

    found = set()
    for seed in range(8):
        for way in (0.0, 1.0):
            try:
                check(seed, ("PLD", way))
            except RowsError as error:
                assert "accepted was" in str(error)
                found.add(way)
        check(seed, ("REST", 1.0))
    assert found == {0.0, 1.0}, "some of the seeds draw each"


def test_a_check_makes_the_rows_of_one_method_that_it_draws_from_those_whose_datastore_is_here(made, model):
    folder, make = made
    frame, about = row_files.read("01/greedy", folder)
    both = pd.concat([frame, frame.assign(method="REST")])
    row_files.write("01/greedy", both, about | {"stores": {"text": "old"}}, folder)
    asked = []

    def several(prompts, parts):
        asked.append(list(parts))
        rows = [
            make(prompts).assign(method=name).assign(accepted=lambda it: it.accepted + more)
            for name, more in parts.items()
        ]
        return pd.concat(rows)

    def check(seed, digest, **more):
        book = CheckedRows("01", {"target": model}, seed=seed, folder=folder)
        book.rows("greedy", several, PROMPTS[:1], {"text": (digest, ["REST"])}, parts={"PLD": 0, "REST": 0} | more)
        return book.outcomes[0]

    for seed in range(8):
        assert check(seed, "old").made == 1
    drawn = [one for (one,) in asked]
    assert set(drawn) == {"PLD", "REST"}, "some of the seeds draw each"
    with pytest.raises(RowsError, match="accepted was"):
        check(drawn.index("REST"), "old", REST=1)
    assert check(drawn.index("PLD"), "old", REST=1).made == 1, "another seed draws it"
    asked.clear()
    left_out = {"text is another text here": ["REST"]}
    assert [check(seed, "new", REST=1).unchecked for seed in range(4)] == [left_out] * 4 and asked == [["PLD"]] * 4
    own = CheckedRows("01", {"target": model}, own=["target"], folder=folder)
    assert set(own.rows("greedy", several, PROMPTS, parts={"PLD": 0, "REST": 0}).method) == {"PLD", "REST"}


def test_a_readers_own_run_makes_rows_of_its_first_prompts_and_reads_none(tmp_path, model, tokenizer):
    own = CheckedRows("01", {"target": model}, own=["target"], own_prompts=2, folder=tmp_path)
    rows = own.rows("greedy", partial(rows_of, model, tokenizer), PROMPTS)
    assert list(rows.prompt) == ["0", "1"] and not own.outcomes


def test_rows_that_were_finished_are_not_made_again_after_an_interruption(tmp_path, model, tokenizer, monkeypatch):
    monkeypatch.setenv(checked_rows.MAKE, "01/greedy")
    monkeypatch.setattr(checked_rows, "PIECE", 2)
    asked = []

    def make(prompts, fails=False):
        if fails and prompts[0].id == "4":
            raise KeyboardInterrupt
        asked.extend(prompt.id for prompt in prompts)
        return rows_of(model, tokenizer, prompts)

    book = CheckedRows("01", {"target": model}, origin={"commit": "abc"}, folder=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        book.rows("greedy", partial(make, fails=True), PROMPTS)
    assert not (tmp_path / "01").exists()
    rows = book.rows("greedy", make, PROMPTS)
    assert asked == list(rows.prompt) == list("01234")
    about = row_files.read("01/greedy", tmp_path)[1]
    assert about["commit"] == "abc" and about["command"].endswith("rows 01/greedy")
