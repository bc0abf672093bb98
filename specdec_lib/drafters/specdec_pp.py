"""SpecDec++: draft until the acceptance head expects a refusal (Huang et al. 2024)."""

from __future__ import annotations

from transformers import PreTrainedModel

from specdec_lib.decoding.runtime import Runtime
from specdec_lib.drafters.draft_model import AdaptiveDraftModel
from specdec_lib.drafters.stopping import PredictedRejection
from specdec_lib.heads.acceptance import AcceptanceHead


class SpecDecPP(AdaptiveDraftModel):
    """Draft until the predicted probability that a drafted token is refused exceeds a threshold.

    ``threshold`` is h, 0.7 for all data sets of the paper; the bounds on the length are those of the released code (its option
    ``--bound 2 20``). It stops by Algorithm 2 and section 3.1, where the token drawn last is submitted without having been judged;
    with ``check_newest`` by the text of section 3.2, which judges it too and takes one more pass of the draft model for that.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        head: AcceptanceHead,
        threshold: float = 0.7,
        min_tokens: int = 2,
        max_tokens: int = 20,
        check_newest: bool = False,
        runtime: Runtime | None = None,
    ):
        rule = PredictedRejection(threshold, check_newest)
        super().__init__(model, rule, min_tokens, max_tokens, head, runtime)
        self.threshold = threshold
