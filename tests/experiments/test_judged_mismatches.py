"""The comparison with plain decoding: what differs is found, and called rounding only where it is."""

import json
import math
from importlib import metadata

import pytest
import torch

from specdec_lib import Sampling, generate, paths
from specdec_lib.cli import main
from specdec_lib.decoding.contract import Drafter
from specdec_lib.decoding.sampling import choose
from specdec_lib.decoding.tree import EMPTY
from specdec_lib.experiments.checks import losslessness
from specdec_lib.experiments.checks.losslessness import lossless_names
from specdec_lib.experiments.checks.rounding import SLACK, Judge, explain, margin
from specdec_lib.experiments.data.prompt import Prompt
from specdec_lib.experiments.runs import recorded_runs
from specdec_lib.methods import Method
from tests.families import build, perturbed, prompt

GREEDY, HOT = Sampling(), Sampling(0.7, 0.9, seed=1)
#: Those that need no datastore: the model of these tests has no tokenizer to build one with.
WITHOUT_STORES = {name: losslessness.METHODS[name] for name in ("PLD", "PLD+ (h)", "SpecDec")}


@pytest.fixture(scope="module")
def pair():
    target = build("llama-gqa")
    return target, perturbed(target)


@pytest.mark.parametrize("sampling", [GREEDY, HOT, Sampling(0.7, seed=3)], ids=str)
def test_a_wrong_token_is_not_explained(pair, sampling):
    start = prompt(1, 12)
    tokens = generate(pair[0], start, None, sampling, 10).tokens
    for wrong in range(2, 90, 8):
        if wrong == tokens[6]:
            continue
        found = Judge(pair[0])(start, tokens, [*tokens[:6], wrong, *tokens[7:]], sampling, "p", "m")
        assert (found.position, found.expected, found.got, found.explained) == (6, tokens[6], wrong, False)
        assert found.distance > SLACK * found.rounding


def test_equal_outputs_are_no_mismatch_and_one_that_ends_early_is_not_explained(pair):
    assert Judge(pair[0])([1, 2], [3, 4], [3, 4], GREEDY) is None
    found = Judge(pair[0])([1, 2], [3, 4, 5], [3, 4], GREEDY)
    assert (found.position, found.expected, found.got) == (2, 5, -1) and not found.explained


def test_a_tie_is_explained():
    model, start = build("llama-gqa"), prompt(1, 12)
    with torch.no_grad():
        state = model.model(torch.tensor([start])).last_hidden_state[0, -1]
        # Two likely tokens that nothing but rounding tells apart.
        model.lm_head.weight[40] = 2 * state
        model.lm_head.weight[50] = model.lm_head.weight[40] * (1 + 1e-7)
    found = Judge(model)(start, [40], [50], GREEDY)
    assert found.explained and found.margin <= SLACK * found.rounding
    assert not Judge(model)(start, [40], [51], GREEDY).explained


def test_margin_is_the_room_around_a_choice():
    logits = torch.tensor([1.0, 4.0, 3.5, -2.0])
    assert margin(logits, GREEDY, 0) == pytest.approx(0.5)
    p = logits.double().softmax(-1)
    u = Sampling(1.0, seed=2).uniform(7)
    assert margin(logits, Sampling(1.0, seed=2), 7) == pytest.approx(float((p.cumsum(-1)[:-1] - u).abs().min()))


def fixed(number: float, top_p: float = 1.0) -> Sampling:
    """A sampling whose uniform number is given."""

    class Fixed(Sampling):
        def uniform(self, position, stream=0, salt=0):
            return number

    return Fixed(1.0, top_p)


def explained(p, rounded, number: float, top_p: float, tokens: tuple[int, int]) -> bool:
    """Whether rounding explains that one uniform number gives both tokens."""
    distance, rounding = explain(p.log(), rounded.log(), fixed(number, top_p), 0, tokens)
    return distance <= SLACK * rounding


@pytest.mark.parametrize("error", [1e-7, 1e-6])
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_a_number_between_two_neighbours_is_explained_only_within_the_rounding_error(error, top_p):
    p = torch.tensor([0.4, 0.3, 0.25, 0.03, 0.02]).double()
    boundary = 0.4 / (1.0 if top_p == 1 else 0.95)  # the nucleus of 0.9 holds the first three
    rounded = p + torch.tensor([error, -error, 0, 0, 0]).double()
    for shift, told in ((2 * error, True), (-2 * error, True), (100 * error, False), (-100 * error, False)):
        sampling = fixed(boundary + shift, top_p)
        assert choose(p.log(), sampling, 0) == (1 if shift > 0 else 0)
        assert explain(p.log(), rounded.log(), sampling, 0, (0, 1))[1] == pytest.approx(error, rel=1e-3)
        assert explained(p, rounded, boundary + shift, top_p, (0, 1)) == told
        # A third token is never explained by this boundary.
        assert not explained(p, rounded, boundary + shift, top_p, (0, 2))


def test_a_nucleus_that_ends_at_its_limit_is_explained():
    p = torch.tensor([0.5, 0.4, 0.06, 0.04]).double()  # the nucleus of 0.9 is two or three tokens, by rounding
    rounded = p + torch.tensor([-1e-7, 0, 1e-7, 0]).double()
    number = (0.5 / 0.96 + 0.5 / 0.9) / 2
    assert explained(p, rounded, number, 0.9, (0, 1))
    # With a limit that is clear of the sums the same two tokens are not explained.
    assert not explained(p, rounded, number, 0.88, (0, 1))
    assert math.isinf(explain(p.log(), rounded.log(), fixed(number, 0.88), 0, (0, 3))[0])


@pytest.mark.parametrize(("place", "pair"), [(0.53, (1, 2)), (0.82, (2, 3))])
def test_tokens_that_tie_at_the_edge_of_the_nucleus_may_change_places(place, pair):
    """The nucleus of 0.9 holds one of the two tokens of 0.06, and rounding decides which."""
    p, number = torch.tensor([0.5, 0.06, 0.3, 0.06, 0.08]).double(), place / 0.94
    either = [p + torch.tensor([0, shift, 0, -shift, 0]).double() for shift in (1e-7, -1e-7)]
    assert {choose(one.log(), fixed(number, 0.9), 0) for one in either} == set(pair)
    for exact, rounded in (either, either[::-1]):
        assert explained(exact, rounded, number, 0.9, pair)
        # The first token is far from the number, whichever of the two is inside.
        assert not explained(exact, rounded, number, 0.9, (0, pair[0]))
    # Tokens that differ by more than rounding do not change places.
    clear = p + torch.tensor([0, 1e-3, 0, -1e-3, 0]).double()
    assert not explained(clear, clear + torch.tensor([1e-7, -1e-7, 0, 0, 0]).double(), number, 0.9, pair)


def test_many_tokens_below_the_rounding_error_move_no_boundary():
    p = torch.tensor([1e-6] * 400 + [0.5, 0.4996], dtype=torch.float64)
    rounded = (p + torch.tensor([0.0] * 400 + [1e-7, -1e-7], dtype=torch.float64)).log()
    for shift, told in ((1e-8, True), (1e-4, False)):
        distance, rounding = explain(p.log(), rounded, fixed(400e-6 + 0.5 + shift), 0, (400, 401))
        assert distance == pytest.approx(shift, rel=1e-3) and (distance <= SLACK * rounding) == told


#: Methods and variants that were added after the comparison was last made.
AWAITED = {"SuffixDecoding, chains", "Lookahead, prompt"}


@pytest.mark.parametrize("name, prompts", [("losslessness", 1000), ("losslessness-smollm2", 200)])
def test_every_variant_was_compared_on_all_prompts_and_no_output_differs(name, prompts):
    compared = json.loads((paths.DATA / "results" / "cpu" / f"{name}.json").read_text(encoding="utf-8"))
    found = {row["method"] for row in compared["counts"] if row["sampling"] == "greedy"}
    assert set(lossless_names()) - found == AWAITED
    assert all(row["outputs"] == prompts and row["mismatches"] == 0 for row in compared["counts"])
    assert compared["provenance"]["parameters"]["max_new_tokens"] == 16
    assert not compared["mismatches"] and not compared["left_out"]


class Liar(Drafter):
    """Proposes nothing, but the wrong token is slipped into the text it is shown."""

    def propose(self, context, limit):
        if len(context.tokens) == context.prompt_length + 3:
            context.tokens[-1] = (context.tokens[-1] + 1) % 90
        return EMPTY


@pytest.fixture
def command(monkeypatch, pair, tmp_path):
    """The command on the tiny pair; gives exit status and what was written."""
    monkeypatch.setattr(losslessness, "METHODS", WITHOUT_STORES)
    monkeypatch.setattr(recorded_runs, "load_pair", lambda *args: (*pair, None))

    def load(half, tasks):
        return [Prompt(f"{tasks[0]}-{i}", tasks[0], (f"{tasks[0]} {i}",)) for i in range(3)]

    monkeypatch.setattr(losslessness.prompts, "load", load)
    monkeypatch.setattr(
        "specdec_lib.experiments.data.prompt.render", lambda one, tokenizer: prompt(sum(map(ord, one.text)) % 50, 12)
    )

    def run(*arguments: str):
        place = tmp_path / "losslessness.json"
        sizes = ["--prompts", "4", "--max-new-tokens", "10", "--seeds", "1"]
        status = main(["losslessness", *sizes, "--output", str(place), *arguments])
        return status, json.loads(place.read_text()) if place.exists() else None

    return run


def test_the_command_counts_every_method_and_way_of_sampling_with_provenance(command, tmp_path):
    status, written = command("--seeds", "2")
    assert status == 0 and written["unexplained"] == 0 and written["mismatches"] == []
    rows = {(row["method"], row["sampling"]): row for row in written["counts"]}
    sampled = {(name, "sampled") for name in lossless_names() if not name.startswith("SpecDec")}
    assert set(rows) == {(name, "greedy") for name in lossless_names()} | sampled
    for (_, how), row in rows.items():
        assert row["outputs"] == (4 if how == "greedy" else 8) and row["tokens"] == 10 * row["outputs"]
        assert row["mismatches"] == row["explained"] == 0
    assert written["provenance"]["versions"]["torch"] == metadata.version("torch")
    assert written["provenance"]["parameters"]["prompts"] == 4
    assert [p.name for p in tmp_path.iterdir()] == ["losslessness.json"]


def test_only_the_named_methods_are_compared(command):
    status, written = command("--method", "PLD", "--method", "PLD (transformers' variant)")
    assert status == 0
    assert {row["method"] for row in written["counts"]} == {"PLD", "PLD (transformers' variant)"}
    with pytest.raises(ValueError, match="names has 'a rumour'; expected some of PLD"):
        losslessness.compare_all(None, [], [], 1, names=["a rumour"])


def test_the_command_fails_on_a_mismatch_and_says_where(command, monkeypatch, capsys):
    lying = Method("lying", "Changes a token.", Liar, lambda bench: Liar())
    monkeypatch.setattr(losslessness, "METHODS", losslessness.METHODS | {"lying": lying})
    status, written = command()
    assert status == 1 and written["unexplained"] == len(written["mismatches"]) > 0
    assert {m["method"] for m in written["mismatches"]} == {"lying"}
    assert all(m["position"] >= 3 and not m["explained"] for m in written["mismatches"])
    assert "rounding does not explain" in capsys.readouterr().err
