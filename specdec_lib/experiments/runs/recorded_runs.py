"""Many prompts at once: what the notebooks call.

Each turn of a conversation is a generation of its own, with the model's own earlier answers in its history. It is decoded
plainly once; drafters are then replayed on the recordings, or run for real and compared with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from specdec_lib.decoding.checks import one_of
from specdec_lib.decoding.contract import Capture, Context, Drafter
from specdec_lib.decoding.generate import generate, record
from specdec_lib.decoding.loop import Trace, replay
from specdec_lib.decoding.results import Generation
from specdec_lib.decoding.runtime import Runtime
from specdec_lib.decoding.sampling import Sampling
from specdec_lib.decoding.tree import DraftTree
from specdec_lib.drafters import DraftModel
from specdec_lib.experiments.data.prompt import Prompt, render
from specdec_lib.experiments.runs.all_cores import on_all_cores
from specdec_lib.experiments.runs.metrics import ends_in_loop
from specdec_lib.models.loading import load_model, load_tokenizer, model_location

Runs = Sequence[Generation]
#: What a drafter knows of other prompts: nothing, or what it learned from those before in order.
STATES = ("cold", "warm")
#: Tokens that every method decodes before any time counts.
WARM_UP = 3

#: A chat as plain text: its turns, and the answers before the last one, with an empty line between them.
PLAIN_TEXT = (
    "{% for message in messages %}{{ message['content'] }}{% if not loop.last %}{{ '\n\n' }}{% endif %}{% endfor %}"
)

#: Parameters below which a model's steps on the CPU are too short for more than one thread.
ONE_THREAD = 50_000_000


def load_pair(
    target: str | Path,
    draft: str | Path,
    device: str = "auto",
    dtype: str = "auto",
    *,
    chat: bool = True,
    plain_text: bool = False,
) -> tuple[PreTrainedModel, PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a target, a draft and their tokenizer without progress bars.

    Before any weights are read, two that do not share a tokenizer are rejected, and, if ``chat`` is set as the book's prompts
    need it, a target without a chat template; ``plain_text`` gives it the prompts as plain text (:func:`as_plain_text`).

    On the CPU a target below :data:`ONE_THREAD` parameters is decoded on one thread of torch from then on: its steps
    are too short to share, and two threads wait for each other tens of times as long as they compute when another
    program takes a core. Timings then do not depend on other load, nor rounding on the number of cores.
    """
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model_location(draft)  # one that is not there is told before the target is looked at
        known, other = load_tokenizer(target), load_tokenizer(draft)
        if known.get_vocab() != other.get_vocab():
            raise ValueError(
                f"the tokenizers of target {str(target)!r} and draft {str(draft)!r} differ; choose models that share one"
            )
        if chat and not plain_text:
            check_template(target, known)
        model, tokenizer = load_model(target, device, dtype)
        if plain_text:
            as_plain_text(tokenizer)
        small, _ = load_model(draft, device, dtype)
    finally:
        if shown:
            logging.enable_progress_bar()
    if model.device.type == "cpu" and model.num_parameters() < ONE_THREAD:
        torch.set_num_threads(1)
    return model, small, tokenizer


def check_template(target: str | Path, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
    """Reject a target without a chat template, before its weights are read."""
    tokenizer = tokenizer or load_tokenizer(target)
    if tokenizer.chat_template is None:
        raise ValueError(
            f"the prompts are chats and the tokenizer of {str(target)!r} has no chat template; choose a chat model, give its "
            "folder a chat_template.jinja, or set the parameter plain_text of a chapter"
        )


def as_plain_text(tokenizer: PreTrainedTokenizerBase) -> None:
    """Let chats be rendered as plain text, as the tokenizer would read it: with its token for a beginning, if it sets one."""
    begins = tokenizer("")["input_ids"] == [tokenizer.bos_token_id]
    tokenizer.chat_template = ("{{ bos_token }}" if begins else "") + PLAIN_TEXT


def each_turn(
    prompt: Prompt, tokenizer: PreTrainedTokenizerBase, answer: Callable[[list[int]], Any]
) -> Iterator[tuple[int, Any]]:
    """Yield each turn's number and what ``answer`` gives for its token ids (a run with ``tokens``), in order: each turn has the
    answers before it in its history."""
    said: list[str] = []
    for turn in range(len(prompt.turns)):
        run = answer(render(prompt, tokenizer, said))
        yield turn, run
        said.append(tokenizer.decode(run.tokens, skip_special_tokens=True))


@dataclass(frozen=True)
class Recording:
    """A plain run of one turn, counted from 0."""

    prompt: Prompt
    turn: int
    trace: Trace

    @property
    def task(self) -> str:
        """Name of the prompt's task."""
        return self.prompt.task

    @cached_property
    def looped(self) -> bool:
        """Whether the output ends in a loop (:func:`specdec_lib.experiments.runs.metrics.ends_in_loop`)."""
        return ends_in_loop(self.trace.tokens)


def record_prompts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    sampling: Sampling | None = None,
    max_new_tokens: int = 128,
    capture: Capture = Capture(),
    runtime: Runtime | None = None,
) -> list[Recording]:
    """Decode every turn of every prompt plainly and keep it, as :func:`specdec_lib.record` does."""

    def answer(ids: list[int]) -> Trace:
        return record(model, ids, sampling, max_new_tokens, capture=capture, runtime=runtime)

    def recorded(prompt: Prompt) -> list[Recording]:
        return [Recording(prompt, turn, trace) for turn, trace in each_turn(prompt, tokenizer, answer)]

    # Passes over buffers in place are of one process.
    of_each = on_all_cores([partial(recorded, prompt) for prompt in prompts], 1 if runtime else None)
    return [recording for own in of_each for recording in own]


def in_state(
    recordings: Sequence[Recording], drafter: Drafter | None, state: str, run: Callable[[Recording], Generation]
) -> list[Generation]:
    """Run recordings in order, ``drafter`` being the one that ``run`` decodes with. Each run says its ``state``.

    State ``"cold"`` resets the drafter before each recording, ``"warm"`` before the first alone.
    """
    one_of("state", state, STATES)
    runs = []
    for i, recording in enumerate(recordings):
        if drafter is not None and (state == "cold" or i == 0):
            drafter.reset()
        runs.append(replace(run(recording), state=state))
    return runs


def run_again(
    model: PreTrainedModel, recordings: Sequence[Recording], drafter: Drafter | None, state: str = "cold"
) -> list[Generation]:
    """Decode the recorded prompts for real, with ``drafter``, under the recorded limits and sampling.

    ``state`` is as for :func:`in_state`.
    """
    return in_state(recordings, drafter, state, lambda recording: _run(model, recording.trace, drafter))


def _run(model: PreTrainedModel, trace: Trace, drafter: Drafter | None) -> Generation:
    limits = trace.limits
    return generate(model, trace.prompt, drafter, trace.sampling, limits.max_new_tokens, sorted(limits.eos))


def replay_all(recordings: Sequence[Recording], drafter: Drafter | None, state: str = "cold") -> list[Generation]:
    """What decoding each recorded prompt with ``drafter`` would have done (:func:`specdec_lib.replay`).

    ``state`` is as for :func:`in_state`.
    """
    return in_state(recordings, drafter, state, lambda recording: replay(recording.trace, drafter))


def replay_each(recordings: Sequence[Recording], drafters: Mapping[str, Drafter | None]) -> dict[str, list[Generation]]:
    """By name what :func:`replay_all` does with each drafter from cold starts, on all cores.

    Draft times are those of cores that share their memory: measure times with :func:`replay_all`.
    """
    return _each(replay_all, recordings, drafters, {})


def run_each_again(
    model: PreTrainedModel,
    recordings: Sequence[Recording],
    drafters: Mapping[str, Drafter | None],
    state: Mapping[str, str] | None = None,
) -> dict[str, list[Generation]]:
    """By name what :func:`run_again` does with each drafter, on all cores; ``state`` is cold where none is named."""
    return _each(partial(run_again, model), recordings, drafters, state or {})


def _each(
    run: Callable[..., list[Generation]],
    recordings: Sequence[Recording],
    drafters: Mapping[Any, Drafter | None],
    state: Mapping[Any, str],
) -> dict[Any, list[Generation]]:
    """Run each drafter over all recordings: one by one from cold starts, as one piece where it is warm."""
    tasks = {name: partial(run, drafter=drafter, state=state.get(name, "cold")) for name, drafter in drafters.items()}
    warm = {name for name in tasks if state.get(name, "cold") != "cold" and recordings}
    parts = [(name, recordings) for name in tasks if name in warm]
    parts += [(name, [recording]) for name in tasks if name not in warm for recording in recordings]
    runs: dict[Any, list[Generation]] = {name: [] for name in tasks}
    done = on_all_cores([partial(tasks[name], some) for name, some in parts])
    for (name, _), own in zip(parts, done, strict=True):
        runs[name] += own
    return runs


def can_be_replayed(recordings: Sequence[Recording], drafter: Drafter | None) -> bool:
    """Whether a replay of these recordings is the real run (``Drafter.replays``)."""
    if drafter is None or drafter.replays == "any":
        return True
    return drafter.replays == "greedy" and all(recording.trace.sampling.greedy for recording in recordings)


def runs_of(
    model: PreTrainedModel, recordings: Sequence[Recording], drafter: Drafter | None, state: str = "cold"
) -> list[Generation]:
    """Decode the recorded prompts with ``drafter``: by replay where that gives the real run, for real elsewhere."""
    if can_be_replayed(recordings, drafter):
        return replay_all(recordings, drafter, state)
    return run_again(model, recordings, drafter, state=state)


def all_runs(
    model: PreTrainedModel,
    recordings: Sequence[Recording],
    drafters: Mapping[Any, Drafter | None],
    state: Mapping[Any, str],
) -> dict[Any, list[Generation]]:
    """By name what :func:`runs_of` gives for each drafter, on all cores."""
    return _each(partial(runs_of, model), recordings, drafters, state)


class _Remembering(Drafter):
    """A greedy draft model that drafts once from each position and is asked for a prefix later.

    A greedy draft of K tokens is the beginning of any longer one from the same position.
    """

    replays = "greedy"

    def __init__(self, drafter: DraftModel, memory: dict[int, list[int]]):
        self.drafter, self.memory, self._started = drafter, memory, False

    def start(self, context: Context) -> None:
        self._started = False

    def finish(self) -> None:
        self.drafter.finish()

    def propose(self, context: Context, limit: int) -> DraftTree:
        position, wanted = len(context.tokens), min(self.drafter.num_tokens, limit)
        if len(self.memory.get(position, ())) < wanted:
            if not self._started:
                self.drafter.start(context)
                self._started = True
            self.memory[position] = self.drafter.propose(context, limit).tokens
        return DraftTree.chain(self.memory[position][:wanted])


def sweep_draft_model(
    recordings: Sequence[Recording], draft: PreTrainedModel, lengths: Sequence[int]
) -> dict[int, list[Generation]]:
    """Replay a draft model on greedy recordings at every draft length K, drafting no token twice.

    By K one Generation per recording: its steps are those of ``replay(trace, DraftModel(draft, K))``, its draft times are not.
    """

    def swept(recording: Recording) -> dict[int, Generation]:
        memory: dict[int, list[int]] = {}
        return {
            length: replay(recording.trace, _Remembering(DraftModel(draft, length), memory))
            for length in sorted(lengths, reverse=True)
        }

    of_each = on_all_cores([partial(swept, recording) for recording in recordings])
    return {length: [runs[length] for runs in of_each] for length in lengths}


def time_methods(
    model: PreTrainedModel,
    recordings: Sequence[Recording],
    drafters: Mapping[str, Drafter | None],
    repeats: int,
    state: str | Mapping[str, str] = "cold",
) -> dict[str, list[list[Generation]]]:
    """Run every method on every prompt ``repeats`` times, in turns, so that load changes meet them alike.

    No drafter sees what it learned in an earlier repeat: all are reset before each prompt, or those whose ``state`` is warm
    before the first of each repeat alone; the state is one for all or by method. Each method decodes the beginning of the first
    recording before any time counts. Gives by method for each repeat one Generation per recording. Raises ValueError if two
    methods share one drafter that is to stay warm.
    """
    state = dict.fromkeys(drafters, state) if isinstance(state, str) else state
    for name in drafters:
        one_of("state", state[name], STATES)
    made = [id(drafter) for drafter in drafters.values() if drafter is not None]
    if "warm" in state.values() and len(set(made)) < len(made):
        raise ValueError("two methods share one drafter, which would learn from both; make one for each")
    runs: dict[str, list[list[Generation]]] = {name: [[] for _ in range(repeats)] for name in drafters}
    first_trace = recordings[0].trace
    warming = replace(first_trace.limits, max_new_tokens=min(WARM_UP, first_trace.limits.max_new_tokens))
    for drafter in drafters.values():
        _run(model, replace(first_trace, limits=warming), drafter)
    names = list(drafters)
    for repeat in range(repeats):
        for place, recording in enumerate(recordings):
            first = (place + repeat) % len(names)
            for name in names[first:] + names[:first]:
                drafter = drafters[name]
                if drafter is not None and (state[name] == "cold" or place == 0):
                    drafter.reset()
                run = _run(model, recording.trace, drafter)
                runs[name][repeat].append(replace(run, state=state[name]))
    return runs


def prompts_of(recordings: Sequence[Recording]) -> list[tuple[str, str]]:
    """The prompt of each recording, whose turns and seeds share it."""
    return [(r.task, r.prompt.id) for r in recordings]
