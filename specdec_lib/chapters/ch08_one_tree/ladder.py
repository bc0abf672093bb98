"""The rungs that one tree is compared with: single sources, one source chosen at each step, unions of a fixed size."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from specdec_lib.decoding.contract import Capture, Context, Drafter
from specdec_lib.decoding.outputs import Outputs
from specdec_lib.decoding.tree import EMPTY, DraftTree
from specdec_lib.drafters.one_tree import view_of

#: Of SAM-Decoding's release: the shortest match whose continuation is drafted.
SAM_MATCH = 5
#: Of Arctic Inference's: the least expected acceptance of the suffix source for which the other one is not asked.
ARCTIC_SCORE = 3.0


def longest_match(matches: Mapping[str, int], drafts: Mapping[str, DraftTree]) -> str:
    """SAM-Decoding's rule: the source of the longest match where it has :data:`SAM_MATCH` tokens, else the last source."""
    names = list(drafts)
    best = max(names[:-1], key=lambda name: (matches[name], -names.index(name)))
    return best if matches[best] >= SAM_MATCH and len(drafts[best]) else names[-1]


def highest_score(matches: Mapping[str, int], drafts: Mapping[str, DraftTree]) -> str:
    """Arctic's rule: a source scores as many tokens as it expects to be accepted, by the shares of its own matches; the best
    one from :data:`ARCTIC_SCORE` on, else the last source."""
    names = list(drafts)
    scores = {name: sum(draft.scores or [1.0] * len(draft)) for name, draft in drafts.items()}
    best = max(names[:-1], key=lambda name: (scores[name], matches[name]))
    return best if scores[best] >= ARCTIC_SCORE else names[-1]


class Selection(Drafter):
    """Send the draft of one source at each step: ``rule`` chooses from the matches and the drafts by name.

    The last source is what is left where the others have nothing good enough.
    """

    def __init__(self, sources: Mapping[str, Drafter], rule: Callable[[Mapping, Mapping], str]):
        self.sources, self.rule = dict(sources), rule
        self.capture = Capture()
        for source in self.sources.values():
            self.capture |= source.capture
        self.replays = "never" if any(source.replays == "never" for source in self.sources.values()) else "any"

    def inner(self) -> tuple[Drafter, ...]:
        return tuple(self.sources.values())

    def reset(self) -> None:
        for source in self.sources.values():
            source.reset()

    def start(self, context: Context) -> None:
        self._views = {name: view_of(context, self.capture, source) for name, source in self.sources.items()}
        for name, source in self.sources.items():
            source.start(self._views[name])

    def propose(self, context: Context, limit: int) -> DraftTree:
        drafts = {name: source.propose(self._views[name], limit) for name, source in self.sources.items()}
        matches = {name: source.evidence(self._views[name]).match for name, source in self.sources.items()}
        return drafts[self.rule(matches, drafts)] if any(map(len, drafts.values())) else EMPTY

    def verified(self, tree: DraftTree, path: tuple[int, ...], outputs: Outputs | None) -> None:
        for source in self.sources.values():
            topk = source.capture.topk
            source.verified(tree, path, outputs.top(topk) if topk else None)

    def finish(self) -> None:
        for source in self.sources.values():
            source.finish()
