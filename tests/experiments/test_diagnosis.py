"""Will it help: the prediction is what a real run does, and bad lines are named."""

import json

import pytest

from specdec_lib import generate, methods
from specdec_lib.cli import main
from specdec_lib.datastores import build_from_texts
from specdec_lib.datastores.suffix_array import SuffixIndex
from specdec_lib.drafters.pass_costs import CURVES, PassCosts
from specdec_lib.experiments import diagnosis
from specdec_lib.experiments.data.answers import Answer, read_answers
from specdec_lib.experiments.diagnosis import TokensAlone, copied_tokens, deflate_bits, diagnose
from specdec_lib.report.display import diagnosis_page

CODE = "def add(total, x):\n    total = total + x\n    return total\n"


@pytest.fixture(scope="module")
def store(tmp_path_factory, pocket):
    folder = tmp_path_factory.mktemp("store") / "text"
    build_from_texts(folder, [CODE * 3] * 4, pocket[1], progress=False)
    return folder


@pytest.fixture(scope="module")
def decoded(pocket):
    """Prompts with what the model writes after them, as tokens; those whose text has these tokens and no others."""
    model, tokenizer = pocket
    runs = {}
    for name in ("amount", "rows"):
        prompt = f"Rename `total` to `{name}`.\n\n{CODE}\n" + CODE.replace("total", name)[:20]
        run = generate(model, list(tokenizer(prompt)["input_ids"]), max_new_tokens=32, eos_token_id=[])
        text = tokenizer.decode(run.tokens)
        if list(tokenizer(text, add_special_tokens=False)["input_ids"]) == run.tokens:
            runs[prompt] = (text, run.tokens)
    assert len(runs) == 2
    return runs


def _lines(path, decoded):
    path.write_text("".join(json.dumps({"prompt": p, "answer": a}) + "\n" for p, (a, _) in decoded.items()))
    return path


def test_the_prediction_is_what_decoding_with_the_method_does(pocket, store, decoded, tmp_path):
    """Every predicted method is run for real, with the model: the passes and their costs are the predicted ones."""
    model, tokenizer = pocket
    bench = TokensAlone(tokenizer, CURVES["cpu"], SuffixIndex.open(store))
    found = diagnose(read_answers(_lines(tmp_path / "a.jsonl", decoded)), bench, bench.costs, progress=False)
    assert {"PLD", "REST", "One tree"} <= {one.method for one in found.predictions}
    curve = bench.costs.curve(300)
    for one in found.predictions:
        drafter = methods.METHODS[one.method].make(bench)
        passes, cost, tokens = 0, 0.0, 0
        for row, (prompt, (_, expected)) in zip(found.each, decoded.items(), strict=True):
            if methods.METHODS[one.method].state == "cold":
                drafter.reset()
            run = generate(model, list(tokenizer(prompt)["input_ids"]), drafter, max_new_tokens=32, eos_token_id=[])
            assert run.tokens == expected
            assert (row["tokens"] - 1) / row["tokens_per_pass"][one.method] == pytest.approx(len(run.steps))
            passes, tokens = passes + len(run.steps), tokens + len(run.tokens) - 1
            cost += sum(curve[step.width - 1] for step in run.steps)
        assert one.tokens_per_pass.value == pytest.approx(tokens / passes), one.method
        assert one.speedup.value == pytest.approx(tokens / cost), one.method


def test_methods_that_need_more_than_tokens_are_left_out_with_what_they_need(pocket):
    built, needs = diagnosis.drafters_for(TokensAlone(pocket[1], CURVES["gpu"]))
    assert {"PLD", "One tree"} <= set(built) and list(built["One tree"].sources) == ["PLD"]
    assert "--store" in needs["REST"] and "draft model" in needs["SpecDec"] and "states" in needs["PLD+ (h)"]
    assert set(built) | set(needs) == set(methods.METHODS)


def test_an_answer_that_stands_in_its_prompt_has_copied_tokens_and_few_bits_after_it():
    for prompt, answer, copied in (
        ("abcdefgh", "abcd", 4), ("abcdefgh", "abc", 0), ("abcdefgh", "xabcdexefgh", 9), ("abcdefgh", "abcdabcd", 8),
        ("aaaaaa", "aaaaab", 5), ("", "abcd", 0),
    ):  # fmt: skip
        assert copied_tokens(list(map(ord, prompt)), list(map(ord, answer))) == copied
    text = "def area(width, height):\n    return width * height\n"
    assert deflate_bits(text, "Say this again: " + text) < deflate_bits(text) / 4
    assert deflate_bits(text, "0123456789") == pytest.approx(deflate_bits(text), rel=0.1)


def test_the_recommendation_goes_by_the_lower_end(pocket):
    copies = [Answer(CODE * 2 + str(i), CODE * 2) for i in range(4)]
    steep, flat = PassCosts({1: 1.0, 2: 50.0}), PassCosts({1: 1.0})
    found = diagnose(copies, TokensAlone(pocket[1], flat), flat, progress=False)
    best = max(found.predictions, key=lambda one: one.speedup.low)
    assert found.recommended == best.method and best.speedup.low > 2 and best.method in found.advice()
    assert found.text.copied.value > 0.8 and found.text.overlap.value > 0.9
    found = diagnose(copies[:1], TokensAlone(pocket[1], flat), flat, progress=False)
    assert found.recommended is None and "give more" in found.advice()
    # A method of fixed size loses where a wide pass costs too much; one tree then verifies nothing, which is plain decoding.
    found = diagnose(copies, TokensAlone(pocket[1], steep), steep, progress=False)
    with pytest.raises(ValueError, match="none of the 1 answers has two tokens"):
        diagnose([Answer("a", "b")], TokensAlone(pocket[1], flat), flat, progress=False)
    assert found.recommended == "plain" and "<b>" not in diagnosis_page.page(found, "<b>mine</b>"), "names are text"


QUESTION, REPLY = {"role": "user", "content": "Say a b c."}, {"role": "assistant", "content": "a b c d e f"}


def test_a_chat_is_an_answer_for_each_turn_of_the_assistant(tmp_path, pocket):
    """The prompt has the tokens that the chat template gives the messages before the turn."""
    model, tokenizer = pocket
    parts = {"role": "user", "content": [{"type": "text", "text": "And "}, {"type": "text", "text": "again."}]}
    called = {"role": "assistant", "content": None, "tool_calls": []}
    chat = {"messages": [QUESTION, REPLY, parts, {"role": "assistant", "content": "a b c"}, QUESTION, called]}
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(chat | {"model": "m"}) + "\n" + json.dumps({"prompt": "a", "answer": "b"}))
    answers = read_answers(path, tokenizer)
    assert [(one.answer, one.chat) for one in answers] == [("a b c d e f", True), ("a b c", True), ("b", False)]
    plain = [QUESTION, REPLY, {"role": "user", "content": "And again."}]
    for recording, before in zip(diagnosis.as_recordings(answers, tokenizer), (plain[:1], plain), strict=False):
        ids = tokenizer.apply_chat_template(before, add_generation_prompt=True, return_dict=True)["input_ids"]
        assert recording.trace.prompt == list(ids)
    with pytest.raises(ValueError, match="line 1: a chat, and the tokenizer has no chat template: name the model's"):
        read_answers(path)


DEEP = '{"prompt": "hello", "answer": "world", "x": ' + "[" * 100_000 + "]" * 100_000 + "}"


@pytest.mark.parametrize(("line", "message"), [
    ("{", "line 2: no JSON"),
    (DEEP, "line 2: no JSON"),
    ("[1]", "line 2: a list, no object"),
    ('{"prompt": "a"}', "line 2: 'answer' is missing"),
    ('{"prompt": "a", "answer": 3}', "line 2: 'answer' is 3, no text"),
    ('{"prompt": "", "answer": "b"}', "line 2: 'prompt' is '', no text"),
    ('{"prompt": "a", "answer": "\\ud800"}', "line 2: 'answer' holds half of a surrogate pair"),
    ('{"messages": "hello"}', "line 2: 'messages' is 'hello', no list of messages with a role"),
    ('{"messages": [{"content": "a"}]}', "no list of messages with a role"),
    (json.dumps({"messages": [QUESTION]}), "line 2: 'messages' holds no turn of the assistant after another"),
    (json.dumps({"messages": [{"role": "user", "content": [{"type": "image_url"}]}, REPLY]}), "only text is read"),
    (json.dumps({"messages": [{"role": "user", "content": 3}, REPLY]}), "'content' is 3; only text is read"),
], ids=lambda value: value[:40])  # fmt: skip
def test_bad_lines_are_named_by_number_and_a_file_without_any_is_refused(line, message, tmp_path, pocket):
    path = tmp_path / "answers.jsonl"
    path.write_text('{"prompt": "a", "answer": "b"}\n' + line + "\n\n{}\n")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="holds no answers"):
        read_answers(tmp_path / "empty.jsonl")
    with pytest.raises(ValueError, match="has 2 bad lines") as told:
        read_answers(path, pocket[1])
    assert message in str(told.value) and "line 4: 'prompt' is missing" in str(told.value)


def test_the_command_prints_a_table_and_writes_json_and_a_page(decoded, store, tmp_path, capsys):
    path, out, page = _lines(tmp_path / "a.jsonl", decoded), tmp_path / "a.json", tmp_path / "a.html"
    CURVES["gpu"].save(tmp_path / "costs.json")
    words = ["diagnose", str(path), "--tokenizer", "pocket", "--store", str(store), "--json", str(out)]
    assert main([*words, "--costs", str(tmp_path / "costs.json"), "--page", str(page)]) == 0
    told = capsys.readouterr().out
    about = json.loads(out.read_text())
    assert about["answers"] == len(decoded) and about["costs"] == "gpu"
    assert [one["method"] for one in about["methods"]] == list(about["each"][0]["tokens_per_pass"])
    assert all(one["speedup"]["low"] <= one["speedup"]["value"] <= one["speedup"]["high"] for one in about["methods"])
    text = page.read_text()
    assert "<svg" in text and "One tree" in text and "One tree" in told and "Copied:" in told
    assert "SpecDec is not predicted: it needs a draft model." in told
