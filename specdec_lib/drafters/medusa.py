"""Medusa-1 (Cai et al. 2024): heads that each predict one token ahead, independently of each other."""

from __future__ import annotations

from specdec_lib.decoding.contract import Context
from specdec_lib.drafters.head_drafter import StaticTreeDrafter
from specdec_lib.heads.drafting import MedusaHeads

#: Nodes of the released tree ``mc_sim_7b_63`` at each depth, 63 in all, with ranks up to 10.
LEVELS, RANKS = (10, 28, 23, 2), 10


class Medusa(StaticTreeDrafter):
    """Draft the product of what several heads find likely: children do not depend on their parent's token.

    The node of ranks r_1, ..., r_m carries the r_m-th choice of head m. All heads read the state of the last token but one, the
    newest whose state is known. Parameters are those of :class:`~specdec_lib.drafters.head_drafter.StaticTreeDrafter`.

    Examples
    --------
    >>> from specdec_lib import generate, paths
    >>> from specdec_lib.drafters.medusa import Medusa
    >>> from specdec_lib.heads.drafting import DraftHead
    >>> heads = DraftHead.load(paths.POCKET / "heads/medusa.safetensors", model)
    >>> run = generate(model, prompt, Medusa.grown(model, heads, nodes=16), max_new_tokens=24)
    >>> round(run.stats["tokens_per_forward"], 2)
    1.35
    """

    kind, levels, ranks = MedusaHeads, LEVELS, RANKS

    def _choices(self, context: Context, depth, above, tokens, parents, width) -> list[list[int]]:
        state = self._states(context, -1)
        return self._best(depth, self.heads.feature(depth, state), width) * len(above)
