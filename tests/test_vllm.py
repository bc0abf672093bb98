"""The proposer for vLLM, driven as vLLM 0.32 drives one, without vLLM."""

import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from specdec_lib import Capture, Drafter, DraftTree
from specdec_lib import vllm as ours
from specdec_lib.drafters import (
    Lookahead,
    PromptLookup,
    Rest,
    SamDecoding,
    SuffixDecoding,
    TokenRecycling,
)
from specdec_lib.drafters.one_tree import OneTree
from specdec_lib.drafters.pass_costs import CURVES, PassCosts
from specdec_lib.vllm import BatchCosts, proposer
from tests.datastores import stores

VOCABULARY, LONGEST = 50, 400
FLAT = PassCosts({1: 1.0})


def config(most=4, at_once=8, longest=LONGEST, vocabulary=VOCABULARY):
    """The parts of a VllmConfig that are read."""
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=most),
        model_config=SimpleNamespace(max_model_len=longest, get_vocab_size=lambda: vocabulary, model="m"),
        scheduler_config=SimpleNamespace(max_num_seqs=at_once),
    )


class Engine:
    """Greedy decoding with a fixed text for each request, as vLLM's scheduler and rejection sampler do it.

    Rows are those of vLLM's batch: one that leaves is filled with the last. ``passes`` counts passes over a request.
    """

    def __init__(self, proposer, at_once=8, longest=LONGEST):
        self.proposer, self.rows = proposer, np.zeros((at_once, longest), np.int32)
        self.counts = np.zeros(at_once, np.int32)
        self.running, self.drafts, self.steps = [], {}, 0
        self.accepted = self.drafted = self.passes = self.tokens = 0

    def add(self, name, prompt, answer):
        place = len(self.running)
        self.running.append(SimpleNamespace(name=name, text=[*prompt, *answer], read=False, said=0))
        self.rows[place, : len(prompt)], self.counts[place] = prompt, len(prompt)

    def remove(self, name):
        """Take a request out, as when it ends, is aborted or preempted; what it has so far."""
        place = next(i for i, one in enumerate(self.running) if one.name == name)
        one, last = self.running[place], len(self.running) - 1
        so_far = self.rows[place, : self.counts[place]].tolist()
        self.rows[place], self.counts[place] = self.rows[last], self.counts[last]
        self.running[place] = self.running[last]
        del self.running[last]
        self.drafts.pop(name, None)
        return one, so_far

    def step(self, reading=()):
        """One pass; the prompts of the requests in ``reading`` are not read to their end yet."""
        sampled = []
        for place, one in enumerate(self.running):
            if one.name in reading:  # its draft was dropped
                sampled.append([])
                self.drafts.pop(one.name, None)
                continue
            at, draft = int(self.counts[place]), self.drafts.get(one.name, [])
            coming = one.text[at:]
            accepted = 0
            while accepted < min(len(draft), len(coming) - 1) and draft[accepted] == coming[accepted]:
                accepted += 1
            new = coming[: accepted + 1]
            self.rows[place, at : at + len(new)] = new
            self.counts[place] = at + len(new)
            self.drafted, self.accepted = self.drafted + len(draft), self.accepted + accepted
            self.passes, self.tokens = self.passes + 1, self.tokens + len(new)
            sampled.append(new)
        self.steps += 1
        drafts = self.proposer.propose(sampled, self.counts, self.rows, slot_mappings=None)
        assert len(drafts) == len(self.running)
        self.drafts = {one.name: draft for one, draft in zip(self.running, drafts, strict=True)}
        for place, draft in enumerate(drafts):
            assert not draft or self.counts[place] + len(draft) < self.rows.shape[1]
            assert all(type(token) is int and 0 <= token < VOCABULARY for token in draft)
        return drafts

    def run(self):
        """Decode to the end."""
        while self.running:
            self.step()
            for one in [one for place, one in enumerate(self.running) if self.counts[place] >= len(one.text)]:
                self.remove(one.name)


def texts(count, length=40, repeats=4, seed=0):
    """Prompts and answers that copy from their prompts."""
    drawn = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        prompt = drawn.integers(VOCABULARY, size=length).tolist()
        answer = []
        for _ in range(repeats):
            start = int(drawn.integers(length - 12))
            answer += prompt[start : start + 12] + drawn.integers(VOCABULARY, size=2).tolist()
        made.append((prompt, answer))
    return made


class Checked(Drafter):
    """Sees that its calls come in the contract's order and show the tokens of one request, and drafts at random."""

    def __init__(self):
        self.open, self.drawn = False, np.random.default_rng(0)

    def start(self, context):
        assert not self.open
        self.open, self.seen, self.context = True, [*context.tokens], context
        self.asked = False

    def propose(self, context, limit):
        assert self.open and context is self.context and context.tokens[: len(self.seen)] == self.seen
        self.seen, self.asked = [*context.tokens], True
        return DraftTree.chain(self.drawn.integers(3, size=self.drawn.integers(limit + 1)).tolist())

    def verified(self, tree, path, outputs):
        new = self.context.tokens[len(self.seen) :]
        assert new and [tree.tokens[node] for node in path] == new[: len(path)]

    def finish(self):
        assert self.open
        self.open = False


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("costs", [None, "server"])
def test_whatever_the_scheduler_does(seed, costs, caplog):
    """Requests over three tokens come, go, come back, are read in chunks, have their drafts cut, or are not asked for."""
    drawn = np.random.default_rng(seed)
    engine = Engine(proposer(Checked, costs)(config(at_once=6)), 6)
    gone, number = [], 0
    with caplog.at_level(logging.ERROR, "vllm.specdec_lib"):
        for _ in range(150):
            chance = drawn.random()
            if len(engine.running) < 6 and chance < 0.3:
                engine.add(
                    number, drawn.integers(3, size=drawn.integers(1, 6)).tolist(), drawn.integers(3, size=100).tolist()
                )
                number += 1
            elif engine.running and chance < 0.4:
                one, so_far = engine.remove(engine.running[drawn.integers(len(engine.running))].name)
                gone.append((one.name, so_far, one.text[len(so_far) :]))
            elif gone and len(engine.running) < 6 and chance < 0.5:
                engine.add(*gone.pop(drawn.integers(len(gone))))
            for name in [*engine.drafts]:
                engine.drafts[name] = engine.drafts[name][: drawn.integers(9)]
            engine.step(reading=[one.name for one in engine.running if drawn.random() < 0.1])
            for one in [one for place, one in enumerate(engine.running) if engine.counts[place] >= len(one.text)]:
                engine.remove(one.name)
    assert not caplog.records and engine.accepted


@pytest.fixture(scope="module")
def store():
    with stores.build([answer for _, answer in texts(3)], VOCABULARY) as index:
        yield index


def makers(store):
    return {
        "PLD": lambda: PromptLookup(3, 4, variant="transformers"),
        "PLD, original": lambda: PromptLookup(3, 4),
        "REST": lambda: Rest(store, min_ngram=1),
        "SAM-Decoding": lambda: SamDecoding(PromptLookup(), store, 4, threshold=2, bias=0),
        "SuffixDecoding": lambda: SuffixDecoding(),
        "One tree": lambda: OneTree({"PLD": PromptLookup(3, 4), "SuffixDecoding": SuffixDecoding()}, FLAT),
        "one's own": lambda: Own(),
    }


class Own(Drafter):
    """Keeps its state in a list that a shallow copy would share."""

    def __init__(self):
        self.said = []

    def start(self, context):
        self.said.clear()

    def propose(self, context, limit):
        self.said += context.tokens[len(self.said) :]
        assert self.said == context.tokens
        last = self.said[-1]
        place = self.said.index(last)
        return DraftTree.chain(self.said[place + 1 : place + 1 + limit])


def drafts_of(engine):
    """Every step's drafts by the request, to the end; requests leave as they end."""
    seen = {}
    while engine.running:
        engine.step()
        for name, draft in engine.drafts.items():
            seen.setdefault(name, []).append(draft)
        for one in [one for place, one in enumerate(engine.running) if engine.counts[place] >= len(one.text)]:
            engine.remove(one.name)
    return seen


@pytest.mark.parametrize("name", ["PLD", "PLD, original", "REST", "SAM-Decoding", "one's own"])
def test_requests_in_a_batch_do_not_mix(name, store):
    """Each of eight requests whose rows move gets the drafts that it gets by itself. (What SuffixDecoding and one tree learn is
    shared on purpose.)"""
    make = makers(store)[name]
    asked = [(prompt, answer[: 10 + 5 * number]) for number, (prompt, answer) in enumerate(texts(8))]
    together = Engine(proposer(make)(config()))
    for number, text in enumerate(asked):
        together.add(number, *text)
    seen = drafts_of(together)
    for number, text in enumerate(asked):
        alone = Engine(proposer(make)(config()))
        alone.add(number, *text)
        assert drafts_of(alone)[number] == seen[number]
    assert together.accepted > (20 if name != "SAM-Decoding" else 0)


@pytest.mark.parametrize("name", ["PLD", "SuffixDecoding", "One tree", "one's own"])
def test_a_preempted_request_goes_on_and_prompts_may_be_read_in_chunks(name, store):
    """It leaves its row, comes back in another one, and gets the drafts that it would have got."""
    asked = texts(3)
    plainly = Engine(proposer(makers(store)[name])(config()))
    disturbed = Engine(proposer(makers(store)[name])(config()))
    for engine in (plainly, disturbed):
        for number, text in enumerate(asked):
            engine.add(number, *text)
    for _ in range(4):
        plainly.step()
    disturbed.step(reading=(0, 1, 2))
    for _ in range(4):
        disturbed.step()
    one, so_far = disturbed.remove(0)
    for _ in range(3):
        disturbed.step()
    disturbed.add(0, so_far, one.text[len(so_far) :])
    disturbed.step(reading=(0,))
    starts = [len(each.context.tokens) for each in known(disturbed.proposer) if each.length == len(so_far)]
    assert starts == [len(so_far)]  # its state is still there
    assert disturbed.step()[2] == plainly.step()[0] != [] or name == "SuffixDecoding"
    assert len(known(disturbed.proposer)) == 3


def known(proposer):
    return [state for same in proposer._states.values() for state in same]


def test_equal_prompts_have_states_of_their_own():
    """Two requests with one prompt, as with n = 2, that differ later."""
    prompt, answer = texts(1)[0]
    other = answer[:20] + texts(2)[1][1][:20]
    engine = Engine(proposer(lambda: PromptLookup(3, 4))(config()))
    engine.add("a", prompt, answer)
    engine.add("b", prompt, other)
    seen = drafts_of(engine)
    for name, text in (("a", answer), ("b", other)):
        alone = Engine(proposer(lambda: PromptLookup(3, 4))(config()))
        alone.add(name, prompt, text)
        assert drafts_of(alone)[name] == seen[name]


def test_nothing_is_drafted_beyond_the_longest_sequence():
    prompt = [1, 2, 3, 4, 5] * 10
    engine = Engine(proposer(lambda: PromptLookup(3, 8, variant="transformers"))(config(8, longest=60)), longest=60)
    engine.add(0, prompt, [1, 2, 3, 4, 5] * 2)
    assert len(engine.step()[0]) == 8
    engine.run()  # it asserts that drafts fit
    assert engine.accepted


def test_suffix_decoding_learns_across_requests_and_its_memory_is_bounded(monkeypatch):
    (prompt, answer), (second, _) = texts(2)
    made = proposer(SuffixDecoding)(config(at_once=2))
    for round in range(2):
        engine = Engine(made, at_once=2)
        engine.add(round, prompt if round == 0 else second, answer)
        engine.run()
        for _ in range(ours._ABSENT_CALLS + 1):  # the first one is forgotten, and its output remembered
            made.propose([], np.zeros(0, np.int32), np.zeros((0, LONGEST), np.int32))
        if round == 0:
            first = engine.accepted
    assert engine.accepted > first
    assert len(made._first._earlier.text) == 2 * (len(answer) + 1)
    monkeypatch.setattr(ours, "REMEMBERED", 100)
    engine = Engine(made, at_once=2)
    engine.add(2, prompt, answer)
    engine.run()
    for _ in range(ours._ABSENT_CALLS + 1):
        made.propose([], np.zeros(0, np.int32), np.zeros((0, LONGEST), np.int32))
    assert len(made._first._earlier.text) == len(answer) + 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["PLD", "SuffixDecoding", "one's own"])
def test_memory_after_ten_thousand_requests(name, store, monkeypatch):
    """It is what it was after 2,000, but for what the interpreter itself keeps."""
    monkeypatch.setattr(ours, "REMEMBERED", 5_000)
    made = proposer(makers(store)[name])(config(at_once=8))
    asked, held = texts(40, repeats=1), []
    for block in range(5):
        for first in range(250):
            engine = Engine(made)
            for number in range(8):
                engine.add(number, *asked[(first * 8 + number * 3 + block) % 40])
            engine.run()
        held.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)
        assert len(known(made)) <= 8 * (ours._ABSENT_CALLS + 2)
    assert held[-1] < held[0] + 10e6, held


@pytest.mark.parametrize(
    ("make", "needed", "instead"),
    [
        (lambda: TokenRecycling(), "logits", "SuffixDecoding"),
        (lambda: Lookahead(), "logits", "SuffixDecoding"),
        (lambda: SamDecoding(TokenRecycling()), "logits", "SuffixDecoding"),
        (lambda: Needs(Capture(layers=(1,))), "hidden states", "PromptLookup"),
        (lambda: Needs(Capture(heads=((0, 0),))), "attention", "PromptLookup"),
        (lambda: Needs(Capture(), "greedy"), "probabilities", "PromptLookup"),
        (lambda: OneTree({"x": Needs(Capture(heads=((0, 0),)))}, FLAT), "attention", "PromptLookup"),
    ],
)
def test_a_drafter_that_needs_more_than_tokens_is_refused_when_the_engine_starts(make, needed, instead):
    with pytest.raises(ValueError, match=f"needs .*{needed}.*; use .*{instead}"):
        proposer(make)(config())


class Needs(Drafter):
    def __init__(self, capture, replays="any"):
        self.capture, self.replays = capture, replays

    def propose(self, context, limit):
        return DraftTree.chain([1])


def test_a_store_of_another_vocabulary_is_refused_when_the_engine_starts(store):
    with pytest.raises(ValueError, match="do not share a tokenizer"):
        proposer(lambda: Rest(store))(config(vocabulary=20))


class Faulty(Own):
    """Fails where the last token is 7, or drafts what is no token."""

    def __init__(self, how="propose"):
        super().__init__()
        self.how = how

    def propose(self, context, limit):
        if context.tokens[-1] == 7 and self.how == "propose":
            raise RuntimeError("seven")
        if self.how == "no token" and len(context.tokens) > 64 + 3:
            return DraftTree.chain([VOCABULARY])
        return super().propose(context, limit)

    def verified(self, tree, path, outputs):
        if self.how == "verified" and len(self.said) > 64 + 3:
            raise RuntimeError("verified")

    def finish(self):
        if self.how == "finish" and len(self.said) > 64 + 3:
            raise RuntimeError("finish")


@pytest.mark.parametrize("how", ["propose", "no token", "verified", "finish"])
def test_a_drafter_that_fails_drafts_nothing_and_is_logged_once(how, caplog):
    prompt = [1, 2, 3, 4, 5, 6] * 12
    engine = Engine(proposer(lambda: Faulty(how))(config()))
    with caplog.at_level(logging.ERROR, "vllm.specdec_lib"):
        engine.add("bad", prompt, [1, 2, 7, 1, 2, 3, 4, 5, 6] * 3)
        engine.add("good", prompt, [1, 2, 3, 4, 5, 6] * 3)
        seen = drafts_of(engine)
        for _ in range(ours._ABSENT_CALLS + 1):
            engine.proposer.propose([], np.zeros(0, np.int32), np.zeros((0, LONGEST), np.int32))
    assert len(caplog.records) == 1 and "logged once" in caplog.text
    assert not any(seen["bad"][4:]) or how == "finish"
    assert any(seen["good"]) or how in ("no token", "verified")


def test_another_signature_is_a_sentence_and_no_error(caplog):
    made = proposer(PromptLookup)(config())
    with caplog.at_level(logging.ERROR, "vllm.specdec_lib"):
        assert made.propose([[1], [2]]) == [[], []]
        assert made.propose(4, [[1]], np.zeros(1, np.int32), np.zeros((1, 4), np.int32)) == []
        assert made.propose(num_speculative_tokens=3) == []
    assert "calls a proposer in another way than 0.32.x" in caplog.text


def test_another_release_of_vllm_is_a_sentence_where_the_engine_starts(monkeypatch, caplog):
    for version, warned in (("0.32.4", False), ("0.33.0", True)):
        monkeypatch.setattr(ours.metadata, "version", lambda package, version=version: version)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "vllm.specdec_lib"):
            proposer(PromptLookup)(config())
        assert ("This is vLLM 0.33.0; specdec_lib.vllm is tested with 0.32.x." in caplog.text) == warned


def test_lengths_maximise_tokens_per_cost():
    """Against all choices of prefixes, for two requests."""
    drawn = np.random.default_rng(1)
    for _ in range(50):
        cost = np.cumsum(drawn.random(7)) + 1
        made = proposer(PromptLookup, BatchCosts({2: dict(enumerate(cost))}))(config())
        chances = np.sort(drawn.random((2, 3)))[:, ::-1]
        likely = [(-chances[row, depth - 1], row, depth) for row in range(2) for depth in (1, 2, 3)]

        def rate(first, second):
            return (2 + chances[0, :first].sum() + chances[1, :second].sum()) / cost[first + second]

        best = max(rate(first, second) for first in range(4) for second in range(4))
        chosen, saved, spent = made._lengths(2, likely)
        assert spent == cost[sum(chosen.values())]
        assert rate(chosen.get(0, 0), chosen.get(1, 0)) == pytest.approx(best)


def test_drafts_shorten_as_the_batch_grows(store):
    """With a server's costs, which rise from eight tokens on, eight requests draft less each than one, and 64 nothing."""
    costs = BatchCosts({1: {0: 1, 8: 1}, 8: {0: 1, 8: 1.6, 64: 6}, 64: {0: 8, 64: 16, 128: 24}})
    sent = []
    for size in (1, 8, 64):
        engine = Engine(proposer(lambda: PromptLookup(3, 4, "transformers"), costs)(config(at_once=64)), at_once=64)
        for number, text in enumerate(texts(size, seed=3)):
            engine.add(number, *text)
        engine.run()
        sent.append(engine.drafted / engine.passes)
    assert sent[0] > 2 * sent[1] > 0
    assert sent[2] < 0.05


def test_hits_learn_how_often_drafts_are_right():
    """Drafts that are always wrong stop being sent, even where they were expected to pay."""

    class Wrong(Drafter):
        def propose(self, context, limit):
            return DraftTree.chain([(context.tokens[-1] + 1) % VOCABULARY] * limit)

    costs = BatchCosts({1: {0: 1.0, 8: 1.5}})
    engine = Engine(proposer(Wrong, costs)(config()))
    engine.add(0, [0], [0] * 300)
    sent = [len(engine.step()[0]) for _ in range(100)]
    assert sent[0] > 0 and sum(sent[50:]) < 10


def test_costs_between_and_beyond_what_was_measured(tmp_path):
    costs = BatchCosts({2: {0: 1.0, 4: 2.0}, 4: {0: 3.0, 4: 6.0}}, "here")
    assert costs.curve(2, 6).tolist() == [1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5]
    assert costs.curve(3, 4).tolist() == [2.0, 2.5, 3.0, 3.5, 4.0]
    assert costs.curve(6, 4)[[0, 4]].tolist() == [5.0, 10.0]
    assert costs.curve(1, 4).tolist() == costs.curve(2, 4).tolist()
    costs.save(tmp_path / "costs.json")
    again = ours.read_costs(tmp_path / "costs.json")
    assert again.batches == costs.batches and again.name == "here"
    widths = PassCosts({1: 1.0, 2: 1.5, 4: 2.5, 8: 4.5})
    widths.save(tmp_path / "widths.json")
    read = ours.read_costs(tmp_path / "widths.json")
    for batch in (1, 2, 3, 6):
        assert read.curve(batch, 8 - batch).tolist() == pytest.approx(widths.curve(8)[batch - 1 :].tolist())
    for name in CURVES:
        assert ours.read_costs(name).curve(4, 3).tolist() == pytest.approx(CURVES[name].curve(7)[3:].tolist(), rel=0.02)


@pytest.mark.parametrize(
    "text", ["", "{}", '{"batches": {}}', '{"batches": {"1": {"1": 2}}}', '{"batches": {"1": {"0": -1}}}']
)
def test_a_file_without_costs_is_refused(text, tmp_path):
    (tmp_path / "costs.json").write_text(text)
    with pytest.raises(ValueError, match="holds no costs"):
        proposer(PromptLookup, tmp_path / "costs.json")(config())


def set_to(monkeypatch, **settings):
    monkeypatch.setenv(ours.SETTINGS, json.dumps(settings))


def test_common_cases_need_no_file(monkeypatch, store, tmp_path):
    folder = str(store.store.path)
    for settings in (
        {"drafter": "PLD"},
        {"drafter": "PLD", "arguments": {"variant": "original", "max_ngram": 2}, "costs": "cpu"},
        {"drafter": "REST", "store": folder},
        {"drafter": "SuffixDecoding"},
        {"drafter": "SAM-Decoding", "store": folder},
        {"drafter": "One tree", "store": folder},
        {"drafter": "One tree", "sources": ["PLD"]},
    ):
        set_to(monkeypatch, **settings)
        engine = Engine(ours.Proposer(config()))
        for number, text in enumerate(texts(2)):
            engine.add(number, *text)
        engine.run()
        assert engine.drafted
    file = tmp_path / "settings.json"
    file.write_text('{"drafter": "PLD", "arguments": {"max_ngram": 1}}')
    monkeypatch.setenv(ours.SETTINGS, str(file))
    assert ours.Proposer(config())._first.max_ngram == 1


def test_drafts_of_suffix_decoding_are_longer_where_costs_cut_them():
    settings = {"drafter": "SuffixDecoding", "costs": "cpu"}
    assert ours.drafter_of_settings(settings, 8).offset == ours._OFFSET > SuffixDecoding().offset
    assert ours.drafter_of_settings({"drafter": "SuffixDecoding"}, 8).offset == SuffixDecoding().offset
    assert ours.drafter_of_settings(settings | {"arguments": {"offset": 0.0}}, 8).offset == 0.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("", "the environment has no SPECDEC_VLLM"),
        ("{", "no JSON"),
        ("nowhere.json", "nowhere.json"),
        ('{"drafter": "Medusa"}', "drafter is 'Medusa'; expected"),
        ('{"drafter": "REST"}', "REST needs a datastore"),
        ('{"drafter": "One tree", "sources": ["REST"]}', "REST needs a datastore"),
        ('{"drafter": "PLD", "measure": "x"}', "one of 'drafter' and 'measure'"),
        ('{"draft": "PLD"}', "'draft'"),
        ("{}", "expected one of"),
    ],
)
def test_settings_that_say_nothing_are_refused(settings, message, monkeypatch):
    monkeypatch.setenv(ours.SETTINGS, settings)
    with pytest.raises((ValueError, OSError), match=message):
        ours.Proposer(config())


def test_measuring_writes_costs_that_a_proposer_reads(monkeypatch, tmp_path):
    set_to(monkeypatch, measure=str(tmp_path / "costs.json"))
    made = ours.Proposer(config(most=4))
    for size in (1, 4):
        engine = Engine(made)
        for number in range(size):
            engine.add(number, [0] * 5, [0] * 200)
        for _ in range(30):
            engine.step()
    found = ours.read_costs(tmp_path / "costs.json")
    assert {batch: list(costs) for batch, costs in found.batches.items()} == {
        1: [0, 1, 2, 4],
        4: [0, 1, 4, 8, 16],
    }
    for costs in found.batches.values():
        assert list(costs.values()) == sorted(costs.values())
    # The passes without drafts were slow by chance, and so were those with four tokens. Three requests were met once, before the
    # fourth one had come.
    made.seconds = {3: {0: [9.0]}, 4: {0: [3.0] * 3, 1: [1.0, 2.0, 9.0], 4: [4.0] * 3, 8: [3.5] * 3, 16: [2.0]}}
    made.save()
    assert ours.read_costs(tmp_path / "costs.json").batches == {4: {0: 2.5, 1: 2.5, 4: 3.75, 8: 3.75}}


def test_the_library_does_not_import_vllm():
    assert "vllm" not in sys.modules
