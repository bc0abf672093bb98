"""Policies and heads on the same outputs: drafts as arithmetic, what is counted, chosen, compared and timed."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from specdec_lib import Sampling, generate, load_model, record, replay
from specdec_lib.chapters.ch05_specdec_pp import policies as chapter
from specdec_lib.chapters.ch05_specdec_pp.draft_passes import (
    HeadPredictions,
    coupled_draft,
    draft_along,
    draft_along_all,
    play,
    rounds,
)
from specdec_lib.chapters.ch05_specdec_pp.policies import (
    MEAN_SPEED,
    Output,
    PolicyComparison,
    baselines,
    fit_forward_times,
    in_sets,
    oracle_calls,
    play_all,
    probability_transform,
    uniform_p_value,
    with_heads,
)
from specdec_lib.drafters import AdaptiveDraftModel, DraftModel, PromptLookup, SpecDecPP, stopping
from specdec_lib.experiments.data.prompt import Prompt
from specdec_lib.experiments.runs import all_cores
from specdec_lib.experiments.runs.recorded_runs import Recording
from specdec_lib.experiments.runs.results import rate, ratio
from specdec_lib.experiments.statistics.intervals import pooled_rate, ratio_of_means
from specdec_lib.models.draft_vocabulary import DraftVocabulary
from tests.chaos import RULES, CountingClock, greedy_agreement, head_of
from tests.families import bounded, cut, perturbed, prompt


@pytest.fixture(scope="module")
def pair(llama):
    return llama, perturbed(llama)


@pytest.fixture(scope="module")
def traces(pair):
    """Outputs that end at the length asked for, at an end token inside drafts, and at the context's end."""
    whole = record(pair[0], prompt(1, 25), max_new_tokens=50)
    return [
        whole,
        record(pair[0], prompt(2, 1), max_new_tokens=40),
        record(pair[0], prompt(1, 25), max_new_tokens=50, eos_token_id=whole.tokens[17]),
        record(pair[0], prompt(3, 100), max_new_tokens=60),
    ]


def steps(trace, drafter):
    return [(s.drafted, s.accepted, len(s.tokens)) for s in replay(trace, drafter).steps]


def counted(passed, rule, **bounds):
    return [(part.count, kept, emitted) for part, kept, emitted in rounds(passed, rule, **bounds)]


@pytest.mark.parametrize("name", [*RULES, "fixed"])
def test_rounds_are_those_of_the_drafter(pair, traces, name):
    make = RULES.get(name, lambda: stopping.FixedLength(5))
    for bounds in ({}, {"min_tokens": 3, "max_tokens": 7}):
        real, mine, played = make(), make(), make()
        lengths = set()
        for trace in traces:
            expected = steps(trace, AdaptiveDraftModel(pair[1], real, **bounds))
            passed = draft_along(trace, pair[1])
            assert counted(passed, mine, **bounds) == expected
            tally, sums = play(passed, played, **bounds), np.sum(expected, axis=0).tolist()
            assert [tally.drafted, tally.accepted, tally.tokens] == sums and tally.calls == len(expected)
            assert tally.passes == tally.drafted
            lengths |= {drafted for drafted, _, _ in expected}
        assert len(lengths) > 2 or name == "fixed"


def test_outputs_side_by_side_do_not_see_each_other(pair, traces):
    sampled = record(pair[0], prompt(1, 12), Sampling(0.7), 16)
    some = [*traces, sampled]
    for trace, found in zip(some, draft_along_all(some, pair[1], 7, pair[0]), strict=True):
        alone = draft_along(trace, pair[1], 7, pair[0])
        assert found.trace is trace
        for name, expected in vars(alone).items():
            if isinstance(expected, np.ndarray | torch.Tensor):
                np.testing.assert_allclose(getattr(found, name), expected, rtol=1e-3, atol=1e-4, err_msg=name)


def test_a_draft_of_fewer_tokens_is_followed_in_its_own_vocabulary(pair, traces):
    target, ids = pair[0], range(0, traces[0].token_ids or traces[0].vocabulary, 2)
    small = cut(pair[1], ids)
    small.draft_vocabulary = DraftVocabulary(list(ids))
    lengths = set()
    for trace in traces:
        expected = steps(trace, AdaptiveDraftModel(small, stopping.Confidence(0.02)))
        assert counted(draft_along(trace, small), stopping.Confidence(0.02)) == expected
        lengths |= {drafted for drafted, _, _ in expected}
    assert len(lengths) > 2
    sampled = record(target, prompt(1, 12), Sampling(0.7), 16)
    found = draft_along(sampled, small, 9, target)
    odd = np.array(sampled.tokens) % 2 == 1
    assert odd.any() and not found.agreement[odd].any()


@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("sees", [False, True])
def test_rounds_and_passes_of_specdec_pp_are_those_of_the_drafter(pair, traces, newest, sees):
    head, behind = head_of(pair[1], sees), 0
    for trace in traces:
        judged = HeadPredictions.of(draft_along(trace, pair[1]), head)
        for h in (0.4, 0.9):
            drafter, rule = SpecDecPP(pair[1], head, h, 1, 9, newest), stopping.PredictedRejection(h, newest)
            made, choose = [], drafter._choose
            # Each pass of the draft model ends with a choice.
            drafter._choose = lambda *given, made=made, inner=choose: made.append(1) or inner(*given)
            assert counted(judged, rule, max_tokens=9) == steps(trace, drafter)
            found = play(judged, rule, 1, 9)
            assert found.passes == len(made)
            behind += found.passes - found.drafted
    assert (behind > 0) == newest


def test_the_oracle_discards_nothing_and_calls_as_the_lemma_says(pair, traces):
    for trace in traces:
        passed = draft_along(trace, pair[1])
        agreement = greedy_agreement(pair[1], trace.prompt, trace.tokens)
        assert passed.agreement.tolist() == agreement.tolist()
        rule = chapter.Oracle(agreement, len(trace.prompt))
        found = play(passed, rule, 0, 20)
        assert found.drafted == found.accepted
        (needed,), (stated,), (last,) = chapter.Lemma.of([agreement])
        assert stated - needed == last and needed == oracle_calls(agreement[1:]) <= found.calls
        assert counted(passed, rule, min_tokens=0) == steps(trace, AdaptiveDraftModel(pair[1], rule, 0))
        assert all(found.calls <= play(passed, stopping.FixedLength(k)).calls for k in (1, 4, 20))


def test_a_draft_past_the_length_it_is_served_to_is_silent(library):
    draft = bounded(64)
    trace = record(library["mistral"], prompt(2, 56), max_new_tokens=20)
    found = counted(draft_along(trace, draft), stopping.FixedLength(4))
    assert found == steps(trace, AdaptiveDraftModel(draft, stopping.FixedLength(4), max_tokens=4))
    assert found[-1][0] == 0


def test_examples_are_first_choices_behind_the_recorded_text(pair, traces):
    trace = traces[0]
    found = draft_along(trace, pair[1]).examples()
    with torch.inference_mode():
        rows = pair[1](torch.tensor([trace.prompt + trace.tokens])).logits[0, len(trace.prompt) - 1 : -1]
        for i in (0, 7, 30):
            text = torch.tensor([[*trace.prompt, *trace.tokens[:i], int(rows[i].argmax())]])
            state = pair[1](text, output_hidden_states=True).hidden_states[-1][0, -1]
            torch.testing.assert_close(found.states[i], state, rtol=1e-3, atol=1e-4)
    assert found.acceptance.tolist() == (rows.argmax(-1) == torch.tensor(trace.tokens)).float().tolist()
    torch.testing.assert_close(found.confidence, rows.softmax(-1).max(-1).values, rtol=1e-3, atol=1e-5)


def test_what_cannot_be_known_in_advance_is_refused(pair, traces):
    sampled = record(pair[0], prompt(1, 5), Sampling(0.7), max_new_tokens=4)
    passed = draft_along(traces[0], pair[1], 4)
    for call, words in (
        (lambda: draft_along(sampled, pair[1]), "the trace was sampled"),
        (lambda: draft_along(traces[0], pair[1], 1), "depth is 1"),
        (lambda: play(passed, stopping.FixedLength(5), 1, 5), "max_tokens is 5, but drafts were followed to 4"),
        (lambda: play(passed, stopping.PredictedRejection(), 1, 4), "needs predictions of acceptance"),
    ):
        with pytest.raises(ValueError, match=words):
            call()


def test_drafted_tokens_given_the_targets_follow_the_draft_models_distribution():
    rng = torch.Generator().manual_seed(0)
    p, q = torch.rand(2, 6, dtype=torch.float64, generator=rng).pow(2)
    p, q = p / p.sum(), q / q.sum()
    many = 40_000
    tokens = torch.multinomial(p, many, replacement=True, generator=rng)
    drafted, acceptance = coupled_draft(p.expand(many, -1), q.expand(many, -1), tokens, Sampling(1.0), 0)
    error = 4 / many**0.5
    shares = torch.bincount(drafted, minlength=6) / many
    assert (shares - q).abs().max() < error
    # Rejection sampling keeps a drafted token with probability sum min(p, q), and shows the target's otherwise.
    kept = torch.minimum(p, q).sum()
    assert abs((drafted == tokens).double().mean() - kept) < error and abs(acceptance.mean() - kept) < error
    assert torch.equal(acceptance, (p / q).clamp(max=1)[drafted])
    same, _ = coupled_draft(p.expand(9, -1), p.expand(9, -1), tokens[:9], Sampling(1.0), 0)
    assert torch.equal(same, tokens[:9])


@pytest.mark.parametrize("rule", [
    stopping.FixedLength(4), pytest.param(stopping.Confidence(0.05), marks=pytest.mark.slow),
    pytest.param(stopping.PredictedRejection(0.6), marks=pytest.mark.slow),
], ids=lambda rule: type(rule).__name__)  # fmt: skip
def test_counts_of_sampled_outputs_are_distributed_as_those_of_the_drafter(pair, rule):
    head = head_of(pair[1])
    drafter = AdaptiveDraftModel(pair[1], rule, 2, 9, head)
    live, counted_ = [], []
    for seed in range(50):
        sampling = Sampling(0.7, seed=seed)
        run = generate(pair[0], prompt(1, 12), drafter, sampling, 16)
        live.append((len(run.steps), sum(s.drafted for s in run.steps), sum(s.accepted for s in run.steps)))
        trace = record(pair[0], prompt(1, 12), sampling, 16)
        passed = draft_along(trace, pair[1], 9, pair[0])
        found = play(HeadPredictions.of(passed, head), rule, 2, 9)
        counted_.append((found.calls, found.drafted, found.accepted))
        assert found.tokens == len(trace.tokens) - 1
    live, mine = np.array(live, float), np.array(counted_, float)
    error = np.sqrt((live.var(0) + mine.var(0)) / len(live))
    assert (np.abs(live.mean(0) - mine.mean(0)) < 4 * error).all() and live.std(0).min() > 0


TIMES = (0.02, 0.1, 0.09)


SETS = {"a": "task 0", "b": "task 1"}


def outputs_of(target, small, sampling=Sampling(), seeds=1):
    made = []
    for place in range(8):
        own = SimpleNamespace(task=f"task {place // 4}", id=str(place))
        for seed in range(seeds):
            trace = record(target, prompt(place, 12), replace(sampling, seed=seed), 24)
            made.append(Output(Recording(own, 0, trace), draft_along(trace, small, 20, target)))
    return made


@pytest.fixture(scope="module")
def outputs(llama):
    """Eight outputs of two sets."""
    return outputs_of(llama, perturbed(llama))


@pytest.fixture(scope="module")
def policies(llama):
    """All rules, and a head of two training seeds."""
    heads = [head_of(perturbed(llama)), head_of(perturbed(llama))]
    with torch.no_grad():
        heads[0].out.bias -= 1.0  # untrained heads; each says something else
    return [*baselines(), *with_heads("SpecDec++", heads, [0.3, 0.8])]


@pytest.fixture(scope="module")
def comparison(outputs, policies):
    return PolicyComparison(in_sets(play_all(outputs, policies), SETS), TIMES)


def speed_of(outputs, policy, places):
    """Speed-up of each of some outputs, counted afresh."""
    tallies = []
    for place in places:
        passed = outputs[place].passed
        shown = HeadPredictions.of(passed, policy.heads[0]) if policy.heads else passed
        tallies.append(play(shown, policy.make(passed), policy.least))
    draft, target, alone = TIMES
    return np.array([alone * t.tokens / (draft * t.passes + target * t.calls) for t in tallies])


def test_every_family_is_played_and_none_beats_the_oracle(comparison, policies):
    speed = comparison.first.groupby("method", sort=False).speed.mean()
    assert list(speed.index) == [policy.name for policy in policies]
    assert (speed <= speed["oracle"] + 1e-12).all()
    settings = [policy.setting for policy in policies if policy.family == "fixed K"]
    assert settings == [f"K = {k}" for k in chapter.PAPER_LENGTHS]
    assert comparison.by_length("passes").shape == (20, 8)
    assert (comparison.by_length("drafted")[0] <= comparison.by_length("passes")[0]).all()  # K = 1


def test_a_policy_is_played_as_its_rule(outputs, policies):
    heads = next(policy.heads for policy in policies if policy.heads)
    (policy,) = with_heads("newest", heads, [0.9], check_newest=True)
    assert policy.name == "newest, h = 0.9" and policy.least == 1
    found = play_all(outputs, [policy])
    assert found["head"].tolist() == [0] * 8 + [1] * 8
    for row, one in zip(found.itertuples(), outputs * 2, strict=True):
        expected = play(HeadPredictions.of(one.passed, heads[row.head]), stopping.PredictedRejection(0.9, True))
        assert (row.tokens, row.passes, row.drafted) == (expected.tokens, expected.calls, expected.drafted)
        assert (row.accepted, row.draft_passes) == (expected.accepted, expected.passes)
        assert row.tokens == len(one.recording.trace.tokens) - 1


def test_policies_played_at_once_are_those_played_one_by_one(outputs, policies, monkeypatch):
    monkeypatch.setattr(all_cores, "ALONE_SECONDS", 0.0)
    some = policies[::9]
    alone = pd.concat([play_all(outputs, [policy]) for policy in some], ignore_index=True)
    pd.testing.assert_frame_equal(play_all(outputs, some), alone)
    # A policy that never drafts decodes plainly.
    silent = chapter.Policy("silent", "", lambda passed: chapter.Oracle([], 0), least=0)
    found = chapter.with_speed(play_all(outputs, [silent]), *TIMES)
    assert (found.passes == found.tokens).all() and found.speed.tolist() == pytest.approx([0.9] * 8)


def test_settings_are_chosen_on_every_second_prompt_and_compared_on_the_others(comparison, outputs, policies):
    assert [place for place in range(8) if comparison.plays.tuning[place]] == [0, 2, 4, 6]
    assert (comparison.plays.discarded == comparison.plays.drafted - comparison.plays.accepted).all()
    for family in ("fixed K", "SpecDec++"):
        own = [policy for policy in policies if policy.family == family]
        means = {policy.name: speed_of(outputs, policy, [4, 6]).mean() for policy in own}
        assert means[comparison.fastest(family, "b")] == pytest.approx(max(means.values()))
        of_both = {}
        for policy in own:
            a, b = (speed_of(outputs, policy, places).mean() for places in ([0, 2], [4, 6]))
            best = [max(speed_of(outputs, one, places).mean() for one in own) for places in ([0, 2], [4, 6])]
            of_both[policy.name] = min(a / best[0], b / best[1])
        assert of_both[comparison.single(family)] == pytest.approx(max(of_both.values()))
    rows = comparison.rows("oracle", "b")
    assert set(rows.prompt) == {"5", "7"} and len(rows) == 2 * comparison.seeds


def test_what_another_threshold_keeps_is_of_the_set_that_loses_most(comparison, outputs, policies):
    own = [policy for policy in policies if policy.family == "SpecDec++"]
    halves = {"a": ([0, 2], [1, 3]), "b": ([4, 6], [5, 7])}

    def best(name, half):
        return max(own, key=lambda one: speed_of(outputs, one, halves[name][half]).mean())

    def kept(name, chosen):
        """Both halves choose, and the other one is judged."""
        totals = np.zeros(2)
        for half in (0, 1):
            for side, policy in enumerate((chosen(half), best(name, half))):
                speeds = [speed_of(outputs, replace(policy, heads=(h,)), halves[name][1 - half]) for h in policy.heads]
                totals[side] += np.mean(speeds)
        return totals[0] / totals[1]

    for policy in own:
        found = comparison.least_kept(lambda half, policy=policy: policy.name)
        assert found.value == pytest.approx(min(kept(name, lambda half, policy=policy: policy) for name in halves))
    pairs = (("a", "b"), ("b", "a"))
    expected = min(kept(name, lambda half, other=other: best(other, half)) for other, name in pairs)
    assert comparison.least_transferred().value == pytest.approx(expected)


def test_each_half_of_the_prompts_chooses_for_the_other(comparison, outputs, policies):
    families = ("fixed K", "confidence")
    own = [policy for policy in policies if policy.family in families]
    found = comparison.crossed_rows({"best of two": families, "oracle": "oracle"})
    assert found.method.value_counts().to_dict() == {"best of two": 16, "oracle": 16}  # 8 outputs, 2 training seeds
    speeds = rate(found[found.method == "best of two"], MEAN_SPEED, by="task")
    for name, (first, second) in {"a": ([0, 2], [1, 3]), "b": ([4, 6], [5, 7])}.items():
        expected = []
        for chosen, compared in ((first, second), (second, first)):
            best = max(own, key=lambda one, chosen=chosen: speed_of(outputs, one, chosen).mean())
            expected += speed_of(outputs, best, compared).tolist()
        assert speeds[name].value == pytest.approx(np.mean(expected)) and speeds[name].prompts == 4


def test_a_length_is_matched_by_a_point_no_worse_in_both_rates():
    ours = np.array([[0.5, 0.2], [0.3, 0.6]])
    theirs = np.array([[0.5, 0.2], [0.4, 0.5], [0.6, 0.3], [0.2, 0.9], [0.9, 0.1]])
    # The last two have a rate lower than all of ours; of the others, the second is better than each of ours in one rate.
    assert chapter.gaps_within(ours, theirs) == pytest.approx([1, 1.2, 5 / 6])
    assert len(chapter.gaps_within(ours, theirs[3:])) == 0
    # A rate of zero is matched by zero alone.
    assert chapter.gaps_within(np.array([[0.5, 0.0]]), np.array([[0.5, 0.0], [0.6, 0.0]])).tolist() == [1, 1]
    assert chapter.gaps_within(np.array([[0.5, 0.1], [0.9, 0.0]]), np.array([[0.6, 0.0]])) == pytest.approx([1.5])


def test_a_front_is_of_the_rates_over_all_training_seeds_with_an_interval_over_prompts(comparison):
    found, rates = comparison.front("b"), comparison.rates().loc["b"]
    own = comparison.plays[(comparison.plays.method == "SpecDec++, h = 0.8") & (comparison.plays.task == "b")]
    assert set(own["head"]) == {0, 1}
    assert rates.passes["SpecDec++", "SpecDec++, h = 0.8"] == pytest.approx(own.passes.sum() / own.tokens.sum())
    gaps = chapter.gaps_within(rates.loc["SpecDec++"].to_numpy(), rates.loc["any fixed K"].to_numpy())
    assert found.within == len(gaps) and found.gap.prompts == 4
    if len(gaps):
        assert (found.share, found.gap.value) == pytest.approx(((gaps <= 1).mean(), gaps.mean()))
    else:
        assert np.isnan([found.share, found.gap.value]).all()


def test_rates_of_a_policy_are_its_sums_over_tokens(comparison):
    own = comparison.plays[(comparison.plays.method == "fixed K, K = 4") & (comparison.plays.task == "b")]
    found = comparison.rates().loc["b", "fixed K", "fixed K, K = 4"]
    assert found.tolist() == pytest.approx(
        [own.passes.sum() / own.tokens.sum(), own.discarded.sum() / own.tokens.sum()]
    )
    speeds = np.array([[1.0, 4.0], [2.0, 2.0]])
    assert [chapter.best_length(speeds), chapter.best_length(speeds, [0])] == [1, 2]


def test_a_head_is_compared_with_those_of_all_training_seeds(comparison, outputs, policies):
    judged = comparison.held_out_rows()
    named = {policy.name: policy for policy in policies}
    ours, theirs = (named[comparison.fastest(family, "b")] for family in ("SpecDec++", "fixed K"))
    assert comparison.seeds == len(ours.heads) == 2
    each = np.concatenate([speed_of(outputs, replace(ours, heads=(head,)), [5, 7]) for head in ours.heads])
    fixed = np.tile(speed_of(outputs, theirs, [5, 7]), 2)
    expected = ratio_of_means(each, fixed, [5, 7, 5, 7])
    assert ratio(judged, "SpecDec++", "fixed K", MEAN_SPEED, by="task")["b"] == pytest.approx(expected)
    assert comparison.over(ours.name, theirs.name, "b") == pytest.approx(expected)
    speed = rate(judged[judged.method == "SpecDec++"], MEAN_SPEED, by="task")["b"]
    assert speed == pytest.approx(pooled_rate((each, np.ones(4)), [5, 7, 5, 7]))
    # Without a head each seed has the same row, so the interval is that of one.
    once = PolicyComparison(comparison.first, TIMES)
    assert comparison.over("oracle", theirs.name) == pytest.approx(once.over("oracle", theirs.name))


def test_at_other_times_settings_are_chosen_anew(comparison):
    dear = comparison.at(1.0, 1.0)
    assert dear.fastest("any fixed K", "a") == "any fixed K, K = 1" and comparison.times == TIMES
    assert dear.times == (1.0, 1.0, TIMES[2]) and comparison.at(0.1, 1.0, 0.5).times[2] == 0.5
    assert dear.rows("oracle").speed.mean() < comparison.rows("oracle").speed.mean()
    lengths = [int(comparison.at(0.1 * f, 1.0).fastest("any fixed K").split()[-1]) for f in (4, 1, 0.25)]
    assert lengths == sorted(lengths)  # a quicker draft model never shortens the best length


def test_outputs_of_one_prompt_stay_in_one_half(llama):
    small = perturbed(llama)
    found = in_sets(play_all(outputs_of(llama, small, Sampling(0.7), seeds=2)[:8], baselines()[:1]), SETS)
    assert found.tuning.tolist() == [True, True, False, False] * 2 and set(found.task) == {"a"}
    assert found.seed.tolist() == [0, 1] * 4 and found.prompt.nunique() == 4


def test_the_heads_of_a_pair_come_with_it_and_serve_its_draft_model_alone():
    (model, _), (small, _) = load_model("pocket", "cpu"), load_model("pocket-draft", "cpu")
    paper, seeing = chapter.shipped_heads(model, small)
    assert paper and seeing
    assert not any(head.sees_confidence for head in paper) and all(head.sees_confidence for head in seeing)
    with pytest.raises(ValueError, match="holds no heads of this draft model; train some"):
        chapter.shipped_heads(model, model)


def test_tokens_are_those_that_decoding_meets_with_what_heads_say_of_them(llama):
    small = perturbed(llama)
    head = head_of(small)
    head.story["training"] = {"reject_weight": 6.0}
    outputs = outputs_of(llama, small)[3:5]
    passes = [one.passed for one in outputs]
    found = chapter.drafted_token_rows(outputs, {"one": head})
    assert found.accepted.tolist() == np.concatenate([p.agreement for p in passes]).astype(float).tolist()
    assert found.prompt.tolist() == [name for name, p in zip("34", passes, strict=True) for _ in p.agreement]
    assert found.place.tolist() == [place for p in passes for place in range(len(p.agreement))]
    own = passes[1].examples()
    said = chapter.without_loss_weight(head.probability(own.states, own.confidence), 6.0)
    assert found.one[found.prompt == "4"].tolist() == pytest.approx(said.tolist())
    assert found.confidence[found.prompt == "4"].tolist() == pytest.approx(own.confidence.tolist())


class FromText:
    """A tokenizer that reads the numbers of a text as token ids."""

    def __call__(self, text):
        return {"input_ids": [int(part) for part in text.split()]}

    def decode(self, tokens, **kwargs):
        return ""


def test_real_runs_are_counted_as_played_and_sampled_text_is_tested(llama, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    small = perturbed(llama)
    head = head_of(small)
    asked = [Prompt(str(s), "t", (" ".join(map(str, prompt(s, 9))),), chat=False) for s in range(2)]
    drafters = {"SpecDec++, h = 0.6": SpecDecPP(small, head, 0.6)}
    policies = with_heads("SpecDec++", [head], [0.3, 0.6])
    found = chapter.decoded_rows(llama, FromText(), small, asked, drafters, policies, 20)
    assert not found.apart.any() and not found.unexplained.any() and found.prompt.tolist() == ["0", "1"]
    other = chapter.decoded_rows(
        llama, FromText(), small, asked, {"SpecDec++, h = 0.6": DraftModel(small, 7)}, policies, 20
    )
    assert other.apart.any() and not other.unexplained.any()

    samplings = [Sampling(0.8, seed=1), Sampling(1.0, seed=1)]
    found = chapter.distribution_test_rows(llama, FromText(), asked, drafters, samplings, 20)
    assert found.temperature.tolist() == [0.8, 1.0] * 2 and (found.p_value > 1e-3).all()


def test_prompts_whose_files_are_not_here_are_the_books_own_of_the_same_kind(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECDEC_DATASETS", str(tmp_path))
    found = chapter.prompts_of_sets({"conversation": "alpaca", "code": "code editing"}, 2)
    assert [one.task for one in found] == ["conversation"] * 2 + ["code editing"] * 2
    assert all(len(one.turns) == 1 for one in found)


def test_reweighting_undoes_the_weight_of_the_loss():
    p = np.linspace(0.01, 0.99, 9)
    np.testing.assert_allclose(chapter.without_loss_weight(p / (p + 6 * (1 - p)), 6), p)
    np.testing.assert_allclose(chapter.without_loss_weight(torch.from_numpy(p), 1), p)


def test_the_cost_of_a_head_and_passes_in_turns_are_timed_by_the_clock_of_the_devices(llama, monkeypatch):
    asked = []
    monkeypatch.setattr(chapter, "clock_of", lambda devices: asked.append(set(devices)) or CountingClock(0.5))
    spent = chapter.head_cost(llama, head_of(llama), prompt(1, 9), 2, 2)
    assert spent == {"draft": 0.5, "capture": 0.0, "head": 0.5, "share": (1.0, 1.0, 1.0, 2)} and asked == [
        {llama.device}
    ]
    monkeypatch.setattr(chapter, "clock_of", lambda devices: CountingClock(0.5))
    assert chapter.alone_over_in_turns(llama, perturbed(llama), 3, 1, 8, 4)[:3] == (1.0, 1.0, 1.0)


def test_counts_and_widths_are_those_of_the_steps(llama):
    run = replay(record(llama, prompt(1, 25), max_new_tokens=30), PromptLookup(num_tokens=3))
    steps = [replace(s, draft_seconds=0.5, verify_seconds=1.0 + s.drafted, host_seconds=0.0) for s in run.steps]
    slow, quick = replace(run, steps=steps), replace(run, steps=[replace(s, draft_seconds=0.1) for s in steps])
    forwards, seconds = chapter.forward_counts([slow])
    drafted = sum(s.drafted for s in steps)
    assert forwards.tolist() == [[drafted, len(steps)]]
    assert seconds == pytest.approx([sum(0.5 + 1.0 + s.drafted + s.commit_seconds for s in steps)])
    assert chapter.seconds_by_width([slow]) == {w: float(w) for w in sorted({s.drafted + 1 for s in steps})}
    assert chapter.fastest_runs([[slow], [quick]]) == [quick]


def test_fits_have_intervals_and_sets_of_one_cost_have_no_spread():
    rng = np.random.default_rng(3)
    counts = rng.integers(1, 30, (40, 2))
    exact = counts @ np.array([0.02, 0.1])
    assert chapter.fit_with_intervals(counts, exact).r_squared.low == pytest.approx(1)
    noisy_seconds = exact * rng.lognormal(0, 0.3, 40)
    noisy, alone = chapter.fit_with_intervals(counts, noisy_seconds), fit_forward_times(counts, noisy_seconds)
    assert noisy.r_squared.low < noisy.r_squared.value < noisy.r_squared.high < 1
    assert [one.value for one in noisy.seconds] == pytest.approx(alone.seconds)
    assert all(one.low <= one.value <= one.high for one in noisy.seconds)
    halves = [(counts[:20], exact[:20]), (counts[20:], exact[20:])]
    assert chapter.spread_share(halves).value == pytest.approx(0, abs=1e-9)
    halves[1] = (counts[20:], counts[20:] @ np.array([0.04, 0.1]))
    assert chapter.spread_share(halves).value == pytest.approx(np.std([0.02, 0.04], ddof=1) / 0.03)


def test_runs_of_equally_many_passes_leave_it_open_how_much_a_fit_explains():
    counts, seconds = np.full((3, 1), 15), np.array([1.0, 1.2, 1.1])
    fit = chapter.fit_with_intervals(counts, seconds)
    assert fit.seconds[0].value == pytest.approx(1.1 / 15)
    assert not fit.r_squared.known and np.isnan(fit.r_squared.value)
    # One run of another length determines it, and the samples without that run do not lower its interval to zero.
    counts[2] = 30
    fit = chapter.fit_with_intervals(counts, np.array([1.0, 1.2, 2.2]))
    assert fit.r_squared.value == pytest.approx(1 - 0.02 / np.var([1.0, 1.2, 2.2]) / 3)
    assert fit.r_squared.low > 0.9


def test_a_spread_lies_within_its_interval():
    """Also where noise alone makes the spread of every sample larger than that of the sets."""
    rng = np.random.default_rng(5)
    counts = rng.integers(1, 30, (60, 2))
    alike = [(own, own @ np.array([0.02, 0.1]) * rng.lognormal(0, 0.2, 20)) for own in np.split(counts, 3)]
    for pair in ([alike[0], alike[1]], [alike[1], alike[2]], [alike[0], alike[0]]):
        spread = chapter.spread_share(pair)
        assert 0 == spread.low <= spread.value <= spread.high
    apart = chapter.spread_share([(counts, counts @ np.array([each, 0.1])) for each in (0.02, 0.04)])
    assert 0 < apart.low <= apart.value + 1e-9 and apart.value - 1e-9 <= apart.high


def test_text_that_follows_the_target_gives_uniform_numbers_and_other_text_does_not(llama):
    drafter, sampling = SpecDecPP(perturbed(llama), head_of(perturbed(llama)), 0.6), Sampling(0.9)
    numbers, cold = [], []
    for seed in range(12):
        ids, own = prompt(seed, 10), Sampling(0.9, seed=seed)
        numbers.append(probability_transform(llama, ids, generate(llama, ids, drafter, own, 24).tokens, sampling, seed))
        cold.append(
            probability_transform(llama, ids, generate(llama, ids, None, Sampling(0.5, seed=seed), 24).tokens, sampling)
        )
    assert all(((part >= 0) & (part <= 1)).all() for part in numbers)
    assert uniform_p_value(np.concatenate(numbers)) > 1e-3
    assert uniform_p_value(np.concatenate(cold)) < 1e-6


def test_the_p_value_is_as_small_as_it_says_as_often_as_it_says():
    rng = np.random.default_rng(0)
    found = np.array([uniform_p_value(rng.random(60)) for _ in range(800)])
    for level in (0.05, 0.5):
        assert abs((found < level).mean() - level) < 4 * np.sqrt(level * (1 - level) / 800)
