"""A pair of models, and what the methods ask for when they are built for it: stores, layer, heads, draft lengths."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specdec_lib import methods, paths
from specdec_lib.datastores import SuffixIndex
from specdec_lib.datastores.dense import DenseIndex
from specdec_lib.datastores.exact_search import ExactIndex
from specdec_lib.decoding.contract import Capture, Drafter
from specdec_lib.decoding.runtime import Runtime
from specdec_lib.decoding.served_models import decoder_config, input_device
from specdec_lib.drafters import PromptLookupHidden
from specdec_lib.drafters.pass_costs import CURVES, PassCosts
from specdec_lib.drafters.tree_probabilities import TreeProbabilities
from specdec_lib.experiments.data import prompts, stores
from specdec_lib.experiments.data.prompt import Prompt
from specdec_lib.experiments.runs.metrics import pooled_metrics
from specdec_lib.experiments.runs.recorded_runs import replay_all
from specdec_lib.experiments.runs.recordings import record_once
from specdec_lib.heads import induction
from specdec_lib.heads.acceptance import AcceptanceHead
from specdec_lib.heads.drafting import DraftHead
from specdec_lib.lazy import former_attribute, former_keywords
from specdec_lib.models.fingerprint import fingerprint


def choosing() -> list[Prompt]:
    """The prompts on whose first 64 tokens of an answer layer and heads of PLD+ are chosen."""
    return prompts.load("choose", prompts.COPYING, 8)


def companions(target: PreTrainedModel) -> Path:
    """The folder of what was trained for a target; for a target that nothing ships for, SmolLM2's, whose heads it refuses."""
    about = paths.POCKET / "pld_plus.json"
    own = about.is_file() and json.loads(about.read_text(encoding="utf-8"))["target"] == fingerprint(target)
    return paths.POCKET if own else paths.SMOLLM2


@former_keywords(prices="costs")
@dataclass
class ModelPair:
    """A target and a draft model: the :class:`specdec_lib.methods.Workbench` of the chapters. Stores are built, and layer and
    heads chosen, when a method asks for them; ``notes`` says what was chosen, or is given ``layer`` and ``heads``.

    The datastores of ``store_tokens`` and ``dense_tokens`` hold text of the standard library that the prompts are not from. One
    tree sizes its drafts by ``costs``: by default a processor's curve, in which drafting is free. Give those that were
    measured for this pair, ``ModelPair(..., costs=PassCosts(widths, drafted_token=...))``, or set the field once they are
    known. ``heads_folder`` and ``tree_weights`` (what ``python -m specdec_lib fit-tree`` wrote) are by default those that are
    shipped for the target.
    """

    target: PreTrainedModel
    draft: PreTrainedModel | None
    tokenizer: PreTrainedTokenizerBase
    store_tokens: int = 200_000
    dense_tokens: int = 40_000
    notes: dict[str, Any] = field(default_factory=dict)
    draft_runtime: Runtime | None = None
    costs: PassCosts = CURVES["cpu"]
    prices = former_attribute("costs")
    heads_folder: Path | None = None
    tree_weights: Path | None = None

    @classmethod
    def untuned(
        cls, target: PreTrainedModel, draft: PreTrainedModel | None, tokenizer: PreTrainedTokenizerBase
    ) -> ModelPair:
        """A pair with small stores, the middle layer and all heads of the last block, for comparisons of outputs alone: any
        layer and any heads must leave the output as it is."""
        config = decoder_config(target)
        heads = [(config.num_hidden_layers - 1, head) for head in range(config.num_attention_heads)]
        notes = {"layer": config.num_hidden_layers // 2, "heads": heads}
        return cls(target, draft, tokenizer, store_tokens=100_000, dense_tokens=10_000, notes=notes)

    @cached_property
    def sparse(self) -> SuffixIndex:
        """The suffix index that REST searches."""
        return stores.text_store("stdlib", self.tokenizer, self.store_tokens)

    @cached_property
    def dense_text(self) -> SuffixIndex:
        """The beginning of the same text, which the dense index holds the states of."""
        return stores.first_part(self.sparse, self.dense_tokens)

    @cached_property
    def dense(self) -> DenseIndex | ExactIndex:
        """The dense index that DReSD searches, by FAISS where it is there and by torch elsewhere."""
        part = self.dense_text
        states = stores.dense_states(self.target, part)
        try:
            import faiss  # noqa: F401

            index = stores.dense_index(states, part)
        except ImportError:
            index = ExactIndex(states, part.store, device=input_device(self.target))
        self.notes["dense states"] = len(index)
        return index

    @cached_property
    def acceptance_head(self) -> AcceptanceHead:
        """The acceptance head that is shipped for the draft model; another has none."""
        head = AcceptanceHead.load(companions(self.target) / "head" / "acceptance-confidence.safetensors")
        if head.draft != fingerprint(self.draft):
            raise methods.Unavailable(
                "an acceptance head trained for this draft model: python -m specdec_lib train-acceptance-head"
            )
        return head

    def draft_heads(self, kind: str) -> DraftHead:
        """The heads of a kind in the pair's folder of heads, which must be of this target."""
        heads = DraftHead.load((self.heads_folder or companions(self.target) / "heads") / f"{kind}.safetensors")
        if heads.target != fingerprint(self.target):
            raise methods.Unavailable(
                f"{kind} heads trained for this target: python -m specdec_lib train-heads --kind {kind}"
            )
        return heads

    @cached_property
    def tree_probabilities(self) -> TreeProbabilities:
        """The weights of one tree's sources. They tell of sources, not of models, and go on learning as decoding does."""
        return TreeProbabilities.load(self.tree_weights or companions(self.target) / "one_tree.safetensors")

    @property
    def layer(self) -> int:
        """The layer whose states PLD+ compares: noted, shipped for the target, or chosen on prompts of the choosing half."""
        return self._chosen("layer")

    @property
    def heads(self) -> list[tuple[int, int]]:
        """The heads whose attention PLD+ reads, chosen as the layer is."""
        return self._chosen("heads")

    def _chosen(self, name: str) -> Any:
        if name not in self.notes:
            kept = companions(self.target) / "pld_plus.json"
            about = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else {}
            if about.get("target") == fingerprint(self.target):
                self.notes |= {"layer": about["layer"], "heads": [tuple(head) for head in about["heads"]]}
            else:
                self.choose_heads()
        return self.notes[name]

    def choose_heads(self) -> None:
        """Choose PLD+'s layer and eight heads on prompts of the choosing half, and note them."""
        asked = choosing()
        layers = tuple(range(decoder_config(self.target).num_hidden_layers + 1))
        everything = induction.every_head(self.target) | Capture(layers)
        tuned = record_once(self.target, self.tokenizer, asked, None, 64, everything)
        credited = induction.induction_heads(self.target, (recording.trace for recording in tuned))
        short = methods.METHODS["PLD"].length
        runs = {i: replay_all(tuned, PromptLookupHidden(i, short)) for i in layers}
        rates = {i: pooled_metrics(own)["tokens_per_forward"] for i, own in runs.items()}
        self.notes["layer"] = max(layers, key=lambda i: (rates[i], -i))  # the lowest among equals
        self.notes["heads"] = list(credited.top(min(8, len(credited.ranked()))))

    def length(self, method: str) -> int:
        """Draft length of a method: its row's."""
        return methods.draft_length(method, {})

    def drafters(
        self, names: Sequence[str], lengths: Mapping[str, int] | None = None, runtime: Runtime | None = None
    ) -> dict[str, Drafter | None]:
        """Drafters by name, without those that these models have nothing for; ``notes["left out"]`` then says why.

        Draft lengths are those of ``lengths``, or the methods' own; ``runtime`` is of the draft model.
        """
        drafters, missing = methods.build(_Asked(self, lengths or {}, runtime), names)
        if missing:
            self.notes["left out"] = missing
        return drafters


class _Asked:
    """A pair with the draft lengths and the runtime that were asked for."""

    def __init__(self, pair: ModelPair, lengths: Mapping[str, int], runtime: Runtime | None):
        self.pair, self.lengths = pair, lengths
        self.draft_runtime = pair.draft_runtime if runtime is None else runtime

    def length(self, method: str) -> int:
        return methods.draft_length(method, self.lengths)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pair, name)
