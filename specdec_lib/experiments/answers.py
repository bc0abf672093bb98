"""Recorded answers of a model, read from JSON lines: prompts with answers, or chats as chat APIs write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from specdec_lib.files import named

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


def read_answers(path: str | Path, tokenizer: PreTrainedTokenizerBase | None = None) -> list[Answer]:
    """Read answers from JSON lines; blank lines are passed over, and bad ones are named by number in a ValueError.

    A line is an object with the texts ``prompt`` and ``answer``, or a chat, whose prompts the tokenizer's template writes:
    ``messages`` with ``role`` and ``content``, of which each assistant's turn is an answer to the messages before it.
    """
    answers, bad = [], []
    for number, line in enumerate(named(path).read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            answers += _answers(line, tokenizer)
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


def _answers(line: bytes, tokenizer: PreTrainedTokenizerBase | None) -> list[Answer]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON ({error})") from None
    if not isinstance(record, dict):
        raise ValueError(f"a {type(record).__name__}, no object")
    if "messages" in record:
        return _turns(record["messages"], tokenizer)
    for name in ("prompt", "answer"):
        _check_text(name, record.get(name), name in record)
    return [Answer(record["prompt"], record["answer"])]


def _check_text(name: str, text: object, present: bool = True) -> None:
    if not isinstance(text, str) or not text:
        raise ValueError(f"{name!r} is {text!r:.40}, no text" if present else f"{name!r} is missing")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name!r} holds half of a surrogate pair") from None


def _turns(messages: object, tokenizer: PreTrainedTokenizerBase | None) -> list[Answer]:
    """The assistant's turns of a chat. One without text, a call of a tool say, is no answer."""
    if not isinstance(messages, list) or not all(isinstance(one, dict) and "role" in one for one in messages):
        raise ValueError(f"'messages' is {messages!r:.40}, no list of messages with a role")
    plain = [{"role": one["role"], "content": _content(one.get("content"))} for one in messages]
    places = [place for place, one in enumerate(plain) if place and one["role"] == "assistant" and one["content"]]
    if not places:
        raise ValueError("'messages' holds no turn of the assistant after another message")
    if tokenizer is None or not tokenizer.chat_template:
        raise ValueError(
            "a chat, and the tokenizer has no chat template: name the model's --tokenizer, or give 'prompt'"
        )
    found = []
    for place in places:
        try:
            prompt = tokenizer.apply_chat_template(plain[:place], tokenize=False, add_generation_prompt=True)
        except Exception as error:  # templates are programs of their own, and raise what they like
            raise ValueError(f"the chat template refuses the messages ({error})") from None
        found.append(Answer(prompt, plain[place]["content"], chat=True))
    return found


def _content(content: object) -> str:
    """The text of a message, which chat APIs write as a text, a list of parts, or null."""
    if content is None:
        return ""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"'content' is {content!r:.60}; only text is read")
    text = "".join(texts)
    if text:
        _check_text("content", text)
    return text
