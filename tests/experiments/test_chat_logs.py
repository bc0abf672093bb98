"""What the model saw is what is counted: the logs of each provider become the prompts that the template makes of the same chat."""

import json
from collections import Counter

import pytest

from specdec_lib.experiments.data.answers import read_answers
from specdec_lib.experiments.data.chat_logs import chat_of

TEMPLATE = (
    "{% if tools %}[tools]{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}"
    "{% for message in messages %}[{{ message['role'] }}] "
    "{% if message['reasoning_content'] %}<think>{{ message['reasoning_content'] }}</think>{% endif %}{{ message['content'] or '' }}"
    "{% for call in message['tool_calls'] or [] %}[call {{ call['function']['name'] }}]{{ call['function']['arguments'] | tojson }}"
    "{% endfor %}\n{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": SCHEMA}}
PLACE = {"city": "Paris"}
#: The chat that all providers' rows below hold, as templates take it.
PLAIN = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "How is Paris?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": PLACE}}],
    },
    {"role": "tool", "content": '{"sky": "clear"}'},
]
ANSWER = "Paris is clear."
OPENAI = [
    PLAIN[0],
    {"role": "user", "content": [{"type": "text", "text": "How is "}, {"type": "text", "text": "Paris?"}]},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "weather", "arguments": json.dumps(PLACE)}}]},
    {"role": "tool", "tool_call_id": "1", "content": '{"sky": "clear"}'},
]  # fmt: skip
LEGACY = [
    *OPENAI[:2],
    {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": json.dumps(PLACE)}},
    {"role": "function", "name": "weather", "content": '{"sky": "clear"}'},
]
ANTHROPIC = [
    {"role": "user", "content": "How is Paris?"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "weather", "input": PLACE}]},
    {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": '{"sky": "clear"}'}]}]},
]  # fmt: skip
ANTHROPIC_TOOL = {"name": "weather", "description": "of a city", "input_schema": SCHEMA}
SAID = {"role": "assistant", "content": ANSWER}
ITEMS = [
    {"role": "user", "content": [{"type": "input_text", "text": "How is Paris?"}]},
    {"type": "function_call", "call_id": "1", "name": "weather", "arguments": json.dumps(PLACE)},
    {"type": "function_call_output", "call_id": "1", "output": '{"sky": "clear"}'},
]
WROTE = [
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ANSWER, "annotations": []}]}
]
FLAT_TOOL = {"type": "function", "name": "weather", "description": "of a city", "parameters": SCHEMA}
CONTENTS = [
    {"role": "user", "parts": [{"text": "How is Paris?"}]},
    {"role": "model", "parts": [{"functionCall": {"name": "weather", "args": PLACE}}]},
    {"role": "user", "parts": [{"functionResponse": {"name": "weather", "response": {"sky": "clear"}}}]},
]
MODEL = {"role": "model", "parts": [{"text": ANSWER}]}
DECLARED = [{"functionDeclarations": [{"name": "weather", "description": "of a city", "parameters": SCHEMA}]}]

ROWS = {
    "OpenAI, whole": {"messages": [*OPENAI, SAID], "tools": [TOOL], "model": "m"},
    "OpenAI, choices": {"messages": OPENAI, "tools": [TOOL], "choices": [{"index": 0, "message": SAID | {"refusal": None}}]},
    "OpenAI, request and response": {
        "request": {"messages": OPENAI, "tools": [TOOL], "temperature": 1},
        "response": {"id": "r", "choices": [{"message": SAID}], "usage": {}},
    },
    "OpenAI, batch": {
        "custom_id": "1", "body": {"messages": OPENAI, "tools": [TOOL]},
        "response": {"status_code": 200, "body": {"choices": [{"message": SAID}]}},
    },
    "OpenAI, answer": {"messages": OPENAI, "tools": [TOOL], "answer": ANSWER},
    "OpenAI, legacy": {"messages": [*LEGACY, SAID], "functions": [TOOL["function"]]},
    "OpenAI, responses": {"instructions": "Be brief.", "input": ITEMS, "tools": [FLAT_TOOL], "output": WROTE},
    "Anthropic, whole": {"system": "Be brief.", "messages": [*ANTHROPIC, SAID], "tools": [ANTHROPIC_TOOL]},
    "Anthropic, response": {
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": ANTHROPIC, "tools": [ANTHROPIC_TOOL],
        "response": {"id": "m", "type": "message", "role": "assistant", "content": [{"type": "text", "text": ANSWER}]},
    },
    "Gemini": {
        "systemInstruction": {"parts": [{"text": "Be brief."}]}, "contents": CONTENTS, "tools": DECLARED,
        "candidates": [{"content": MODEL, "finishReason": "STOP"}],
    },
    "Gemini, Google's client": {
        "model": "m", "contents": CONTENTS, "config": {"system_instruction": "Be brief.", "tools": DECLARED, "temperature": 0},
        "response": {"candidates": [{"content": MODEL}]},
    },
    "Ollama": {"messages": OPENAI, "tools": [TOOL], "message": SAID, "done": True},
    "Gemini, REST": {
        "system_instruction": {"parts": [{"text": "Be brief."}]}, "contents": [*CONTENTS, MODEL],
        "tools": [{"function_declarations": DECLARED[0]["functionDeclarations"]}],
    },
}  # fmt: skip


@pytest.fixture
def templated(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", TEMPLATE)
    return tokenizer


def read(tmp_path, row, tokenizer, left_out=None):
    path = tmp_path / "log.ndjson"
    path.write_text(json.dumps(row) + "\n")
    return read_answers(path, tokenizer, left_out)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_the_prompt_is_what_the_template_makes_of_the_same_chat(row, tmp_path, templated):
    left_out: Counter[str] = Counter()
    (answer,) = read(tmp_path, row, templated, left_out)
    expected = templated.apply_chat_template(PLAIN, tools=[TOOL], tokenize=False, add_generation_prompt=True)
    assert (answer.prompt, answer.answer) == (expected, ANSWER)
    assert set(+left_out) <= {"calls of tools as answers: a log does not hold them as the model wrote them"} | {
        "fields 'name' of messages: the tokenizer's chat template does not write them"
    }


def test_arguments_are_text_where_the_template_writes_text(tmp_path, templated, monkeypatch):
    for how in ("{{ call['function']['arguments'] }}", "{{ '<' + call['function']['arguments'] + '>' }}"):
        monkeypatch.setattr(
            templated, "chat_template", TEMPLATE.replace("{{ call['function']['arguments'] | tojson }}", how)
        )
        (answer,) = read(tmp_path, ROWS["OpenAI, whole"], templated)
        assert json.dumps(PLACE) in answer.prompt and str(PLACE) not in answer.prompt


def test_what_the_template_does_not_write_is_told(tmp_path, templated, monkeypatch):
    silent = "{% for message in messages %}{% if message['role'] != 'tool' %}[{{ message['role'] }}] {{ message['content'] }}\n{% endif %}{% endfor %}"
    monkeypatch.setattr(templated, "chat_template", silent)
    left_out: Counter[str] = Counter()
    read(
        tmp_path,
        ROWS["OpenAI, whole"] | {"colour": "red", "chat_template_kwargs": {"style": "new"}},
        templated,
        left_out,
    )
    told = " ".join(left_out)
    assert all(
        what in told for what in ("tools:", "calls of tools:", "role 'tool'", "options 'style'", "the field 'colour'")
    ), told
    left_out.clear()
    read(tmp_path, {"prompt": "a", "answer": "b", "id": 3, "colour": "red"}, templated, left_out)
    assert dict(left_out) == {"the field 'colour'": 1}


def test_reasoning_is_a_part_of_the_answer_that_it_leads_to(tmp_path, templated, monkeypatch):
    thinking = [{"type": "thinking", "thinking": "It is clear.", "signature": "s"}, {"type": "text", "text": ANSWER}]
    for said in (
        SAID | {"reasoning_content": "It is clear."},
        SAID | {"content": thinking},
        SAID | {"reasoning": "It is clear."},
    ):
        (answer,) = read(tmp_path, {"messages": [PLAIN[1], said]}, templated)
        assert answer.answer == f"<think>It is clear.</think>{ANSWER}" and answer.prompt.endswith("[assistant] ")
    thought = [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "It is clear."}]}, *WROTE]
    (answer,) = read(tmp_path, {"input": "How is Paris?", "output": thought}, templated)
    assert answer.answer == f"<think>It is clear.</think>{ANSWER}"
    monkeypatch.setattr(templated, "chat_template", TEMPLATE.replace("message['reasoning_content']", "false"))
    with pytest.raises(ValueError, match="an answer has reasoning, which the chat template does not write"):
        read(tmp_path, {"messages": [PLAIN[1], SAID | {"reasoning_content": "It is clear."}]}, templated)


USER = {"role": "user", "content": "Say it."}


@pytest.mark.parametrize(("row", "told"), [
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, SAID]}, "only text is read, no image_url"),
    ({"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}, SAID]}, "only text is read, no document"),
    ({"messages": [USER | {"images": ["x"]}, SAID]}, "a message has 'images'"),
    ({"messages": [USER, SAID], "tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "no function that a chat template"),
    ({"messages": [USER, SAID], "tools": [{"googleSearch": {}}]}, "'tools' holds {'googleSearch'"),
    ({"messages": [USER, SAID], "continue_final_message": True}, "'continue_final_message' is True"),
    ({"messages": [USER, SAID], "answer": "more"}, "goes on with a begun message"),
    ({"messages": [USER], "choices": [{"message": SAID}] * 2}, "expected one, with a 'message'"),
    ({"input": "Say it.", "output": WROTE, "previous_response_id": "r1"}, "'previous_response_id' is 'r1'"),
    ({"input": [USER, {"type": "web_search_call"}], "output": WROTE}, "item of type 'web_search_call'"),
    ({"contents": [{"role": "user", "parts": [{"inlineData": {}}]}, MODEL]}, "a part of inline_data; only text is read"),
    ({"contents": [{"role": "user", "parts": [{"text": "a"}]}, MODEL], "cachedContent": "c"}, "'cachedContent' is 'c'"),
    ({"prompt": "a", "answer": "b", "system": "c"}, "'system' stands beside 'prompt'"),
    ({"prompt": "a", "answer": "b", "tools": [TOOL]}, "'tools' stands beside 'prompt'"),
    ({"messages": [USER, SAID], "tools": 5}, "'tools' is 5; expected a list"),
    ({"messages": [USER, {"role": "assistant", "content": "x", "tool_calls": ["y"]}]}, "'tool_calls' holds 'y'"),
    ({"messages": [USER], "choices": [3]}, "a chat of no known form"),
], ids=lambda value: str(value)[:40])  # fmt: skip
def test_what_no_template_writes_is_named(row, told, tmp_path, templated):
    with pytest.raises(ValueError) as raised:
        read(tmp_path, row, templated)
    assert told in str(raised.value)


def test_other_rows_are_no_chats():
    assert chat_of({"prompt": "a", "answer": "b"}) is None
    assert chat_of({"instruction": "a", "input": "b", "output": "c"}) is None
