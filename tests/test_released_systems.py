"""Rules of released codes: their trees are of the size that pages say, and both sides are counted."""

from collections import Counter

import learning_rows
import numpy as np
import own_answers
import pytest
import released_rules
import torch
import train_companions

from specdec_lib import Sampling, load_model
from specdec_lib.decoding.contract import LAST, Capture
from specdec_lib.decoding.generate import record
from specdec_lib.decoding.loop import replay
from specdec_lib.drafters import eagle, medusa
from specdec_lib.experiments.runs import row_files
from specdec_lib.experiments.workbench import ModelPair
from specdec_lib.heads.draft_training import Text, states_of
from specdec_lib.heads.drafting import Ends, HydraHeads
from specdec_lib.report import numbers
from tests.families import build, prompt


@pytest.mark.parametrize(
    ("children", "levels"), [(released_rules.MEDUSA, medusa.LEVELS), (released_rules.EAGLE, eagle.LEVELS)]
)
def test_the_released_tree_has_as_many_nodes_on_each_level_as_ours(children, levels):
    shape, depths = released_rules.shape_of(children), {-1: 0}
    for node, (parent, _) in enumerate(shape):
        depths[node] = depths[parent] + 1
    counted = Counter(depths.values())
    assert [counted[depth] for depth in range(1, len(counted))] == list(levels)


def test_passes_with_likely_children_are_those_of_a_replay():
    model, tokenizer = load_model("pocket", "cpu", "float32")
    head = ModelPair(model, None, tokenizer).draft_heads("eagle")
    prompt = tokenizer("def add(x, y):\n    return")["input_ids"]
    trace = record(model, prompt, Sampling(1.0, seed=3), 40, capture=Capture((LAST,)))
    drafter = eagle.Eagle(model, head, released_rules.shape_of(released_rules.EAGLE), drawn=False)
    tokens = torch.tensor([*prompt, *trace.tokens])
    states = torch.cat([trace.hidden[LAST].float(), torch.zeros(1, trace.hidden[LAST].shape[1])])
    count, ours, released = released_rules.passes_by_rule(head, Ends(model), Text(tokens, states, len(prompt)))
    assert (count, ours) == (len(trace.tokens) - 1, len(replay(trace, drafter).steps))
    assert 0 < released <= count


def test_children_are_accepted_as_often_as_the_released_rule_accepts_them():
    """Against the rule itself, run many times; the target's draw decides where no child is accepted."""
    p, q, draw = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.1, 0.2, 0.3, 0.4]), np.random.default_rng(0)
    counted, runs = np.zeros((4, 3)), 20_000
    for _ in range(runs):
        left, own = p, q
        for rank, child in enumerate(draw.choice(4, 3, replace=False, p=q)):
            if draw.random() < left[child] / own[child]:
                counted[child, rank] += 1
                break
            left = np.maximum(left - own, 0)
            left, own = left / left.sum(), np.where(np.arange(4) == child, 0, own)
            own = own / own.sum()
    many = [torch.tensor(row, dtype=torch.float32).repeat(20_000, 1) for row in (p, q)]
    for token in range(4):
        found = released_rules.accepted_as(*many, torch.full((20_000,), token), 3).mean(0) * p[token]
        assert found.numpy() == pytest.approx(counted[token] / runs, abs=0.012)


@pytest.mark.slow
def test_both_sides_are_counted_on_the_same_outputs(tmp_path):
    draw = np.random.default_rng(0)
    rows = [{"prompt": draw.integers(5, 200, 6), "answer": draw.integers(5, 200, 9), "heat": 0.0} for _ in range(44)]
    own_answers.pack(rows, tmp_path / "answers.npz")
    given = {"answers": tmp_path / "answers.npz", "learn": 4, "out": tmp_path}
    released_rules.main(target="pocket", max_new_tokens=12, **given)
    found = numbers.read(tmp_path / "released.csv")
    ratios = [found[f"{name}_over_released"].value for name in ("medusa", "eagle", "lookahead", "eagle_likely")]
    ratios += [found[f"sam_{name}"].value for name in ("prompt_over_none", "tree_over_wider", "own_answers_over_none")]
    assert all(0.4 < ratio < 2.5 for ratio in ratios)
    assert all(
        found[f"{part}_outputs"].value >= 5 for part in released_rules.PARTS if part not in released_rules.TRAININGS
    )
    assert 1 <= found["eagle2_depth"].value <= found["eagle2_levels"].value <= 6
    # One part again leaves the others as they are.
    released_rules.main(target="pocket", max_new_tokens=12, part=["copies"], **given)
    again = numbers.read(tmp_path / "released.csv")
    assert again == found
    assert 1 < found["recycling_width"].value < found["recycling_full_width"].value
    assert found["trained_on"].value == released_rules.EPOCHS * 4 * 8
    effects = ("none_over_dropout", "cut_over_whole", "released_over_small")
    assert all(0 < found[f"hydra_{name}"].value < 10 for name in effects)
    assert found["hydra_not_in_cut"].value == 0  # the small pair's vocabulary is smaller than the cut


def test_wider_heads_begin_with_what_the_earlier_ones_know(tmp_path):
    model = build("llama-gqa")
    torch.manual_seed(0)
    old = HydraHeads.for_target(model, prefix=False, heads=2, layers=1)
    for weights in old.parameters():
        torch.nn.init.normal_(weights, std=0.2)
    new = train_companions.widened(old, HydraHeads.for_target(model, heads=3)).eval()
    states = torch.randn(1, 9, 32)
    states = 2 * states / states.square().mean(-1, keepdim=True).sqrt()
    new.begin(states[0])
    tokens, where = torch.tensor([prompt(1, 9)]), torch.ones(1, 9, dtype=torch.bool)
    with torch.no_grad():
        before = old.eval().features(Ends(model), states, tokens, where, 2)
        after = new.features(Ends(model), states, tokens, where, 3)
    for known, same in zip(before, after, strict=False):
        torch.testing.assert_close(same, known, rtol=1e-4, atol=1e-4)
    # The third head is the second one, which reads its tokens one place later.
    width = slice(32, 96)
    assert torch.equal(new.first[2].map.weight[:, 64:], old.first[1].map.weight[:, width])
    assert not new.first[2].map.weight[:, 32:64].any()


def test_states_of_a_text_are_computed_once(tmp_path):
    model, row = build("llama-gqa"), {"prompt": np.array(prompt(1, 7)), "answer": np.array(prompt(2, 5))}
    text = train_companions.KeptText(model, row, tmp_path)
    states = text.states
    torch.testing.assert_close(states.float(), states_of(model, text.tokens.tolist()), rtol=2e-2, atol=2e-2)
    assert text.start == 7 and len(list(tmp_path.iterdir())) == 1
    again = train_companions.KeptText(None, row, tmp_path)
    assert torch.equal(again.states, states)


@pytest.mark.slow
def test_each_system_that_learns_has_rows_of_each_state_and_they_are_kept(tmp_path, monkeypatch):
    asked = {"target": "pocket", "per_task": 1, "max_new_tokens": 8, "kept": tmp_path / "kept", "out": tmp_path}
    asked["system"] = ["SuffixDecoding", "Token Recycling", "Lookahead, prompt"]
    learning_rows.main(**asked)
    rows, _ = row_files.read("learning", tmp_path)
    states = rows.groupby("method").state.agg(set).to_dict()
    assert states == {
        "SuffixDecoding": {"cold", "warm"},
        "Token Recycling": {"cold", "warm"},
        "Lookahead, prompt": {"cold"},
    }
    monkeypatch.setattr(learning_rows, "runs_of", None)
    learning_rows.main(**asked)
    again, _ = row_files.read("learning", tmp_path)
    assert len(again) == len(rows)
