"""Heads that draft: what they learn, what their files give back, and the trees grown from their accuracies."""

from functools import cache
from itertools import combinations, product

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from specdec_lib.heads import draft_training
from specdec_lib.heads.answers import record_answers
from specdec_lib.heads.draft_training import (
    Batch,
    Checkpoint,
    Cut,
    HeadTraining,
    Text,
    accuracies,
    head_loss,
    texts_with_states,
    train_heads,
)
from specdec_lib.heads.drafting import KINDS, DraftHead, Ends, MedusaHeads
from specdec_lib.heads.grown_tree import best_tree_shape
from specdec_lib.heads.layer import DecoderLayer, PrefixLayer
from tests.datastores.stores import tree_paths
from tests.families import build, prompt

OPTIONS = {
    "medusa": {"heads": 3},
    "hydra": {"heads": 3, "prefix": False},
    "eagle": {},
    "hydra prefix": {"heads": 2, "layers": 2, "prefix": True},
    "medusa own": {"heads": 2, "own_vocabulary": True},
}


#: A text of four tokens, three of them written.
TEXTS = [Text(torch.tensor([1, 2, 3, 4]), torch.zeros(4, 32, dtype=torch.bfloat16), 1)]


def made(kind: str, model, seed: int = 0) -> DraftHead:
    torch.manual_seed(seed)
    return KINDS[kind.split()[0]].for_target(model, **OPTIONS[kind])


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """``corpora(family)``: a tiny model, and its greedy answers to prompts that it mostly continues with few tokens."""

    @cache
    def of(family):
        model, prompts = build(family), [prompt(i, 8) for i in range(12)]
        answers = record_answers(model, prompts, tmp_path_factory.mktemp("a"), max_new_tokens=24, progress=False)
        return model, texts_with_states(model, answers, progress=False)

    return of


def cross_entropies(head: DraftHead, ends: Ends, texts) -> list[float]:
    """Mean cross-entropy of each depth with the answers' tokens."""
    batch = Batch.of(texts, ends.device)
    with torch.no_grad():
        features = head.features(ends, batch.states, batch.tokens, batch.where, head.depth or 2)
        found = []
        for depth, rows in enumerate(features, start=1):
            there, tokens, _ = batch.ahead(depth)
            found.append(float(F.cross_entropy(head.logits(ends, depth, rows[there]), tokens)))
    return found


@pytest.mark.parametrize(("family", "kind"), [
    *((family, kind) for family in ("llama-gqa", "qwen3", "gemma") for kind in KINDS),
    ("llama-gqa", "hydra prefix"),
    ("llama-gqa", "medusa own"),
])  # fmt: skip
def test_heads_learn_more_than_how_often_each_token_is_written(corpora, family, kind):
    model, texts = corpora(family)
    before = [weights.clone() for weights in model.parameters()]
    head, ends = made(kind, model), Ends(model)
    counts = np.unique(np.concatenate([text.tokens[text.start + 1 :] for text in texts]), return_counts=True)[1]
    shares, untrained = counts / counts.sum(), cross_entropies(head, ends, texts)
    floor = -(shares * np.log(shares)).sum()  # in nats, of the best prediction that knows nothing but these shares
    train_heads(head, model, texts, texts, HeadTraining(epochs=25, batch=6, rate=1e-2), progress=False)
    assert max(cross_entropies(head, ends, texts)) < floor < max(untrained)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(weights.requires_grad for weights in model.parameters())
    assert head.story["curve"][-1]["loss"] < head.story["curve"][0]["loss"]
    first = [row[0] for row in head.accuracies]
    assert len(first) == (head.depth or draft_training.DEPTHS) and first[0] > shares.max()


def test_training_ends_at_the_third_epoch_that_gains_little(corpora, monkeypatch):
    model, texts = corpora("llama-gqa")
    losses = [10.0, 9.0, 8.99, 8.0, 7.99, 7.98, 1.0]
    monkeypatch.setattr(draft_training, "mean_loss", lambda *_, left=iter(losses): next(left))
    head = train_heads(made("medusa", model), model, texts, texts, HeadTraining(epochs=20), progress=False)
    assert [row["held_out"] for row in head.story["curve"]] == losses[:6] and head.story["epoch_kept"] == 6


@pytest.mark.parametrize("kind", ["hydra prefix", "medusa"])
def test_a_training_that_is_interrupted_after_each_batch_ends_as_one_that_is_not(corpora, tmp_path, kind):
    model, texts = corpora("llama-gqa")
    settings = HeadTraining(epochs=3, batch=5, rate=1e-2, vocabulary=40, average=0.5)
    whole = train_heads(made(kind, model), model, texts, texts[:4], settings, progress=False)
    runs, path = 0, tmp_path / "training.safetensors"
    while True:
        checkpoint, runs = Checkpoint(path, seconds=0), runs + 1
        # The first begins as the whole one did; the others take their weights from the file.
        part = train_heads(made(kind, model, runs - 1), model, texts, texts[:4], settings, False, checkpoint)
        if part.story["curve"][-1]["epoch"] == 3:
            break
    assert runs == 3 * -(-len(texts) // 5)
    # Products of the same numbers at other places in memory may differ in their last digits.
    for row, same in zip(part.story["curve"], whole.story["curve"], strict=True):
        assert row == pytest.approx(same, rel=1e-5)
    torch.testing.assert_close(dict(part.state_dict()), dict(whole.state_dict()), rtol=1e-2, atol=1e-4)
    with pytest.raises(ValueError, match="is of a training with"):
        train_heads(made(kind, model), model, texts[:6], texts, settings, False, Checkpoint(path))
    whole = path.read_bytes()
    for content in (b"", whole[:-9], whole.replace(b"settings", b"Settings"), whole.replace(b"average:", b"Average:")):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="training.safetensors is of no training .*; move it away"):
            Checkpoint(path).read()


@pytest.mark.parametrize("kind", ["hydra", "medusa"])
def test_a_cut_output_layer_is_the_whole_one_over_the_frequent_tokens(corpora, kind):
    model, texts = corpora("llama-gqa")
    head, ends = made(kind, model).eval(), Ends(model)
    batch = Batch.of(texts, ends.device)
    assert Cut.to_frequent(ends, texts, ends.vocabulary).rows.tolist() == list(range(ends.vocabulary))
    cut = Cut.to_frequent(ends, texts, 9)
    kept = cut.rows.ge(0).nonzero()[:, 0]
    counts = torch.bincount(torch.cat([text.tokens[text.start :] for text in texts]), minlength=ends.vocabulary)
    others = [token for token in range(ends.vocabulary) if token not in kept.tolist()]
    assert len(kept) == 9 and counts[kept].min() >= counts[others].max()
    total = 0.0
    with torch.no_grad():
        found = head.features(ends, batch.states, batch.tokens, batch.where, head.depth)
        for k, features in enumerate(found, start=1):
            there, tokens, seen = batch.ahead(k)
            logits = head.logits(ends, k, features[there])[:, kept].log_softmax(-1)
            if kind == "hydra":
                each = -(ends.logits(seen)[:, kept].softmax(-1) * logits).sum(-1)
            else:
                known = cut.rows[tokens] >= 0
                each = -logits[known, cut.rows[tokens[known]]]
            total += head.recipe.decay ** (k - 1) * float(each.sum()) / len(tokens)
    assert float(head_loss(head, ends, batch, None, cut)) == pytest.approx(total, rel=1e-5)


def test_hydra_s_prefix_layer_begins_as_the_states_that_it_reads():
    states = 3 * torch.randn(5, 32)
    for norm in (False, True):
        layer = PrefixLayer(32, 4, 48, norm)
        layer.scale_to(states)
        with torch.no_grad():
            read = layer(states[None], torch.arange(5))[0][0]
        sizes = states.square().mean(-1, keepdim=True).sqrt()
        expected = states / sizes * states.square().mean().sqrt() if norm else states
        torch.testing.assert_close(read, expected, rtol=1e-5, atol=1e-5)


def test_values_are_dropped_in_training_alone(corpora):
    model, texts = corpora("llama-gqa")
    head, ends = made("hydra", model), Ends(model)
    batch = Batch.of(texts, ends.device)
    losses = [float(head_loss(head.train(training), ends, batch).detach()) for training in (True, True, False, False)]
    assert losses[0] != losses[1] and losses[2] == losses[3]


@pytest.mark.parametrize("kind", OPTIONS)
def test_products_that_may_be_rounder_change_a_loss_by_their_rounding(corpora, kind):
    model, texts = corpora("llama-gqa")
    head, ends = made(kind, model).eval(), Ends(model)
    batch = Batch.of(texts, ends.device)
    exact = float(head_loss(head, ends, batch))
    torch.set_float32_matmul_precision("medium")
    loss = head_loss(head, ends, batch)
    assert loss.dtype == torch.float32
    assert float(loss) != exact and float(loss) == pytest.approx(exact, rel=0.02)


def test_medusa_s_published_loss_by_hand(corpora):
    model, texts = corpora("llama-gqa")
    head, ends = made("medusa", model), Ends(model)
    for block in head.blocks:
        torch.nn.init.normal_(block.linear.weight, std=0.3)
    total = 0.0
    for k in range(head.depth):
        each = []
        for text in texts:
            for t in range(text.start - 1, len(text.tokens) - 2 - k):
                state = text.states[t].float()
                block = head.blocks[k].linear
                logits = model.lm_head(state + F.silu(block.weight @ state + block.bias))
                each.append(-logits.log_softmax(-1)[text.tokens[t + 2 + k]].detach())
        total += 0.8**k * float(torch.stack(each).mean())
    assert head_loss(head, ends, Batch.of(texts, ends.device)).item() == pytest.approx(total, rel=1e-5)


def test_eagle_s_published_loss_by_hand(corpora):
    model, texts = corpora("llama-gqa")
    head, ends = made("eagle", model), Ends(model)
    regression, entropy = [], []
    for text in texts:
        states, count = text.states.float(), len(text.tokens)
        embeddings = ends.embed(text.tokens[1:])
        predicted = head(embeddings[None], states[None, :-1], torch.arange(count - 1))[0][0]
        for t in range(text.start - 1, count - 2):
            regression.append(F.smooth_l1_loss(predicted[t], states[t + 1]))
            p, q = (model.lm_head(s).log_softmax(-1) for s in (states[t + 1], predicted[t]))
            entropy.append(-(p.exp() * q).sum())
    expected = float(torch.stack(regression).mean() + 0.1 * torch.stack(entropy).mean())
    assert float(head_loss(head, ends, Batch.of(texts, ends.device))) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", OPTIONS)
def test_the_loss_grows_along_its_gradient_as_fast_as_that_says(corpora, monkeypatch, kind):
    monkeypatch.setattr(draft_training, "ROWS", 7)  # several parts, and a last one that is not full
    model, texts = corpora("llama-gqa")
    head, ends = made(kind, model).eval(), Ends(model)
    batch, weights, losses = Batch.of(texts, ends.device), list(head.parameters()), []
    with torch.no_grad():
        for each in weights:  # a layer that begins as the identity has weights without a gradient
            each += 0.05 * torch.randn(each.shape)
    head_loss(head, ends, batch).backward(inputs=weights)
    slope = sum(float(each.grad.norm()) for each in weights)
    with torch.no_grad():
        for step in (1e-2, -2e-2):
            for each in weights:
                each += step * each.grad / each.grad.norm()  # every weight counts, and one without a gradient fails
            losses.append(float(head_loss(head, ends, batch)))
    assert (losses[0] - losses[1]) / 2e-2 == pytest.approx(slope, rel=0.02)


def test_accuracies_are_counted_along_the_answer(corpora):
    model, texts = corpora("llama-gqa")
    head, ends = made("hydra", model).eval(), Ends(model)
    for block in head.first:
        torch.nn.init.normal_(block.linear.weight, std=0.1)
    for k, row in enumerate(accuracies(head, ends, texts), start=1):
        ranks = []
        for text in texts:
            for t in range(text.start - 1, len(text.tokens) - 1 - k):
                e = ends.embed(text.tokens[t + 1 : t + 1 + k])
                logits = head.logits(ends, k, head.feature(k, text.states[t].float(), e))
                ranks.append(int((logits > logits[text.tokens[t + 1 + k]]).sum()))
        np.testing.assert_allclose(row, [ranks.count(rank) / len(ranks) for rank in range(10)], atol=6e-5)


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_file_gives_the_heads_back(tmp_path, kind):
    model = build("llama-gqa")
    head = made(kind, model)
    head.story["accuracies"] = [[0.5]]
    head.save(tmp_path / "h.safetensors")
    again = DraftHead.load(tmp_path / "h.safetensors", model)
    assert type(again) is type(head) and again.options == head.options and again.story == head.story
    expected = {name: weights.to(torch.bfloat16).float() for name, weights in head.state_dict().items()}
    torch.testing.assert_close(dict(again.state_dict()), expected, rtol=0, atol=0)


@pytest.mark.parametrize(("make", "says"), [
    (lambda m: MedusaHeads.for_target(m, heads=0), "heads is 0"),
    (lambda m: made("medusa", m).accuracies, "hold no accuracies; train them"),
    (lambda m: MedusaHeads.for_target(m, layers=1.5), "layers is 1.5"),
    (lambda m: DecoderLayer(30, 4, 8), "heads is 4 for states of width 30"),
    (lambda m: HeadTraining(epochs=0), "epochs is 0"),
    (lambda m: HeadTraining(average=1.0), "average is 1.0"),
    (lambda m: HeadTraining(dropout=-0.1), "dropout is -0.1"),
    (lambda m: HeadTraining(vocabulary=-1), "vocabulary is -1"),
    (lambda m: train_heads(made("medusa own", m), m, TEXTS, TEXTS, HeadTraining(vocabulary=9)), "layers of their own"),
    (lambda m: best_tree_shape([], 3), "no accuracies"),
    (lambda m: best_tree_shape([[1.5]], 3), "depth 1 is 1.5"),
    (lambda m: best_tree_shape([[0.5]], 0), "nodes is 0"),
    (lambda m: train_heads(made("medusa", m), m, [], []), "texts hold no token to predict"),
])  # fmt: skip
def test_bad_settings_are_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make(build("llama-gqa"))


def test_rows_that_pad_an_output_layer_are_no_tokens(monkeypatch):
    model = build("llama-gqa")
    with torch.no_grad():
        model.lm_head.weight[-4:] *= 100
    monkeypatch.setattr("specdec_lib.heads.drafting.vocabulary_size", lambda model: 92)
    ends, states = Ends(model), torch.randn(20, 32)
    for options in ({}, {"own_vocabulary": True}):
        logits = MedusaHeads.for_target(model, **options).logits(ends, 1, states)
        assert logits.shape == (20, 92) and torch.equal(logits, model.lm_head(states)[:, :92])


def test_the_layer_is_that_of_transformers():
    model = build("llama", rms_norm_eps=1e-6)
    theirs = model.model.layers[0]
    ours = DecoderLayer(32, 4, 48)
    names = {"norm": "input_layernorm", "second_norm": "post_attention_layernorm", "out": "self_attn.o_proj"}
    names |= {name: f"self_attn.{name[0]}_proj" for name in ("queries", "keys", "values")}
    names |= {name: f"mlp.{name}_proj" for name in ("gate", "up", "down")}
    ours.load_state_dict({f"{name}.weight": theirs.get_submodule(part).weight for name, part in names.items()})
    x, places = torch.randn(2, 9, 32), torch.arange(9)
    with torch.no_grad():
        rotary = model.model.rotary_emb(x, places[None])
        mask = torch.full((9, 9), -torch.inf).triu(1)[None, None]
        expected = theirs(x, attention_mask=mask, position_embeddings=rotary)
        expected = expected[0] if isinstance(expected, tuple) else expected
        torch.testing.assert_close(ours(x, places)[0], expected, rtol=1e-4, atol=1e-5)


def all_trees(accuracies, nodes):
    """Every set of so many rank paths that holds the path above each of its members."""
    depths = range(1, len(accuracies) + 1)
    paths = sorted(path for depth in depths for path in product(*(range(len(row)) for row in accuracies[:depth])))
    for some in combinations(paths, nodes):
        chosen = {(), *some}
        if all(path[:-1] in chosen for path in some):
            yield some


@pytest.mark.parametrize("nodes", [1, 2, 4, 6])
@pytest.mark.parametrize("seed", range(5))
def test_a_grown_tree_is_the_best_of_all_trees(seed, nodes):
    rng = np.random.default_rng(seed)
    table = [sorted((rng.random(width) / 2).tolist(), reverse=seed % 2 == 0) for width in (3, 2, 2)]
    if seed == 4:  # everything is sure
        table = [[1.0, 1.0]] * 3
    worth = {
        some: sum(np.prod([table[depth][rank] for depth, rank in enumerate(path)]) for path in some)
        for some in all_trees(table, nodes)
    }
    shape = best_tree_shape(table, nodes)
    assert len(shape) == nodes and len(worth) > (1 if nodes > 1 else 0)
    paths = tree_paths([rank for _, rank in shape], [parent for parent, _ in shape])
    assert worth[tuple(sorted(paths))] == pytest.approx(max(worth.values()), abs=1e-12)
    assert len(best_tree_shape([[0.5, 0.0], [0.1]], 100)) == 4, "it ends where nothing is left"
    assert best_tree_shape([[0.75, 0.3], [0.4]], 2) == [(-1, 0), (-1, 1)], "0.75 * 0.4 is 0.3, and floats have more"
