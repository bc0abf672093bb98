"""Attribution by copying against runs made by hand and against real runs."""

import numpy as np
import pytest
import torch

from specdec_lib import DraftTree, UnsupportedModel, replay
from specdec_lib.chapters.ch04_pld_plus import attribution
from specdec_lib.chapters.ch04_pld_plus.attribution import Alignment
from specdec_lib.chapters.ch04_pld_plus.copying_heads import copying_scores
from specdec_lib.decoding.results import Generation, Step
from specdec_lib.decoding.teacher_forcing import record_known
from specdec_lib.drafters import PromptLookup, PromptLookupHidden
from specdec_lib.experiments import results
from specdec_lib.experiments.prompt import Prompt
from specdec_lib.experiments.tasks import load_task
from tests import families


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
    assert attribution.attributed(RUN, least).tolist() == expected


def test_attributed_tokens_stand_where_they_are_attributed_to(library):
    prompt = families.prompt(3, 40, 12)
    drafter = PromptLookupHidden(1, 8)
    answer = [*prompt[10:25], *prompt[3:9], *prompt[20:30]]
    said = record_known(library["llama-gqa"], prompt, answer, "length", None, len(answer), drafter.capture)
    run = replay(said.trace, drafter)
    places = attribution.attributed(run, 1)
    assert (places >= 0).any()
    assert all(prompt[p] == t for p, t in zip(places, answer, strict=True) if p >= 0)


def test_counts_are_those_of_tokens():
    truth = Alignment([1] * 10, [1] * 6, np.array([1, 1, 1, 0, 1, 1], bool), np.array([3, 4, 5, -1, 7, -1]))
    found = attribution.count(truth, np.array([3, 4, 6, 2, -1, 8, -1]))
    assert found == {"copied": 5, "attributed": 5, "found": 4, "exact": 2, "located": 3}


def test_answers_are_counted_by_span_and_copies_found_exactly(library):
    prompt = list(range(10, 50))
    answer = [60, *prompt[5:25], 61]
    truth = Alignment(prompt, answer, np.array([0, *[1] * 20, 0], bool), np.array([-1, *range(5, 25), -1]))
    for drafter in (PromptLookup(1, 30, "transformers"), PromptLookupHidden(1, 30, generated=False)):
        rows = attribution.count_each(library["llama-gqa"], {"set": [truth, truth]}, drafter, (2, 30))
        assert rows.groupby("least").copied.sum().tolist() == [40, 40]

        def score(of, rows=rows):
            return results.rate(rows, of, by="least")

        # The first copied token has no earlier one to be found by, so it is the target's own.
        assert score(attribution.RECALL)[2].value == 19 / 20
        assert score(attribution.PRECISION)[2].value == score(attribution.RIGHT_PLACE)[2].value == 1
        assert score(attribution.F1)[2].value == pytest.approx(38 / 39)
        assert score(attribution.RECALL)[30].value == 0 and np.isnan(score(attribution.PRECISION)[30].value)


def test_what_cannot_be_attributed_is_refused():
    with pytest.raises(ValueError, match="does not say where it was copied from"):
        attribution.attributed(Generation([1, 2, 3], [step([2], 1)], "length", 1, 0.0), 1)
    with pytest.raises(ValueError, match="1 positions for an answer of 2 tokens"):
        attribution.count(Alignment([1], [2, 3], np.ones(2, bool), np.zeros(2, int)), np.zeros(1))


def quoting() -> Prompt:
    sources = ((1, "Fish", "Cod live in cold water."), (2, "Birds", "Terns fly far. Cod live."))
    text = "Quote.\n\n[1] Fish\nCod live in cold water.\n\n[2] Birds\nTerns fly far. Cod live.\n\nQuestion: where?"
    meta = {"sources": sources, "quotes": ((1, "Cod live in cold water"), (2, "Cod live"), (2, "gone"))}
    answer = "Cod live in cold water and terns, Cod live"
    return Prompt("q", "quotesum", (text,), chat=True, reference=answer, meta=meta)


def test_quotations_lie_in_their_source_and_tokens_are_copied_where_all_their_characters_are(tokenizer):
    prompt = quoting()
    first, second = prompt.text.index("Cod live in"), prompt.text.rindex("Cod live")
    assert attribution.quoted(prompt) == [attribution.Copied(0, first, 22), attribution.Copied(34, second, 8)]
    found = attribution.align(prompt, tokenizer, attribution.quoted(prompt))
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
    spans = [(prompt, span) for prompt in prompts for span in attribution.quoted(prompt)]
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
