"""Files of acceptance heads, of heads that draft and of induction heads: what is damaged or of another model is refused by name."""

import json
import math

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save, save_file

from specdec_lib.heads.acceptance import AcceptanceHead
from specdec_lib.heads.drafting import DraftHead, HydraHeads, MedusaHeads
from specdec_lib.heads.induction import InductionHeads
from specdec_lib.models.fingerprint import fingerprint
from tests.families import perturbed

ACCEPTANCE, DRAFTING = "acceptance_head", "drafting_heads"


@pytest.fixture
def written(llama, tmp_path):
    """By metadata key: a file of each kind of heads for the model, and what reads it."""
    torch.manual_seed(0)
    paths = {ACCEPTANCE: tmp_path / "a.safetensors", DRAFTING: tmp_path / "d.safetensors"}
    AcceptanceHead(32, 2, draft=fingerprint(llama), story={"epochs": 3}).save(paths[ACCEPTANCE])
    MedusaHeads.for_target(llama, heads=2).save(paths[DRAFTING])
    return {key: (path, {ACCEPTANCE: AcceptanceHead, DRAFTING: DraftHead}[key].load) for key, path in paths.items()}


DAMAGE = {
    "nothing": ("both", lambda about, weights: about.clear(), "holds no"),
    "format": ("both", lambda about, weights: about.update(format=0), "is of format 0; this version reads format 1"),
    "NaN": ("both", lambda about, weights: next(iter(weights.values())).fill_(math.nan), "holds NaN"),
    "missing": ("both", lambda about, weights: weights.popitem(), "damaged .*Missing"),
    "further": ("both", lambda about, weights: weights.update(other=torch.zeros(1)), "damaged .*Unexpected"),
    "story": ("both", lambda about, weights: about.update(story=3), "damaged"),
    "width": (ACCEPTANCE, lambda about, weights: about.pop("width"), "damaged .*width"),
    "depth": (ACCEPTANCE, lambda about, weights: about.update(depth=9), "damaged .*depth is 9"),
    "inputs": (ACCEPTANCE, lambda about, weights: about.update(sees_confidence=True), "damaged .*size mismatch"),
    "kind": (DRAFTING, lambda about, weights: about.pop("kind"), "damaged .*kind"),
    "strange": (DRAFTING, lambda about, weights: about.update(kind="sequoia"), "'sequoia'; expected medusa or hydra"),
    "options": (DRAFTING, lambda about, weights: about["options"].update(width=16), "damaged .*size mismatch"),
    "heads": (DRAFTING, lambda about, weights: about["options"].update(heads=10**9), "damaged .*expected at most"),
    "layers": (DRAFTING, lambda about, weights: about["options"].update(layers=10**9), "damaged .*expected at most"),
    "large": (DRAFTING, lambda about, weights: about["options"].update(width=10**12), "damaged"),
    "larger": (DRAFTING, lambda about, weights: about["options"].update(width=10**30), "damaged"),
    "shares": (DRAFTING, lambda about, weights: about.update(story={"accuracies": [["1"]]}), "damaged .*accuracies"),
    "no shares": (DRAFTING, lambda about, weights: about.update(story={"accuracies": 1}), "damaged"),
    "option": (DRAFTING, lambda about, weights: about["options"].update(depth=3), "damaged .*depth"),
}


@pytest.mark.parametrize(
    "how, key",
    [(how, key) for how, (of, *_) in DAMAGE.items() for key in (ACCEPTANCE, DRAFTING) if of in ("both", key)],
)
def test_a_damaged_file_is_refused_by_name(written, key, how):
    _, damage, says = DAMAGE[how]
    path, load = written[key]
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()[key])
    weights = load_file(path)
    damage(about, weights)
    save_file(weights, path, metadata={key: json.dumps(about)})
    with pytest.raises(ValueError, match=f"{path.name}.* {says}|{path.name} {says}"):
        load(path)


@pytest.mark.parametrize("key", [ACCEPTANCE, DRAFTING])
def test_what_is_no_file_of_heads_or_of_another_model_is_refused(written, key, llama, tmp_path):
    path, load = written[key]
    load(path, llama)
    with pytest.raises(ValueError, match="trained for the .* with fingerprint .*python -m specdec_lib train-"):
        load(path, perturbed(llama))
    with pytest.raises(FileNotFoundError, match=f"no {key.replace('_', ' ')} at .*python -m specdec_lib train-"):
        load(tmp_path / "none")
    whole = path.read_bytes()
    others = [save({"x": torch.zeros(1)}, {key: about}) for about in ("[]", "null", "{", "[" * 10**5, "1" * 5000)]
    for content in (b"no tensors", whole[:-40], *others):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"{path.name} holds no {key.replace('_', ' ')}"):
            load(path)


def test_a_saved_head_is_the_same_and_heads_of_another_kind_are_refused(written, llama):
    with pytest.raises(ValueError, match="heads of kind 'medusa'; expected hydra"):
        HydraHeads.load(written[DRAFTING][0])
    head = AcceptanceHead.load(written[ACCEPTANCE][0], llama)
    assert (head.depth, head.story) == (2, {"epochs": 3})
    head.save(written[ACCEPTANCE][0])
    again = AcceptanceHead.load(written[ACCEPTANCE][0], llama)
    assert all(torch.equal(values, again.state_dict()[name]) for name, values in head.state_dict().items())


TEXTS = {
    "empty": lambda about: "",
    "cut off": lambda about: json.dumps(about)[:-20],
    "nested too deeply": lambda about: "[" * 10**5,
    "no mapping": lambda about: "[1]",
    "another format": lambda about: json.dumps(about | {"format": 99}),
    "no copied": lambda about: json.dumps({name: value for name, value in about.items() if name != "copied"}),
    "a count that is a text": lambda about: json.dumps(about | {"copied": "many"}),
    "rows of unequal length": lambda about: json.dumps(about | {"peaks": [[0.5], [0.5, 0.5]]}),
    "a head too few": lambda about: json.dumps(about | {"attention": [row[1:] for row in about["attention"]]}),
    "not a number": lambda about: json.dumps(about | {"peaks": [[math.nan] * len(row) for row in about["peaks"]]}),
}


@pytest.mark.parametrize("how", TEXTS)
def test_a_damaged_file_of_induction_heads_is_refused_by_name(llama, tmp_path, how):
    path, shape = tmp_path / "heads.json", (2, 4)
    InductionHeads(np.full(shape, 0.5), np.full(shape, 0.1), 3, fingerprint(llama)).save(path)
    assert InductionHeads.load(path, llama).copied == 3
    path.write_text(TEXTS[how](json.loads(path.read_text())))
    with pytest.raises(ValueError, match=r"heads\.json holds no induction heads"):
        InductionHeads.load(path, llama)
