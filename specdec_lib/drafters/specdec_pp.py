"""SpecDec++: draft until the acceptance head expects a rejection (Huang et al. 2024)."""

from __future__ import annotations

from transformers import PreTrainedModel

from specdec_lib.decoding.runtime import Runtime
from specdec_lib.drafters.draft_model import AdaptiveDraftModel
from specdec_lib.drafters.stopping import PredictedRejection
from specdec_lib.heads.acceptance import AcceptanceHead


class SpecDecPP(AdaptiveDraftModel):
    """Draft until the predicted probability that a drafted token is rejected exceeds a threshold.

    It stops by Algorithm 2 and section 3.1, where the token drawn last is submitted without having been judged.

    Parameters
    ----------
    model, runtime
        As for :class:`~specdec_lib.drafters.draft_model.AdaptiveDraftModel`.
    head : AcceptanceHead
        Of this draft model.
    threshold : float
        h, strictly between 0 and 1; 0.7 for all data sets of the paper.
    min_tokens, max_tokens : int
        Bounds on the length; the released code has those of its option ``--bound 2 20``.
    check_newest : bool
        Judge the token drawn last too, as the text of section 3.2 has it; that takes one more pass of the draft model.

    Examples
    --------
    >>> from specdec_lib import generate, paths
    >>> from specdec_lib.drafters import SpecDecPP
    >>> from specdec_lib.heads.acceptance import AcceptanceHead
    >>> head = AcceptanceHead.load(paths.POCKET / "head/acceptance.safetensors", draft)
    >>> run = generate(model, prompt, SpecDecPP(draft, head, threshold=0.7), max_new_tokens=24)
    >>> [step.drafted for step in run.steps]
    [2, 2, 3, 4, 3, 5, 3, 3, 2, 1]
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
