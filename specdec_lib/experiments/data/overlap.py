"""How much of an answer stands in its prompt."""

from __future__ import annotations

from sacrebleu.metrics import BLEU


def overlap(prompt: str, answer: str) -> float:
    """BLEU-4 of an answer against its prompt, 0 to 1, without the penalty for being shorter than the prompt.

    What is left is the geometric mean of the shares of the answer's word 1- to 4-grams that stand in the prompt: a short
    quotation from a long text overlaps wholly.
    """
    bleu = BLEU(effective_order=True)
    counted = bleu.sentence_score(answer, [prompt])
    return bleu.compute_bleu(counted.counts, counted.totals, 1, 1, effective_order=True).score / 100
