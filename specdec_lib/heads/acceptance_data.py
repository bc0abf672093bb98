"""What an acceptance head is trained on: responses of the target, tokens of the draft, and their acceptance.

Section 3.3 of SpecDec++: the target answers a prompt with X; the draft model draws a token Y_i after each
prefix of X; the label is min(1, p(Y_i) / q(Y_i)). The head then reads the draft's states over a mixture Z
of X and Y.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from specdec_lib.decoding.checks import one_of
from specdec_lib.decoding.contract import Capture, Drafter
from specdec_lib.decoding.forward import last_logits_argument
from specdec_lib.decoding.generate import generate
from specdec_lib.decoding.sampling import DRAFT, Sampling, distribution, invert_cdf
from specdec_lib.decoding.served_models import context_limit, decoder_config, input_device, vocabulary_size
from specdec_lib.decoding.target import Target
from specdec_lib.heads.acceptance import Examples
from specdec_lib.heads.answers import Answer, record_or_load
from specdec_lib.models.draft_vocabulary import draft_vocabulary
from specdec_lib.models.fingerprint import fingerprint

LABELS = ("decoding", "raw")


@dataclass(frozen=True, eq=False)
class Response(Answer):
    """X, what the target answered, drafted along by the draft model; arrays of shape (n,).

    Examples
    --------
    >>> from specdec_lib import Sampling, generate
    >>> from specdec_lib.heads.acceptance_data import label
    >>> tokens = generate(model, prompt, max_new_tokens=8).tokens
    >>> response = label(model, draft, prompt, tokens, Sampling())
    >>> len(response.tokens) == len(response.drawn) == len(response.confidence)
    True
    """

    #: Y, int: ``drawn[i]`` follows the prompt and ``tokens[:i]``.
    drawn: np.ndarray
    #: Probability that the target accepts ``drawn[i]`` there, float32.
    acceptance: np.ndarray
    #: Probability of ``drawn[i]`` under the distribution it was drawn from, float32; temperature 1 if greedy.
    confidence: np.ndarray


@torch.inference_mode()
def _logits(model: PreTrainedModel, start: int, tokens: Sequence[int]) -> torch.Tensor:
    ids = torch.tensor([tokens], device=input_device(model))
    # Of the answer alone: those of a long prompt are gigabytes with a large vocabulary.
    last = len(tokens) - start + 1
    return model(ids, use_cache=False, **last_logits_argument(model, last)).logits[0, -last:-1].float().cpu()


def label(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    prompt: Sequence[int],
    tokens: Sequence[int],
    sampling: Sampling,
    labels: str = "decoding",
) -> Response:
    """Draw a token of the draft model after each prefix of an answer, with its probability of acceptance (section 3.3).

    Parameters
    ----------
    target, draft : PreTrainedModel
    prompt, tokens : sequence of int
        The answer is the target's.
    sampling : Sampling
    labels : {"decoding", "raw"}
        ``"decoding"``: tokens are drawn and judged under the distributions that are decoded with; with greedy decoding each Y_i is
        the draft's first choice, accepted or not. ``"raw"``, as released: under both models' own at temperature 1.

    Returns
    -------
    Response

    Examples
    --------
    >>> from specdec_lib import Sampling, generate
    >>> from specdec_lib.heads.acceptance_data import label
    >>> tokens = generate(model, prompt, max_new_tokens=8).tokens
    >>> label(model, draft, prompt, tokens, Sampling()).acceptance.tolist()
    [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0]
    """
    one_of("labels", labels, LABELS)
    text, start = [*prompt, *tokens], len(prompt)
    p_logits = _logits(target, start, text)[:, : vocabulary_size(target)]
    known = draft_vocabulary(draft).within(p_logits.shape[-1])
    q_logits = _logits(draft, start, known.to_draft(text))
    q_logits = known.spread(q_logits[:, : len(known)], p_logits.shape[-1], -torch.inf)
    drawn_by = Sampling(1.0, seed=sampling.seed) if labels == "raw" else sampling
    if drawn_by.greedy:
        confidence, drawn = q_logits.softmax(-1).max(-1)
        acceptance = (p_logits.argmax(-1) == drawn).float()
    else:
        p, q = distribution(p_logits, drawn_by), distribution(q_logits, drawn_by)
        bound = drawn_by.for_prompt(prompt)
        draws = [invert_cdf(row, bound.uniform(len(prompt) + i, DRAFT)) for i, row in enumerate(q)]
        drawn = torch.tensor(draws)
        chosen = [rows.gather(1, drawn[:, None])[:, 0] for rows in (p, q)]
        acceptance, confidence = (chosen[0] / chosen[1]).clamp(max=1.0).float(), chosen[1].float()
    return Response(
        np.asarray(prompt, np.int32),
        np.asarray(tokens, np.int32),
        drawn.numpy().astype(np.int32),
        acceptance.numpy(),
        confidence.numpy(),
    )


def generate_data(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    folder: str | Path,
    sampling: Sampling = Sampling(),
    labels: str = "decoding",
    max_new_tokens: int = 128,
    drafter: Drafter | None = None,
    progress: bool = True,
) -> list[Response]:
    """Answer and label (:func:`label`) many prompts into a folder (:func:`~specdec_lib.heads.answers.record_or_load`).

    Prompt ``i`` is sampled with the seed of ``sampling`` plus ``i``.

    Parameters
    ----------
    target, draft : PreTrainedModel
    prompts : sequence of sequences of int
    folder : path
        Empty, or one that an interrupted call with the same arguments left.
    sampling : Sampling
    labels : {"decoding", "raw"}
        As for :func:`label`.
    max_new_tokens : int
    drafter : Drafter, optional
        One that does not change the tokens (:class:`specdec_lib.drafters.prompt_lookup.PromptLookup`), to answer sooner.
    progress : bool
        Show a bar.

    Returns
    -------
    list of Response

    Raises
    ------
    ValueError
        If a prompt and its answer do not fit into the draft model's context, or the folder holds other answers.

    Examples
    --------
    >>> from specdec_lib.heads.acceptance_data import generate_data
    >>> responses = generate_data(model, draft, [prompt], folder, max_new_tokens=8, progress=False)
    >>> len(responses[0].drawn) == len(responses[0].tokens)
    True
    """
    one_of("labels", labels, LABELS)
    limit, longest = context_limit(draft), max(map(len, prompts), default=0) + max_new_tokens
    longest = min(longest, context_limit(target) or longest)
    if limit is not None and longest > limit:
        raise ValueError(
            f"a prompt and its answer have up to {longest} tokens, the draft model's context is {limit}; expected shorter "
            "prompts or fewer max_new_tokens"
        )

    def respond(number: int, prompt: list[int]) -> Response:
        own = replace(sampling, seed=sampling.seed + number)
        tokens = generate(target, prompt, drafter, own, max_new_tokens).tokens
        return label(target, draft, prompt, tokens, own, labels)

    about = {
        "target": fingerprint(target),
        "draft": fingerprint(draft),
        "sampling": asdict(sampling),
        "labels": labels,
        "max_new_tokens": max_new_tokens,
    }
    return record_or_load(Response, folder, target, prompts, about, respond, progress)


def check_mixing(mixing: float | None) -> None:
    """Reject a mixing rate that leaves nothing to learn from.

    Parameters
    ----------
    mixing : float or None

    Raises
    ------
    ValueError
        If it is outside [0, 1).

    Examples
    --------
    >>> from specdec_lib.heads.acceptance_data import check_mixing
    >>> check_mixing(0.15)
    >>> check_mixing(1.0)
    Traceback (most recent call last):
        ...
    ValueError: mixing is 1.0; expected a probability in [0, 1), or None for unmixed prefixes
    """
    if mixing is not None and not 0.0 <= mixing < 1.0:
        raise ValueError(f"mixing is {mixing!r}; expected a probability in [0, 1), or None for unmixed prefixes")


def own_tokens(responses: Sequence[Response], mixing: float | None, seed: int = 0) -> list[np.ndarray]:
    """Which tokens of each answer are the draft model's own in a mixture.

    Parameters
    ----------
    responses, mixing, seed
        As for :func:`examples`.

    Returns
    -------
    list of bool arrays of shape (n,)

    Examples
    --------
    >>> from specdec_lib.heads.acceptance_data import generate_data, own_tokens
    >>> responses = generate_data(model, draft, [prompt], folder, max_new_tokens=8, progress=False)
    >>> own_tokens(responses, mixing=None)[0].all()
    np.True_
    """
    rng = np.random.default_rng(seed)
    return [
        np.ones(len(r.tokens), dtype=bool) if mixing is None else rng.random(len(r.tokens)) >= mixing for r in responses
    ]


@torch.inference_mode()
def examples(
    draft: PreTrainedModel, responses: Sequence[Response], mixing: float | None = 0.15, seed: int = 0
) -> Examples:
    """The draft model's states over a mixture of both models' tokens, at those it drew itself (section 3.3).

    Parameters
    ----------
    draft : PreTrainedModel
    responses : sequence of Response
    mixing : float or None
        r, the probability of each Z_i being X_i, 0.15 as released; only the others are learned from. With None each Y_i follows
        the unmixed prefix X_1 .. X_{i-1}, which is where the label was taken.
    seed : int
        Of the mixture.

    Returns
    -------
    Examples

    Examples
    --------
    >>> from specdec_lib.heads.acceptance_data import examples, generate_data
    >>> responses = generate_data(model, draft, [prompt], folder, max_new_tokens=8, progress=False)
    >>> examples(draft, responses, mixing=None).states.shape == (8, draft.config.hidden_size)
    True
    """
    check_mixing(mixing)
    last, known = decoder_config(draft).num_hidden_layers, draft_vocabulary(draft)
    states, labels, confidence = [], [], []
    for r, own in zip(responses, own_tokens(responses, mixing, seed), strict=True):
        length, count = len(r.prompt), len(r.tokens)
        with Target(draft, 0, Capture(layers=(last,)), capacity=length + 2 * count) as model:
            chosen = r.tokens if mixing is None else np.where(own, r.drawn, r.tokens)
            model.extend(known.to_draft([*r.prompt.tolist(), *chosen.tolist()]))
            found = model.hidden(last)[length:].clone()
            if mixing is None and len(other := np.flatnonzero(r.drawn != r.tokens)):
                before = torch.arange(length + count) < torch.from_numpy(length + other)[:, None]
                visible = torch.cat([before, torch.eye(len(other), dtype=torch.bool)], dim=1)
                model.extend_rows(known.to_draft(r.drawn[other].tolist()), (length + other).tolist(), visible)
                found[torch.from_numpy(other)] = model.hidden(last)[-len(other) :]
            states.append(found[torch.from_numpy(own)].float().cpu())
        labels.append(torch.from_numpy(r.acceptance[own]))
        confidence.append(torch.from_numpy(r.confidence[own]))
    if not sum(map(len, labels)):
        raise ValueError(f"mixing of {mixing} left no token of the draft model in {len(responses)} responses")
    return Examples(torch.cat(states), torch.cat(labels), torch.cat(confidence))
