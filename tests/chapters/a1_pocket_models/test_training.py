"""The recipe of the pocket models: schedule, resuming, refused checkpoints, and an exported directory that loads."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from specdec_lib.chapters.a1_pocket_models import training, training_rows
from specdec_lib.chapters.a1_pocket_models.training import Batches, Recipe

VOCABULARY = 300
TEXT = np.arange(400).astype(np.uint16) % 20 + 4


class Counting:
    """Rows that count on in a circle, drawn from the block's number: a tiny model learns them in a few steps."""

    def __init__(self):
        self.asked = []

    def block(self, number, count, length, tasks):
        self.asked.append((number, count, length, tuple(tasks)))
        starts = np.random.default_rng([number, length, len(tasks)]).integers(0, 20, (count, 1))
        tokens = (starts + np.arange(length + 1)) % 20 + 4
        return tokens, np.ones(tokens.shape, np.float32)


def tiny(**changes) -> Recipe:
    recipe = Recipe(
        vocab_size=VOCABULARY,
        target=training.Shape(32, 2, 1, 48),
        draft=training.Shape(32, 1, 1, 48),
        qwen=training.QwenShape(32, 2, 2, 1, 48),
        length=16,
        long_length=32,
        tokens_per_step=64,
        copying_steps=3,
        warmup_steps=2,
    )
    return dataclasses.replace(recipe, **changes)


def run(folder, steps, recipe=None, shape=None, teacher=None, every=2, batches=None, corpus="text", **more):
    """Train a tiny model made from the recipe's seed; gives it and its curve."""
    recipe = recipe or tiny()
    torch.manual_seed(recipe.seed)
    model = (shape or recipe.target).build(VOCABULARY)
    batches = batches or Batches(Counting(), recipe, steps)
    return model, training.train(
        model, batches, recipe, folder, "m", [], {"circle": TEXT}, corpus, teacher, every=every, compiled=False, **more
    )


class Stopped(Batches):
    """Batches of a run that the user stops before a step."""

    def __init__(self, recipe, steps, before):
        super().__init__(Counting(), recipe, steps)
        self.before = before

    def __call__(self, step):
        if step == self.before:
            raise KeyboardInterrupt
        return super().__call__(step)


def without_seconds(curve):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in curve]


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_rate_warms_up_stays_and_falls_to_zero_over_the_last_part():
    recipe = Recipe(warmup_steps=10, last_share=0.3)
    assert recipe.last_part(100) == 70
    factors = [training.rate_factor(step, 100, recipe) for step in range(101)]
    assert factors[0] == pytest.approx(0.1) and factors[4] == pytest.approx(0.5)
    assert all(factor == 1.0 for factor in factors[9:71])
    assert factors[100] == 0.0 and np.allclose(np.diff(factors[70:]), -1 / 30)


def test_rate_warms_up_again_where_optimizers_start_again():
    recipe = Recipe(warmup_steps=10)
    factors = [training.rate_factor(step, 100, recipe, begun=40) for step in range(40, 60)]
    assert np.allclose(factors[:10], np.arange(1, 11) / 10) and all(factor == 1.0 for factor in factors[10:])


def test_weights_under_way_go_on_from_their_step_and_others_begin_at_the_first(tmp_path):
    recipe = tiny(vocab_size=VOCABULARY)
    tokenizer = training_rows.train_tokenizer(["def add(a, b):\n    return a + b\n"] * 20, VOCABULARY, 64)
    (tmp_path / "work").mkdir()
    model, curve = run(tmp_path / "work", 20, until=0.0)  # time is over after the first checkpoint
    assert [row["step"] for row in curve] == [2]
    recipe_told = json.loads(json.dumps(dataclasses.asdict(recipe)))
    story = {
        "recipe": recipe_told,
        "curve": curve,
        "steps": 20,
        "corpus": {"fingerprint": "text"},
        "start": {"tokens": 7},
    }
    training.export(model, tokenizer, tmp_path / "under-way", story)

    fresh = recipe.target.build(VOCABULARY)
    weights, start, before = training.starting_weights(tmp_path / "under-way", fresh, recipe, "text")
    assert before == curve and start == {"tokens": 7}
    assert all(torch.equal(weights[name].bfloat16(), p.bfloat16()) for name, p in model.named_parameters())
    (tmp_path / "elsewhere").mkdir()
    _, longer = run(tmp_path / "elsewhere", 20, before=before, until=0.0)
    assert [row["step"] for row in longer] == [2, 4]
    _, longer = run(tmp_path / "elsewhere", 20)  # a checkpoint is preferred, and knows where its optimizers began
    assert [row["step"] for row in longer] == list(range(2, 21, 2))

    for other, corpus in ((tiny(muon_rate=1e-3), "text"), (recipe, "another text")):
        _, start, before = training.starting_weights(tmp_path / "under-way", fresh, other, corpus)
        assert before == [] and start == {
            "fingerprint": training.fingerprint(model.bfloat16().float()),
            "tokens": 7 + 128,
        }
    with pytest.raises(ValueError, match="under-way holds a model of another shape"):
        training.starting_weights(tmp_path / "under-way", recipe.draft.build(VOCABULARY), recipe, "text")
    (tmp_path / "under-way" / "training.json").write_text(json.dumps({**story, "curve": [{**curve[0], "step": 19}]}))
    with pytest.raises(ValueError, match="of step 19 of 20, in the last part"):
        training.starting_weights(tmp_path / "under-way", fresh, recipe, "text")


def test_the_rows_of_a_step_do_not_depend_on_the_steps_before():
    recipe = tiny(last_share=0.25)
    in_order = Batches(Counting(), recipe, 80)
    rows = [in_order(step)[0] for step in range(80)]
    for step in (79, 3, 41, 60, 2):
        assert np.array_equal(Batches(Counting(), recipe, 80)(step)[0], rows[step])
    # Windows of 16 tokens, then of 32 over the last quarter: the same number of tokens in each step.
    assert {row.shape for row in rows[:60]} == {(4, 17)} and {row.shape for row in rows[60:]} == {(2, 33)}


def test_a_block_is_made_once_and_the_first_steps_teach_copying_alone():
    source = Counting()
    batches = Batches(source, tiny(last_share=0.25), 80)
    for step in range(80):
        batches(step)
    every_task = tuple(training_rows.TASK_SHARES)
    assert source.asked == [
        (0, 32 * 4, 16, training_rows.COPYING_TASKS),
        (0, 32 * 4, 16, every_task),
        (1, 32 * 4, 16, every_task),
        (0, 32 * 2, 32, every_task),
    ]


def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(tmp_path):
    """The same rows, weights and curve as one unbroken run."""
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole, curve = run(tmp_path / "whole", 10)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts", 10, batches=Stopped(tiny(), 10, before=5))
    parts, curve_of_parts = run(tmp_path / "parts", 10)
    assert same(whole, parts) and without_seconds(curve) == without_seconds(curve_of_parts)
    assert [row["step"] for row in curve] == [2, 4, 6, 8, 10]
    assert json.loads((tmp_path / "parts" / "m.curve.json").read_text()) == curve_of_parts


def test_a_run_can_be_lengthened_from_its_first_part_and_not_from_its_last(tmp_path):
    for name in ("whole", "longer"):
        (tmp_path / name).mkdir()
    whole, _ = run(tmp_path / "whole", 20)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "longer", 10, batches=Stopped(tiny(), 10, before=7))
    # Step 6 lies before the last parts of both lengths, which begin at 8 and at 16.
    longer, curve = run(tmp_path / "longer", 20)
    assert same(whole, longer) and curve[-1]["step"] == 20
    refused = r"m\.pt is of step 20 of a run of 20 steps, whose last part had begun .* 30; ask for 20 steps, delete it"
    with pytest.raises(ValueError, match=refused):
        run(tmp_path / "longer", 30)
    with pytest.raises(ValueError, match="would have begun in one of 6; ask for 20 steps"):
        run(tmp_path / "longer", 6)


def test_a_checkpoint_does_not_bind_a_run_to_the_lengths_and_shapes_of_other_parts(tmp_path):
    run(tmp_path, 4)
    _, curve = run(tmp_path, 4, tiny(draft_steps=7, qwen_steps=8, draft=training.Shape(32, 2, 1, 48)))
    assert len(curve) == 2  # read back, not trained again


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"recipe": tiny(seed=1)}, "seed"),
        ({"recipe": tiny(muon_rate=1e-3)}, "muon_rate"),
        ({"shape": training.Shape(32, 1, 1, 48)}, "shape"),
        ({"corpus": "another text"}, "corpus"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_and_named(tmp_path, changes, name):
    run(tmp_path, 2)
    before = (tmp_path / "m.pt").read_bytes()
    with pytest.raises(ValueError, match=rf"m\.pt is of a run with another {name}; delete it .* --work"):
        run(tmp_path, 2, **changes)
    assert (tmp_path / "m.pt").read_bytes() == before


def test_a_checkpoint_distilled_from_another_teacher_is_refused(tmp_path):
    old, new = (tiny().draft.build(VOCABULARY).eval() for _ in range(2))
    run(tmp_path, 2, teacher=old)
    assert len(run(tmp_path, 2, teacher=old)[1]) == 1
    for teacher in (new, None):
        with pytest.raises(ValueError, match=r"m\.pt is of a run with another teacher;"):
            run(tmp_path, 2, teacher=teacher)


def test_a_checkpoint_that_does_not_say_what_it_is_of_is_refused(tmp_path):
    run(tmp_path, 2)
    state = torch.load(tmp_path / "m.pt", weights_only=True)
    del state["key"]
    torch.save(state, tmp_path / "m.pt")
    with pytest.raises(ValueError, match=r"m\.pt does not say which seed, recipe and teacher"):
        run(tmp_path, 2)


def test_training_lowers_the_loss_and_distilling_brings_the_draft_nearer(tmp_path):
    target, curve = run(tmp_path, 40, every=10)
    assert curve[-1]["loss"] < 0.6 * curve[0]["loss"]
    assert curve[-1]["heldout"]["circle"] < curve[0]["heldout"]["circle"]
    assert [row["tokens"] for row in curve] == [640, 1280, 1920, 2560] and not any(row["distilling"] for row in curve)
    tokens = torch.from_numpy(Counting().block(99, 8, 16, {})[0])

    def distance(draft):
        with torch.no_grad():
            p, q = (model(tokens).logits.log_softmax(-1) for model in (target, draft))
        return float((p.exp() * (p - q)).sum(-1).mean())

    torch.manual_seed(0)
    before = distance(tiny().draft.build(VOCABULARY))
    folder = tmp_path / "draft"
    folder.mkdir()
    draft, curve = run(folder, 40, shape=tiny().draft, teacher=target.eval(), every=10, distill_from=20)
    assert [row["distilling"] for row in curve] == [False, False, True, True]
    assert distance(draft) < 0.7 * before


@pytest.mark.parametrize("teacher", [None, training.Shape(32, 1, 1, 48)])
@pytest.mark.parametrize("rows_per_pass", [1, 2, 3, 4])
def test_a_step_in_several_passes_has_the_loss_and_the_gradients_of_one(rows_per_pass, teacher):
    torch.manual_seed(0)
    model = tiny().target.build(VOCABULARY)
    model.set_attn_implementation("eager")
    teacher = teacher and teacher.build(VOCABULARY)
    tokens, weights = torch.randint(4, VOCABULARY, (4, 17)), torch.rand(4, 17)

    def own_loss(some, own):
        return training._loss(model, teacher, some, own)

    whole = own_loss(tokens, weights) / weights[:, 1:].sum()
    whole.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    assert training.accumulate(own_loss, rows_per_pass, tokens, weights) == pytest.approx(whole.item(), rel=1e-3)
    for name, parameter in model.named_parameters():  # passes run in bfloat16
        torch.testing.assert_close(parameter.grad, expected[name], rtol=0.05, atol=2e-3, msg=name)


def test_the_second_target_is_another_family(tmp_path):
    model, curve = run(tmp_path, 20, shape=tiny().qwen, every=10)
    assert model.config.model_type == "qwen3" and curve[-1]["loss"] < curve[0]["loss"]


def test_a_loss_that_is_no_number_ends_the_run_and_leaves_the_last_checkpoint(tmp_path):
    class Weightless(Counting):
        def block(self, *place):
            tokens, weights = super().block(*place)
            return tokens, 0 * weights

    with pytest.raises(FloatingPointError, match="m: the loss is nan at step 1; lower muon_rate"):
        run(tmp_path, 2, batches=Batches(Weightless(), tiny(), 2))
    assert not list(tmp_path.iterdir())


def test_the_curve_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, 10, batches=Stopped(tiny(), 10, before=3))
    before, write = (tmp_path / "m.curve.json").read_text(), training.Path.write_text

    def half_written(path, text, *args, **kwargs):
        write(path, text[: len(text) // 2], *args, **kwargs)
        raise OSError("disk full")

    monkeypatch.setattr(training.Path, "write_text", half_written)
    with pytest.raises(OSError, match="disk full"):
        run(tmp_path, 10)
    assert (tmp_path / "m.curve.json").read_text() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.curve.json", "m.pt"]


class Predicts(torch.nn.Module):
    """Gives the token after the last one ``share`` of the probability, and notes what it was shown."""

    def __init__(self, share=0.5, step=0):
        super().__init__()
        self.unused = torch.nn.Parameter(torch.zeros(1))
        self.share, self.step, self.shown = share, step, []

    def forward(self, ids, use_cache):
        self.shown.append(ids)
        rest = (1 - self.share) / (VOCABULARY - 1)
        probabilities = torch.full((*ids.shape, VOCABULARY), rest)
        probabilities.scatter_(-1, (ids + self.step)[..., None], self.share)
        return type("Out", (), {"logits": probabilities.log()})


def test_text_loss_is_the_mean_over_evenly_spaced_windows():
    tokens = np.arange(100, 200).astype(np.uint16)  # each token is the one before, plus one
    model = Predicts(0.25, step=1)
    losses = training.text_loss(model, {"a": tokens, "b": tokens[:11], "c": tokens[:6]}, length=10, windows=4)
    assert losses == dict.fromkeys("abc", pytest.approx(math.log(4)))
    assert model.shown[0][:, 0].tolist() == [100, 129, 159, 189] and model.shown[0].shape == (4, 10)
    # A short text has fewer windows, and one shorter than a window is taken as a whole.
    assert [shown.tolist() for shown in model.shown[1:]] == [[list(range(100, 110))], [list(range(100, 105))]]
    wrong = training.text_loss(Predicts(0.25, step=2), {"a": tokens}, length=10, windows=4)
    assert wrong["a"] == pytest.approx(-math.log(0.75 / (VOCABULARY - 1)))


def test_each_token_is_predicted_once_at_each_length_of_window():
    tokens = np.arange(100, 200).astype(np.uint16)
    model = Predicts(0.25, step=1)
    losses = training.loss_by_window(model, {"a": tokens}, (3, 9), stretches=2)
    assert losses == {"3": {"a": pytest.approx(math.log(4))}, "9": {"a": pytest.approx(math.log(4))}}
    shown = [row.tolist() for ids in model.shown for row in ids]
    assert shown[:6] == [[s + at, s + at + 1, s + at + 2] for s in (100, 190) for at in (0, 3, 6)]
    assert shown[6:] == [list(range(100, 109)), list(range(190, 199))]


def test_accuracy_counts_answer_tokens_only():
    probes = [("same", [5, 7, 7, 7], [0, 0, 1, 1]), ("other", [5, 7, 8, 8], [0, 0, 1, 1])]
    assert training.task_accuracy(Predicts(), probes) == {"same": 1.0, "other": 0.5}


def test_export_is_an_ordinary_directory_in_bfloat16(tmp_path):
    tokenizer = training_rows.train_tokenizer(["def add(a, b):\n    return a + b\n"] * 20, VOCABULARY, 64)
    model = tiny().target.build(len(tokenizer)).eval()
    story = {"part": "target"}
    training.export(model, tokenizer, tmp_path / "m", story)
    training.export(model, tokenizer, tmp_path / "m", story)  # replaces the first
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    assert loaded.dtype == torch.bfloat16
    ids = torch.tensor([AutoTokenizer.from_pretrained(tmp_path / "m").encode("def add")])
    assert torch.allclose(loaded.float()(ids).logits, model(ids).logits, atol=0.05)
    assert json.loads((tmp_path / "m" / "training.json").read_text()) == story
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_weights_in_several_files_load_as_those_in_one(tmp_path):
    tokenizer = training_rows.train_tokenizer(["def add(a, b):\n    return a + b\n"] * 20, VOCABULARY, 64)
    model = tiny().target.build(len(tokenizer)).eval()
    # No file can be smaller than the largest weight.
    limit = 2 * max(p.numel() for p in model.parameters())
    training.export(model, tokenizer, tmp_path / "one", {})
    training.export(model, tokenizer, tmp_path / "several", {}, limit + 1000)
    files = list((tmp_path / "several").glob("*.safetensors"))
    assert len(files) > 1 and all(file.stat().st_size <= limit + 5000 for file in files)
    one, several = (AutoModelForCausalLM.from_pretrained(tmp_path / name).state_dict() for name in ("one", "several"))
    assert one.keys() == several.keys() and all(torch.equal(one[name], several[name]) for name in one)
