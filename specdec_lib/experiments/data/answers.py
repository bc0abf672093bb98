"""Recorded answers of a model, read from JSON lines: prompts with answers, or chats as chat APIs write them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from specdec_lib.experiments.data.chat_logs import BOOKKEEPING, Chat, chat_of
from specdec_lib.files import named
from specdec_lib.records import open_unpacked

#: Bad lines that an error names; the rest are counted.
_NAMED = 8


class Answer(NamedTuple):
    """What a model was given, as text, and what it wrote; the text of a ``chat`` has its template's special tokens in it."""

    prompt: str
    answer: str
    chat: bool = False


_EXPECTED = (
    '{"prompt": "...", "answer": "..."} on each line, or {"messages": [{"role": "user", "content": "..."}, '
    '{"role": "assistant", "content": "..."}]}'
)


def read_answers(
    path: str | Path, tokenizer: PreTrainedTokenizerBase | None = None, left_out: Counter[str] | None = None
) -> list[Answer]:
    """Read answers from JSON lines, packed (.gz, .zip) or not; blank lines are passed over, bad ones are named in a ValueError.

    A line is an object with the texts ``prompt`` and ``answer``, or a chat (:mod:`specdec_lib.experiments.data.chat_logs`), whose
    prompts the tokenizer's template writes: each assistant's turn with text is an answer to all that stands before it, tools
    included. ``left_out`` counts the lines with something that is not in the prompts and answers, by what it is.
    """
    reader = _Reader(tokenizer, Counter() if left_out is None else left_out)
    answers, bad = [], []
    with open_unpacked(named(path)) as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                answers += reader.answers(line)
            except ValueError as error:
                bad.append(f"line {number}: {error}")
    if bad:
        more = f"; and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
        raise ValueError(
            f"{path} has {len(bad)} bad lines, nothing was done. {'; '.join(bad[:_NAMED])}{more}. Expected {_EXPECTED}"
        )
    if not answers:
        raise ValueError(f"{path} holds no answers; expected {_EXPECTED}")
    return answers


def _check_text(name: str, text: object, present: bool = True) -> None:
    if not isinstance(text, str) or not text:
        raise ValueError(f"{name!r} is {text!r:.40}, no text" if present else f"{name!r} is missing")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name!r} holds half of a surrogate pair") from None


class _Reader:
    """Reads the lines of one file; notes what the tokenizer's template writes, so that it is looked at once."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None, left_out: Counter[str]):
        self.tokenizer, self.left_out = tokenizer, left_out
        self._written: set[str] = set()

    def answers(self, line: bytes) -> list[Answer]:
        """The answers of a line."""
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"no JSON ({error})") from None
        if not isinstance(record, dict):
            raise ValueError(f"a {type(record).__name__}, no object")
        try:
            chat = chat_of(record)
        except (AttributeError, KeyError, TypeError) as error:  # somewhere a number, say, instead of an object
            raise ValueError(f"a chat of no known form ({type(error).__name__}: {error})") from None
        if chat is not None:
            return self._turns(chat)
        for name in ("prompt", "answer"):
            _check_text(name, record.get(name), name in record)
        for name in ("system", "instructions", "tools", "functions", "documents"):
            if record.get(name):
                raise ValueError(
                    f"{name!r} stands beside 'prompt', which is all that the model was given: put it in there"
                )
        self.left_out.update(f"the field {name!r}" for name in record.keys() - {"prompt", "answer"} - BOOKKEEPING)
        return [Answer(record["prompt"], record["answer"])]

    def _turns(self, chat: Chat) -> list[Answer]:
        """The assistant's turns with text. What it called is no answer: the log does not hold it as the model wrote it."""
        messages = chat.messages
        written = [place for place, one in enumerate(messages) if place and one["role"] == "assistant"]
        places = [place for place in written if messages[place]["content"]]
        for place in places:
            _check_text("content", messages[place]["content"])
        if not places:
            raise ValueError("'messages' holds no turn of the assistant after another message")
        if self.tokenizer is None or not self.tokenizer.chat_template:
            raise ValueError(
                "a chat, and the tokenizer has no chat template: name the model's --tokenizer, or give 'prompt'"
            )
        found = []
        for place in places:
            prompt = self._render(chat, messages[:place])
            answer = messages[place]["content"]
            if "reasoning_content" in messages[place]:
                answer = self._with_reasoning(chat, place, prompt)
            found.append(Answer(prompt, answer, chat=True))
        self.left_out.update(f"the field {name!r}" for name in chat.unread)
        self.left_out["calls of tools as answers: a log does not hold them as the model wrote them"] += any(
            "tool_calls" in messages[place] for place in written
        )
        self.left_out.update(
            f"{what}: the tokenizer's chat template does not write them"
            for what in self._unwritten(chat, place, prompt)
        )
        return found

    def _render(self, chat: Chat, messages: list[dict[str, Any]], **changed: Any) -> str:
        """The prompt that the template makes of messages. Arguments of calls are given as objects, as servers give them, unless
        the template takes only text or would print them as Python does."""
        given = {"tools": chat.tools or None, "add_generation_prompt": True} | chat.options | changed
        parsed, printed = _parsed(messages)
        for each in [parsed, messages] if printed else [messages]:
            try:
                text = self.tokenizer.apply_chat_template(each, tokenize=False, **given)
            except Exception as error:  # templates are programs of their own, and raise what they like
                failed = error
                continue
            if each is messages or not any(one in text for one in printed):
                return text
            failed = None
        if failed is None:
            return text
        raise ValueError(f"the chat template refuses the messages ({failed})") from None

    def _with_reasoning(self, chat: Chat, place: int, prompt: str) -> str:
        """An answer with the reasoning before it, as the template writes them, since the model wrote both."""
        message = chat.messages[place]
        whole = self._render(chat, chat.messages[: place + 1], add_generation_prompt=False)
        thought, said = message["reasoning_content"].strip(), message["content"].strip()
        if not whole.startswith(prompt) or not -1 < whole.find(thought, len(prompt)) < whole.rfind(said):
            raise ValueError(
                "an answer has reasoning, which the chat template does not write before it; give 'prompt' and 'answer' as texts"
            )
        return whole[len(prompt) : whole.rfind(said) + len(said)]

    def _unwritten(self, chat: Chat, place: int, prompt: str) -> list[str]:
        """What of a chat makes no difference to the prompt of its last answer."""
        before = chat.messages[:place]

        def without(name: str) -> list[dict[str, Any]]:
            return [{key: value for key, value in one.items() if key != name} for one in before]

        changed: dict[str, Callable[[], str]] = {}
        if chat.tools:
            changed["tools"] = lambda: self._render(chat, before, tools=None)
        for role in {one["role"] for one in before if one["content"]} - {"assistant"}:
            other = [one | {"content": f"{one['content']} other"} if one["role"] == role else one for one in before]
            changed[f"messages of the role {role!r}"] = lambda other=other: self._render(chat, other)
        for name in {key for one in before for key in one} - _KNOWN:
            label = "calls of tools" if name == "tool_calls" else f"fields {name!r} of messages"
            changed[label] = lambda name=name: self._render(chat, without(name))
        for name in chat.options:
            changed[f"options {name!r} of the template"] = lambda name=name: self._render(chat, before, **{name: None})
        for what in changed.keys() - self._written:
            try:
                if changed[what]() == prompt:
                    continue
            except ValueError:  # a template that fails without it reads it
                pass
            self._written.add(what)
        return sorted(changed.keys() - self._written)


#: Fields of messages that are always written, or by which a template at most tells which result belongs to which call. Reasoning of
#: earlier turns is left out by design of most templates.
_KNOWN = {
    "role",
    "content",
    "tool_call_id",
    "id",
    "reasoning_content",
    "thinking",
    "weight",
    "annotations",
    "cache_control",
}


def _parsed(messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Messages whose calls have objects as arguments, where the text of these is JSON; and how Python would print the objects."""
    printed: list[str] = []

    def parsed(call: dict[str, Any]) -> dict[str, Any]:
        arguments = call["function"]["arguments"]
        try:
            value = json.loads(arguments) if isinstance(arguments, str) else None
        except ValueError:
            value = None
        if not isinstance(value, dict):
            return call
        printed.append(str(value))
        return call | {"function": call["function"] | {"arguments": value}}

    changed = [
        one | {"tool_calls": [parsed(call) for call in one["tool_calls"]]} if "tool_calls" in one else one
        for one in messages
    ]
    return changed, [text for text in printed if text != "{}"] or printed
