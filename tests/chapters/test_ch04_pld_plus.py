"""PLD+'s copies: attribution against runs made by hand, hindsight against all sequences of choices, rules on answers of others."""

import math
from collections import Counter
from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_lib import Capture, DraftTree, UnsupportedModel, load_model, paths, replay
from specdec_lib.chapters import ch04_pld_plus as plus
from specdec_lib.chapters.ch04_pld_plus import Alignment, copying_scores
from specdec_lib.decoding.contract import Context, Drafter
from specdec_lib.decoding.results import Generation, Step
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.decoding.served_models import context_limit
from specdec_lib.decoding.teacher_forcing import record_known
from specdec_lib.decoding.tree import EMPTY
from specdec_lib.drafters import PromptLookup, PromptLookupHidden
from specdec_lib.experiments.data.overlap import overlap
from specdec_lib.experiments.data.prompt import Prompt
from specdec_lib.experiments.data.published_sets.replies import Reply
from specdec_lib.experiments.data.tasks import load_task
from specdec_lib.experiments.runs import papers_prompts, results, row_files
from specdec_lib.experiments.runs.recorded_runs import replay_all
from specdec_lib.experiments.runs.recordings import record_once
from specdec_lib.experiments.runs.retrieval import record_replies
from specdec_lib.heads import induction
from tests import families
from tests.experiments.made import made_up


def step(draft, accepted, own=1, source=None):
    tree = DraftTree.chain(draft, copied_from=source)
    return Step(tree, tuple(range(accepted)), (*draft[:accepted], *[9] * own), 0.0, 0.0, 0.0)


STEPS = [step([1, 2, 3, 8], 3, source=4), step([], 0), step([4, 5, 8], 2, source=11), step([6, 7], 2, own=0, source=19)]
RUN = Generation([9, 1, 2, 3, 9, 9, 4, 5, 9, 6, 7], STEPS, "length", 20, 0.0)


@pytest.mark.parametrize("least, expected", [
    (1, [-1, 4, 5, 6, -1, -1, 11, 12, -1, 19, -1]), (2, [-1, 4, 5, 6, -1, -1, 11, 12, -1, 19, -1]),
    (3, [-1, 4, 5, 6, -1, -1, -1, -1, -1, -1, -1]), (4, [-1] * 11),
])  # fmt: skip
def test_accepted_spans_long_enough_come_from_their_source_if_it_is_in_the_prompt(least, expected):
    assert plus.attributed_positions(RUN, least).tolist() == expected


def test_attributed_tokens_stand_where_they_are_attributed_to(library):
    prompt = families.prompt(3, 40, 12)
    drafter = PromptLookupHidden(1, 8)
    answer = [*prompt[10:25], *prompt[3:9], *prompt[20:30]]
    said = record_known(library["llama-gqa"], prompt, answer, "length", None, len(answer), drafter.capture)
    run = replay(said.trace, drafter)
    places = plus.attributed_positions(run, 1)
    assert (places >= 0).any()
    assert all(prompt[p] == t for p, t in zip(places, answer, strict=True) if p >= 0)


def test_counts_are_those_of_tokens_and_what_cannot_be_attributed_is_refused():
    truth = Alignment([1] * 10, [1] * 6, np.array([1, 1, 1, 0, 1, 1], bool), np.array([3, 4, 5, -1, 7, -1]))
    found = plus.attribution_counts(truth, np.array([3, 4, 6, 2, -1, 8, -1]))
    assert found == {"copied": 5, "attributed": 5, "found": 4, "exact": 2, "located": 3}
    with pytest.raises(ValueError, match="does not say where it was copied from"):
        plus.attributed_positions(Generation([1, 2, 3], [step([2], 1)], "length", 1, 0.0), 1)
    with pytest.raises(ValueError, match="1 positions for an answer of 2 tokens"):
        plus.attribution_counts(Alignment([1], [2, 3], np.ones(2, bool), np.zeros(2, int)), np.zeros(1))


def test_answers_are_counted_by_span_and_copies_found_exactly(library):
    prompt = list(range(10, 50))
    answer = [60, *prompt[5:25], 61]
    truth = Alignment(prompt, answer, np.array([0, *[1] * 20, 0], bool), np.array([-1, *range(5, 25), -1]))
    for drafter in (PromptLookup(1, 30, "transformers"), PromptLookupHidden(1, 30, generated=False)):
        rows = plus.attribution_rows(library["llama-gqa"], {"set": [truth, truth]}, drafter, (2, 30))
        assert rows.groupby("least").copied.sum().tolist() == [40, 40]
        # Two answers to one question are no two prompts.
        assert set(rows.prompt) == {0} and set(rows.answer) == {0, 1}

        def score(of, rows=rows):
            return results.rate(rows, of, by="least")

        # The first copied token has no earlier one to be found by, so it is the target's own.
        assert score(plus.RECALL)[2].value == 19 / 20
        assert score(plus.PRECISION)[2].value == score(plus.RIGHT_PLACE)[2].value == 1
        assert score(plus.F1)[2].value == pytest.approx(38 / 39)
        assert score(plus.RECALL)[30].value == 0 and np.isnan(score(plus.PRECISION)[30].value)


def quoting() -> Prompt:
    sources = ((1, "Fish", "Cod live in cold water."), (2, "Birds", "Terns fly far. Cod live."))
    text = "Quote.\n\n[1] Fish\nCod live in cold water.\n\n[2] Birds\nTerns fly far. Cod live.\n\nQuestion: where?"
    meta = {"sources": sources, "quotes": ((1, "Cod live in cold water"), (2, "Cod live"), (2, "gone"))}
    answer = "Cod live in cold water and terns, Cod live"
    return Prompt("q", "quotesum", (text,), chat=True, reference=answer, meta=meta)


def test_quotations_lie_in_their_source_and_tokens_are_copied_where_all_their_characters_are(tokenizer):
    prompt = quoting()
    first, second = prompt.text.index("Cod live in"), prompt.text.rindex("Cod live")
    assert plus.quotations(prompt) == [plus.CopiedSpan(0, first, 22), plus.CopiedSpan(34, second, 8)]
    found = plus.align(prompt, tokenizer, plus.quotations(prompt))
    assert tokenizer.decode(found.answer) == prompt.reference
    done, seen = 0, []
    for token, copied, origin in zip(found.answer, found.copied, found.origin, strict=True):
        end = done + len(tokenizer.decode([token]))
        assert copied == (end <= 22 or done >= 34)
        if origin >= 0:
            assert copied and found.prompt[origin] == token
            seen.append(origin)
        done = end
    assert len(seen) > 5 and len(set(seen)) == len(seen)


@pytest.mark.realdata
def test_nearly_all_quotations_of_quotesum_are_found(tokenizer):
    prompts = load_task("quotesum", limit=100)
    marked = sum(len(prompt.meta["quotes"]) for prompt in prompts)
    spans = [(prompt, span) for prompt in prompts for span in plus.quotations(prompt)]
    assert len(spans) > 0.9 * marked
    for prompt, span in spans:
        assert prompt.reference[span.answer :][: span.length] == prompt.text[span.turn :][: span.length]


def whole_matrix_score(model, block, head, groups, width):
    """Elhage et al.: sum of the eigenvalues over that of their moduli, of the V x V map from token to
    logits."""
    layer = model.model.layers[block]
    with torch.no_grad():
        embed = model.get_input_embeddings().weight.double() * layer.input_layernorm.weight.double()
        unembed = model.get_output_embeddings().weight.double() * model.model.norm.weight.double()
        v = layer.self_attn.v_proj.weight.double()[head // groups * width :][:width]
        o = layer.self_attn.o_proj.weight.double()[:, head * width : (head + 1) * width]
        matrix = (unembed @ o @ v @ embed.T).numpy()
    eigenvalues = np.linalg.eigvals(matrix)
    return eigenvalues.real.sum() / np.abs(eigenvalues).sum()


@pytest.mark.parametrize("family", ["llama", "llama-gqa", "qwen3"])
def test_copying_score_is_that_of_the_whole_matrix(library, family):
    model = library[family]
    scores = copying_scores(model)
    groups = 4 // model.config.num_key_value_heads
    expected = [[whole_matrix_score(model, block, head, groups, 8) for head in range(4)] for block in range(2)]
    assert np.allclose(scores, expected, atol=1e-3)


def test_a_head_that_passes_its_token_on_scores_one_and_one_that_takes_it_away_minus_one(library):
    model = families.build("llama")
    with torch.no_grad():
        model.lm_head.weight.copy_(model.model.embed_tokens.weight)
        for block, sign in ((0, 1), (1, -1)):
            attention = model.model.layers[block].self_attn
            attention.o_proj.weight.copy_(sign * attention.v_proj.weight.T)
            model.model.layers[block].input_layernorm.weight.fill_(1)
        model.model.norm.weight.fill_(1)
    assert np.allclose(copying_scores(model), [[1] * 4, [-1] * 4])
    with pytest.raises(UnsupportedModel, match="v_proj"):
        copying_scores(library["gpt-neox"])


def agreed(draft, coming):
    """How many tokens of a draft come."""
    pairs = enumerate(zip(draft, coming, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(draft), len(coming)))


def fewest_passes(text, prompt_length, longest):
    """Passes after the prefill, the least over every occurrence and every draft length at every step."""

    @cache
    def passes(last):  # position of the last token written
        if last == len(text) - 1:
            return 0
        reached = {last + 1}
        for start in (j for j in range(last) if text[j] == text[last]):
            for length in range(1, min(longest, last - start) + 1):
                accepted = agreed(text[start + 1 : start + 1 + length], text[last + 1 :])
                reached.add(min(last + accepted + 1, len(text) - 1))
        return 1 + min(map(passes, reached))

    return passes(prompt_length)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=9, max_size=40), st.integers(1, 6))
def test_no_sequence_of_occurrences_and_lengths_needs_fewer_passes(text, longest):
    known = made_up(text[:6], text[6:])
    (run,) = plus.replay_hindsight([known], longest)
    assert run.tokens == text[6:]
    assert len(run.steps) == fewest_passes(tuple(text), 6, longest)
    for drafter in (PromptLookup(3, longest), PromptLookup(3, longest, "transformers"), PromptLookup(1, longest)):
        assert len(replay_all([known], drafter)[0].steps) >= len(run.steps)


def test_a_draft_of_no_tokens_is_refused():
    with pytest.raises(ValueError, match="num_tokens is 0"):
        plus.BestOccurrence([1, 2], 0)


class Fixed(Drafter):
    """Copies three tokens from places named by position."""

    def __init__(self, places):
        self.places = places

    def propose(self, context, limit):
        place = self.places.get(len(context.tokens) - 1)
        if place is None:
            return EMPTY
        return DraftTree.chain(context.tokens[place : place + min(limit, 3)], copied_from=place)


def test_the_wrong_occurrence_is_where_the_second_has_most_more_accepted():
    prompt = [1, 2, 3, 4, 5, 1, 6, 7, 8, 9, 20, 21]
    known = made_up(prompt, [1, 6, 7, 8, 30, 31, 1, 2, 40, 41])
    first, second = Fixed({12: 1, 18: 1}), Fixed({12: 6, 18: 6})
    choice = plus.wrong_occurrence([known], first, second)
    assert (choice.position, choice.sources, choice.accepted) == (12, (1, 6), (0, 3))
    assert choice.drafts == ([2, 3, 4], [6, 7, 8])
    assert plus.wrong_occurrence([known], second, second) is None
    assert plus.wrong_occurrence([known], first, second, longest=5) is None


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=12, max_size=40))
def test_a_wrong_occurrence_is_one_in_fact_and_every_token_at_which_one_has_more_accepted_is_counted(text):
    known = made_up(text[:8], text[8:])
    drafters = [PromptLookup(longest, 3, "transformers") for longest in (1, 3)]
    gains = []
    for end in range(9, len(text) - 1):  # with room for a draft and the target's own token
        context, accepted = Context(text[:end], 8, 50, Sampling()), []
        for drafter in drafters:
            drafter.start(context)
            accepted.append(agreed(drafter.propose(context, len(text) - end).tokens, text[end:]))
        gains.append(accepted[1] - accepted[0])
    assert plus.won_and_lost(known, *drafters) == (sum(g > 0 for g in gains), sum(g < 0 for g in gains))
    choice = plus.wrong_occurrence([known], *drafters)
    if choice is not None:
        for source, draft, accepted in zip(choice.sources, choice.drafts, choice.accepted, strict=True):
            assert text[source : source + len(draft)] == draft and text[source - 1] == text[choice.position]
            assert accepted == agreed(draft, text[choice.position + 1 :])
        assert choice.accepted[1] > choice.accepted[0] and choice.sources[0] != choice.sources[1]


def test_a_lead_of_neighbours_is_that_over_all_pairs_of_positions():
    states = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    cosines = torch.cosine_similarity(states[:, None].double(), states[None].double(), dim=-1)
    expected = np.mean([cosines[i, i + 1] for i in range(6)]) - cosines.mean()
    assert plus.neighbour_lead(states) == pytest.approx(float(expected), abs=1e-6)


def runs(method, passes, *, tokens=10, **columns):
    """Rows of one method on outputs to prompts 0, 1, ..., of as many passes."""
    rows = [
        {"task": "t", "prompt": str(i), "turn": 0, "seed": 0, "method": method, "tokens": tokens, "passes": count}
        for i, count in enumerate(passes)
    ]
    return pd.DataFrame(rows).assign(**columns)


def test_methods_are_compared_on_the_outputs_that_all_of_them_have():
    rows = pd.concat([runs("a", [1, 2, 3]), runs("b", [4, 5]), runs("c", [6])])
    assert results.on_common_outputs(rows, ["a", "b"]).passes.tolist() == [1, 2, 4, 5]
    assert results.on_common_outputs(rows, ["a", "b", "c"]).passes.tolist() == [1, 4, 6]


def test_what_decides_is_compared_task_by_task_and_the_closest_rival_is_led_least(monkeypatch):
    monkeypatch.setattr(plus, "published_draft_step", lambda: 1.25)
    passes = {
        "PLD+ (h)": 2, "PLD+ (a)": 4, "PLD": 3, "PLD, partial drafts, 10": 5, "REST": 6, "SpecDec": 2,
        "Lookahead": 7,
    }  # fmt: skip
    costs = {1: 1.0, 11: 2.0}

    def of(scale):
        widths = {name: np.array([0, scale * count]) for name, count in passes.items()}
        return pd.concat([
            runs(name, [scale * count] * 2, drafted=4 * scale).assign(widths=[widths[name]] * 2)
            for name, count in passes.items()
        ]).pipe(results.with_cost, costs)  # fmt: skip

    ratios = plus.ratios_by_task(of(1), of(3), costs)
    found = ratios.loc["t"].map(lambda interval: interval.value)
    assert found["(a) over Lookahead"] == pytest.approx(7 / 4)
    assert ratios.loc["all", "(h) over its closest rival"] == ratios.loc["t", "(h) over its closest rival"]
    assert found["(h) over PLD"] == pytest.approx(3 / 2)
    assert found["(a) over PLD, partial, sampled"] == pytest.approx(5 / 4)
    # SpecDec has the fewest passes, but a step with its draft model takes longer.
    assert found["(h) over its closest rival"] == pytest.approx(min(3, 2 * 1.25) / 2)
    assert found["tokens per pass, (h) over (a)"] == pytest.approx(2)
    assert found["tokens per pass, REST over PLD"] == pytest.approx(3 / 6)


def test_sampled_outputs_are_compared_with_greedy_ones_of_their_prompts_and_drawn_rivals_count_together():
    greedy = runs("a", [2, 4, 100])
    sampled = pd.concat([runs("a", [4, 5], seed=seed) for seed in (1, 2)])
    assert papers_prompts.sampled_over_greedy(sampled, greedy, "a").value == pytest.approx((40 / 18) / (40 / 12))
    rows = pd.concat([runs("ours", [2, 2]), runs("one", [4, 4]), runs("other", [8, 8])])
    assert plus.ratio_to_random(rows, "ours", ["one", "other"]).value == pytest.approx((40 / 8) / (40 / 24))


def test_what_was_drawn_at_random_is_drawn_again_for_all_prompts_together():
    rows = pd.concat([runs("ours", [2, 2]), runs("one", [4, 4]), runs("other", [8, 8])])
    # All prompts are alike, so that only the draw of the two methods spreads: both may be the first, or both the second.
    found = plus.ratio_to_random(rows, "ours", ["one", "other"])
    assert found[1:] == pytest.approx((4 / 2, 8 / 2, 2))
    alone = plus.ratio_to_random(rows, "ours", ["one"])
    assert alone[:3] == pytest.approx((2, 2, 2))


def test_what_longer_drafts_gain_is_ranked_by_spans_on_outputs_with_a_draft():
    drafts, accepted = [1, 1, 1, 1, 0], [1, 2, 3, 4, 0]
    longer = runs("70", [5, 5, 5, 5, 9], drafts=drafts, accepted=accepted)
    shorter = runs("10", [6, 7, 8, 9, 1], drafts=drafts, accepted=accepted)
    assert plus.span_gain(pd.concat([longer, shorter]), "70", "10").value == pytest.approx(1)


def test_scores_change_by_the_difference_of_their_rates():
    spans = pd.DataFrame({"least": [2, 2, 5, 5], "found": [1, 2, 3, 1], "attributed": [2, 4, 3, 1]})
    by_answer = plus.score_change(spans.assign(task="t", prompt=[0, 1, 0, 1]), plus.PRECISION, 5, 2)
    assert by_answer.value == pytest.approx(1 - 0.5) and by_answer.prompts == 2
    assert plus.score_change(spans.assign(task="t", prompt=0), plus.PRECISION, 5, 2).prompts == 1


def test_outputs_are_won_where_fewer_passes_are_needed_and_those_with_as_many_do_not_count():
    rows = pd.concat([runs("ours", [1, 2, 3, 9]), runs("theirs", [2, 3, 3, 8])])
    assert results.won_over_lost(rows, "ours", "theirs").value == pytest.approx(2)


def test_known_answers_have_a_cost_by_the_passes_that_have_a_draft():
    known = pd.concat([runs("pld_10", [4, 8]).assign(pld_10_drafts=2), runs("best_10", [5, 5])])
    # A pass over eleven tokens costs 2 here.
    assert plus.speed_as_released(known, {1: 1.0, 11: 2.0}).value == pytest.approx(20 / (4 + 2 + 8 + 2))


def asked(text):
    return [Prompt(str(i), "code editing", (text[i:],), chat=False) for i in range(2)]


def test_rows_of_heads_credit_them_as_all_runs_together_do_and_places_are_those_of_each_output(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    model, tokenizer = load_model("pocket", "cpu")
    prompts = asked("def add(a, b):\n    return a + b\n" * 3)
    rows = plus.head_credits(model, tokenizer, prompts, 20)
    recordings = record_once(model, tokenizer, prompts, None, 20, induction.every_head(model))
    expected, found = (
        induction.induction_heads(model, [one.trace for one in recordings]),
        plus.induction_heads(rows, model),
    )
    assert found.copied == expected.copied and found.ranked() == expected.ranked()
    assert np.allclose(found.peaks, expected.peaks) and np.allclose(found.attention, expected.attention)

    drafters = {"first": PromptLookup(1, 3, "transformers"), "second": PromptLookup(2, 3, "transformers")}
    places = plus.chosen_places(model, tokenizer, prompts, drafters, 1, 20)
    pairs = [plus.won_and_lost(one, *drafters.values()) for one in recordings]
    assert list(zip(places.won, places.lost, strict=True)) == pairs and set(places.method) == {"second"}
    shared = plus.replayed_with_overlap(model, tokenizer, prompts, drafters, 20, Capture())
    assert shared.overlap.tolist() == 2 * [
        overlap(tokenizer.decode(one.trace.prompt), tokenizer.decode(one.trace.tokens)) for one in recordings
    ]


def grams(words, n):
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def by_hand(prompt, answer):
    """The geometric mean of clipped n-gram precisions; None where one of them is 0, which BLEU smooths."""
    shares = []
    for n in range(1, 5):
        ours, theirs = grams(answer, n), grams(prompt, n)
        if ours:
            shares.append(sum(min(count, theirs[gram]) for gram, count in ours.items()) / ours.total())
    return None if 0 in shares else math.exp(sum(map(math.log, shares)) / len(shares))


@settings(max_examples=100, deadline=None)
@given(st.text("abc", min_size=1, max_size=30), st.text("abc", min_size=1, max_size=9))
def test_the_overlap_is_bleu_4_without_the_penalty_for_shortness(prompt, answer):
    wanted = by_hand(prompt, answer)
    if wanted is not None:
        assert overlap(" ".join(prompt), " ".join(answer)) == pytest.approx(wanted)


def test_recordings_are_cut_to_the_context_and_answers_taken_at_equal_distances():
    long, short, none = (made_up(range(prompt), range(40)) for prompt in (10, 50, 90))
    cut = plus.truncate_to_context([long, short, none], 100)
    assert [len(r.trace.tokens) for r in cut] == [40, 40]
    cut = plus.truncate_to_context([long, short, none], 70)
    assert [len(r.trace.prompt) + len(r.trace.tokens) for r in cut] == [50, 70]
    assert cut[1].trace.limits.max_new_tokens == 20 and len(cut[1].trace.tokens) == 20
    replies = [Reply(str(i), "m", "p", "t") for i in range(10)]
    assert [r.id for r in plus.spread_out(replies, 4)] == ["0", "2", "5", "7"]
    assert plus.spread_out(replies, 12) == replies


def test_every_answer_has_the_passes_of_each_rule_on_the_same_tokens():
    (model, tokenizer), text = load_model("pocket-draft", "cpu"), "def f(x):\n    return x + 1\n" * 2
    questions = ("q", "r")
    replies = [Reply("a", "m", text, text), Reply("b", "m", "Say it.", text, questions)]
    replies.append(Reply("c", "m", "Again.", "return x + 1\n", questions))
    rows = list(plus.known_answer_rows("made", model, tokenizer, 1, 5, {"made": lambda: replies}))
    assert [row["prompt"] for row in rows] == [0, 1, 1]
    first = plus.truncate_to_context(record_replies(replies, tokenizer), context_limit(model))[0]
    assert rows[0]["tokens"] == len(first.trace.tokens) - 1
    assert rows[0]["partial_10"] == len(replay_all([first], PromptLookup(3, 10, "transformers"))[0].steps)
    count = len(first.trace.tokens)
    read = record_known(model, first.trace.prompt, first.trace.tokens, "length", None, count, Capture((1,)))
    first.trace.hidden.update(read.trace.hidden)
    assert rows[0]["h_70"] == len(replay_all([first], PromptLookupHidden(1, 70))[0].steps)
    for row in rows:
        for rule in ("partial", "h"):
            for length in plus.LENGTHS:
                assert row[f"best_{length}"] <= row[f"{rule}_{length}"] <= row["tokens"]
    frame = pd.DataFrame(rows)
    table = plus.table(frame)
    assert results.rate(table[table.method == "h_70"]).value == frame.tokens.sum() / frame.h_70.sum()
    assert results.ratio(table, "best_10", "partial_10", by="task").keys() == {"all", "made"}


def test_two_models_answers_to_one_problem_have_one_number():
    words = "Add two numbers of any kind to one another."
    base = Reply("7-0", "base", f'import re\n\ndef add(x, y):\n    """{words}\n    >>> add(1, 2)', "a")
    other = Reply("8-0", "base", 'def last(x):\n    """Give the last of them, or None if there is none', "b")
    tuned = Reply("HumanEval/3", "tuned", f"Write this:\ndef add(x, y):\n  {words}\n\n###", "c")
    assert [r.text for r in plus._by_problem(lambda: [other, base])()] == ["a", "b"]
    (first,) = plus._by_problem(lambda: [tuned])()
    assert first.questions == plus._by_problem(lambda: [base])()[0].questions


def test_words_are_counted_by_turn(monkeypatch):
    prompts = [Prompt("1", "t", ("one two three", "four")), Prompt("2", "t", ("one\ntwo",))]
    monkeypatch.setattr(plus, "load_task", lambda name, **options: prompts)
    rows = list(plus.prompt_words())
    assert [row["task"] for row in rows] == list(plus.PUBLISHED) and rows[0]["value"] == 2
    assert rows[0]["low"] == rows[0]["high"] == 2 and rows[0]["prompts"] == 2


def test_the_kept_answers_were_read_by_the_model_of_the_published_rows():
    target = row_files.read("papers_prompts")[1]["models"]["target"]
    kept = (paths.DATA / "results" / "pld_plus" / "known_answers.csv").read_text(encoding="utf-8")
    assert f"# target: {target}\n" in kept, "-p 04.answers=200 reads them again"


def test_the_rank_correlation_is_spearmans():
    x, y = pd.Series([3, 1, 4, 1, 5, 9]), pd.Series([2, 7, 1, 8, 2, 8])
    ranks = [np.array([3, 1.5, 4, 1.5, 5, 6]), np.array([2.5, 4, 1, 5.5, 2.5, 5.5])]
    found = plus.rank_correlation(x, y, range(6))
    assert found.value == pytest.approx(np.corrcoef(*ranks)[0, 1]) and found.low < found.value < found.high
    assert plus.rank_correlation(x, 2 * x, range(6)).value == pytest.approx(1)
