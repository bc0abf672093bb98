"""Chats as the APIs of model providers write them, brought into the form that chat templates read.

Read are OpenAI's chat completions and responses, Anthropic's messages and Gemini's contents: a request with its response, side by
side or each in its own field, or a conversation with the answers in it. What the model was given and a template cannot write, such
as an image, a tool of the provider's or a history that the provider keeps, is a ValueError that names it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

#: Fields of a row that say nothing of what the model read or wrote.
BOOKKEEPING = frozenset(
    "id object created created_at model usage usageMetadata modelVersion responseId metadata user service_tier status status_code "
    "system_fingerprint custom_id method url request_id error temperature top_p topP top_k seed n stream stream_options store stop "
    "stop_sequences stop_reason stop_sequence max_tokens max_completion_tokens max_output_tokens frequency_penalty "
    "presence_penalty logprobs top_logprobs parallel_tool_calls background truncation safety_identifier "
    "completed_at timestamp type done done_reason".split()
)
#: Fields by which the model read more than the row holds, or did not begin its answer itself.
_ELSEWHERE = (
    "previous_response_id", "conversation", "cachedContent", "cached_content", "container", "mcp_servers", "chat_template",
    "continue_final_message", "images", "image", "audio", "videos", "files", "attachments", "prefix",
)  # fmt: skip
_TEXTS, _THOUGHTS = ("text", "input_text", "output_text"), ("thinking", "reasoning", "reasoning_text", "summary_text")
_REASONING = ("reasoning_content", "reasoning", "thinking")


class Chat(NamedTuple):
    """Messages in the form of chat templates, the tools that were offered, and what else the template was given. ``unread`` are the
    fields of the row that count for nothing."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    options: dict[str, Any]
    unread: list[str]


def chat_of(record: Mapping[str, Any]) -> Chat | None:
    """The chat in a row of a log; None where the row has no form of a chat."""
    row = _flat(record)
    if "messages" in row:
        read = _openai_chat
    elif "contents" in row:
        read = _gemini
    elif isinstance(row.get("input"), list) or ("input" in row and isinstance(row.get("output"), list)):
        read = _openai_responses
    else:
        return None
    for name in _ELSEWHERE:
        if row.get(name):
            raise ValueError(f"{name!r} is {row[name]!r:.60}, by which the model read more than the row holds")
    system, messages, answers = read(row)
    if answers and messages and messages[-1]["role"] == "assistant":
        raise ValueError(
            "the answer goes on with a begun message of the assistant; give 'prompt' and 'answer' as texts"
        )
    tools = [tool for given in (row.pop("tools", None), row.pop("functions", None)) for tool in _tools(given)]
    options = {name: row.pop(name) for name in ("documents",) if row.get(name)}
    options |= row.pop("chat_template_kwargs", None) or {}
    unread = [name for name, value in row.items() if name not in BOOKKEEPING and value not in (None, [], {}, "")]
    return Chat([*system, *messages, *answers], tools, options, unread)


def _flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """A row with the fields of its request and its response in it; where names are the same, the request's count."""
    row = dict(record)
    for name in ("request", "body", "response"):
        inner = row.get(name)
        if isinstance(inner, dict):
            del row[name]
            row = (inner["body"] if isinstance(inner.get("body"), dict) else inner) | row
    # Google's client takes all but the contents as ``config``; Ollama answers with one ``message``.
    if "contents" in row and isinstance(row.get("config"), dict):
        row = row.pop("config") | row
    if "messages" in row and isinstance(row.get("message"), dict) and "choices" not in row:
        row["choices"] = [{"message": row.pop("message")}]
    return row


def _openai_chat(row: dict[str, Any]) -> tuple[list, list, list]:
    """OpenAI's chat completions, and Anthropic's messages."""
    given = row.pop("messages")
    if not isinstance(given, list) or not all(isinstance(one, dict) and "role" in one for one in given):
        raise ValueError(f"'messages' is {given!r:.40}, no list of messages with a role")
    system, answers = [], []
    if row.get("system"):
        system = _message({"role": "system", "content": row["system"]})
    if (choices := row.get("choices")) is not None:
        if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0].get("message"), dict):
            raise ValueError(f"'choices' is {choices!r:.40}; expected one, with a 'message': write a line for each")
        answers = _message({"role": "assistant"} | choices[0]["message"])
    elif row.get("role") == "assistant" and "content" in row:
        answers = _message({name: row[name] for name in ("role", "content")})
    else:
        texts = [name for name in ("answer", "response", "completion") if isinstance(row.get(name), str) and row[name]]
        if texts:
            answers = [{"role": "assistant", "content": row.pop(texts[0])}]
    for name in ("system", "choices", "role", "content"):
        row.pop(name, None)
    return system, [message for one in given for message in _message(one)], answers


def _openai_responses(row: dict[str, Any]) -> tuple[list, list, list]:
    given, wrote = row.pop("input"), row.pop("output", None) or []
    system = []
    if row.get("instructions"):
        system = _message({"role": "system", "content": row.pop("instructions")})
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    return system, _items("input", given), _items("output", wrote)


def _items(name: str, items: Any) -> list[dict[str, Any]]:
    """Messages of a list of items; reasoning and calls belong to the message of the assistant that they stand next to."""
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ValueError(f"{name!r} is {items!r:.40}, no list of items")
    messages: list[dict[str, Any]] = []
    for item in items:
        kind = item.get("type", "message" if "role" in item else None)
        if kind == "message":
            new = _message({key: value for key, value in item.items() if key not in ("type", "id", "status")})
        elif kind == "function_call":
            call = _call(item.get("call_id"), item.get("name"), item.get("arguments"))
            new = [{"role": "assistant", "content": "", "tool_calls": [call]}]
        elif kind == "function_call_output":
            new = [
                {"role": "tool", "tool_call_id": item.get("call_id"), "content": _text("output", item.get("output"))}
            ]
        elif kind == "reasoning":
            parts = item.get("content") or item.get("summary") or []
            new = [{"role": "assistant", "content": "", **_thoughts("\n".join(part.get("text", "") for part in parts))}]
        else:
            raise ValueError(f"{name!r} holds an item of type {kind!r}, which no chat template writes")
        for message in new:
            last = messages[-1] if messages else {}
            if last.get("role") == message["role"] == "assistant" and not (last["content"] and message["content"]):
                calls = [*last.get("tool_calls", ()), *message.get("tool_calls", ())]
                messages[-1] = last | message | {"content": last["content"] or message["content"]}
                messages[-1] |= {"tool_calls": calls} if calls else {}
            else:
                messages.append(message)
    return messages


def _gemini(row: dict[str, Any]) -> tuple[list, list, list]:
    def read(content: Any) -> list[dict[str, Any]]:
        parts = content.get("parts") if isinstance(content, dict) else None
        if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
            raise ValueError(f"'contents' holds {content!r:.40}, no content with parts")
        own: dict[str, Any] = {"role": "assistant" if content.get("role") == "model" else "user", "content": ""}
        others, thoughts, calls = [], "", []
        for part in parts:
            named = {_snake(name): value for name, value in part.items()}
            thought = named.pop("thought", False)
            named.pop("thought_signature", None)
            if set(named) == {"text"}:
                thoughts += named["text"] if thought else ""
                own["content"] += "" if thought else named["text"]
            elif set(named) == {"function_call"}:
                calls.append(
                    _call(
                        named["function_call"].get("id"),
                        named["function_call"].get("name"),
                        named["function_call"].get("args"),
                    )
                )
            elif set(named) == {"function_response"}:
                given = named["function_response"]
                text = json.dumps(given.get("response"), ensure_ascii=False)
                others.append(
                    {"role": "tool", "name": given.get("name"), "tool_call_id": given.get("id"), "content": text}
                )
            else:
                raise ValueError(f"'contents' holds a part of {', '.join(sorted(named))}; only text is read")
        own |= ({"tool_calls": calls} if calls else {}) | _thoughts(thoughts)
        return [*others, *([own] if own["content"] or len(own) > 2 or not others else [])]

    system = []
    for name in ("systemInstruction", "system_instruction"):
        if given := row.pop(name, None):
            content = given if isinstance(given, dict) else {"parts": [{"text": given}]}
            system = [{"role": "system", "content": read(content | {"role": "user"})[0]["content"]}]
    answers = []
    if (candidates := row.pop("candidates", None)) is not None:
        if not isinstance(candidates, list) or len(candidates) != 1 or not isinstance(candidates[0], dict):
            raise ValueError(f"'candidates' is {candidates!r:.40}; expected one: write a line for each")
        answers = read({"role": "model"} | (candidates[0].get("content") or {}))
    given = row.pop("contents")
    if isinstance(given, str):
        given = [{"role": "user", "parts": [{"text": given}]}]
    return (
        system,
        [message for one in (given if isinstance(given, list) else [given]) for message in read(one)],
        answers,
    )


def _snake(name: str) -> str:
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in name)


def _message(one: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages that one of OpenAI's or Anthropic's is: results of tools that stand within a message come before it."""
    own = {name: value for name, value in one.items() if value is not None}
    for name in _ELSEWHERE:
        if own.get(name):
            raise ValueError(f"a message has {name!r}, {own[name]!r:.40}; only text is read")
    content, thoughts = (
        own.pop("content", None),
        "".join(_text(name, own.pop(name)) for name in _REASONING if name in own),
    )
    if isinstance(refusal := own.pop("refusal", None), str) and not content:
        content = refusal
    if call := own.pop("function_call", None):
        own["tool_calls"] = [{"function": call}]
    if own["role"] == "function":
        own["role"] = "tool"
    calls = []
    for call in own.pop("tool_calls", None) or []:
        inside = call.get("function") if isinstance(call, dict) else None
        if not isinstance(inside, dict):
            raise ValueError(f"'tool_calls' holds {call!r:.60}; expected calls of functions")
        calls.append(_call(call.get("id"), inside.get("name"), inside.get("arguments")))
    texts, results = [], []
    for part in (
        content if isinstance(content, list) else [{"type": "text", "text": "" if content is None else content}]
    ):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in _TEXTS and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind == "refusal":
            texts.append(part["refusal"])
        elif kind in _THOUGHTS:
            thoughts += _text("content", part.get("thinking", part.get("text", "")))
        elif kind == "tool_use":
            calls.append(_call(part.get("id"), part.get("name"), part.get("input")))
        elif kind == "tool_result":
            text = _text("content", part.get("content"))
            results.append({"role": "tool", "tool_call_id": part.get("tool_use_id"), "content": text})
        else:
            raise ValueError(f"'content' is {content!r:.60}; only text is read" + (f", no {kind}" if kind else ""))
    own["content"] = "".join(texts)
    own |= ({"tool_calls": calls} if calls else {}) | _thoughts(thoughts)
    return [*results, *([own] if own["content"] or len(own) > 2 or not results else [])]


def _thoughts(text: str) -> dict[str, str]:
    """Reasoning, under the names by which templates read it."""
    return {"reasoning_content": text, "thinking": text} if text else {}


def _text(name: str, value: Any) -> str:
    """A text, or parts that are texts."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list) and all(isinstance(part, dict) and part.get("type") in _TEXTS for part in value):
        return "".join(part["text"] for part in value)
    raise ValueError(f"{name!r} is {value!r:.60}; only text is read")


def _call(id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    """A call of a tool; its arguments as they stand, a text of JSON or what it holds."""
    if not isinstance(name, str):
        raise ValueError(f"a call of a tool has the name {name!r:.40}; expected a text")
    return {
        "id": id,
        "type": "function",
        "function": {"name": name, "arguments": {} if arguments is None else arguments},
    }


def _tools(given: Any) -> list[dict[str, Any]]:
    """Tools that are functions, as OpenAI writes them; a tool of the provider's own is rejected, since its text is not known."""
    if not given:
        return []
    if not isinstance(given, list) or not all(isinstance(tool, dict) for tool in given):
        raise ValueError(f"'tools' is {given!r:.60}; expected a list of tools")
    found = []
    for tool in given:
        declared = tool.get("functionDeclarations") or tool.get("function_declarations")
        if isinstance(tool.get("function"), dict):
            found.append({"type": "function", "function": tool["function"]})
        elif isinstance(declared, list) and len(tool) == 1:
            found += [{"type": "function", "function": one} for one in declared]
        elif (
            isinstance(tool.get("name"), str)
            and tool.get("type") in (None, "function", "custom")
            and "format" not in tool
        ):
            own = {name: tool[name] for name in ("name", "description", "parameters", "strict") if name in tool}
            if "input_schema" in tool:
                own["parameters"] = tool["input_schema"]
            found.append({"type": "function", "function": own})
        else:
            raise ValueError(f"'tools' holds {tool!r:.60}, no function that a chat template writes")
    return found
