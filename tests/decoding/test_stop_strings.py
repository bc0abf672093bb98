"""Stop strings end an output where transformers' own criterion ends it, whatever the tokenizer."""

import random
from itertools import count

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast, StopStringCriteria

from specdec_lib import generate, record, replay
from specdec_lib.decoding.stop_strings import stop_on_strings
from specdec_lib.drafters import PromptLookup

LETTERS = "abcdefst é日"
PIECES = ["st", "op", "stop", "opera", "a", "b", "abc", "é", "日", "tos", "END", " ", "\n"]


def _fast(inside, **special):
    return PreTrainedTokenizerFast(tokenizer_object=inside, **special)


def llama2():
    """Words begin with a space that the first one loses; other characters are bytes."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += [f"▁{piece}" for piece in PIECES[:-2]] + PIECES[:-2] + ["▁"]
    words = list(dict.fromkeys(words))
    inside = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [], byte_fallback=True, unk_token="<unk>"))
    inside.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    strip = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    inside.decoder = decoders.Sequence(strip)
    return _fast(inside, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def gpt2():
    """Tokens of bytes, some of them parts of characters."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [("s", "t"), ("o", "p"), ("st", "op"), ("Ġ", "s"), ("Ã", "©"), ("Ġ", "E"), ("N", "D"), ("ĠE", "ND")]
    words = alphabet + [a + b for a, b in pairs] + ["<|end|>"]
    inside = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, pairs))
    inside.pre_tokenizer, inside.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return _fast(inside, eos_token="<|end|>")


def t5():
    """Unigrams with the mark of a space."""
    pieces = [("<unk>", 0.0), ("▁", -2.0)]
    pieces += [(f"{mark}{piece}", -3.0) for mark in ("", "▁") for piece in [*PIECES[:-2], *"cdefnopstEND"]]
    inside = Tokenizer(models.Unigram(list(dict.fromkeys(pieces)), unk_id=0))
    inside.pre_tokenizer, inside.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return _fast(inside, unk_token="<unk>")


def bert():
    """Words, and pieces that continue them."""
    words = ["[UNK]", *"abcdefgstop", *(f"##{letter}" for letter in "abcdefgstop"), "stop", "##op", "END", ".", ","]
    inside = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    inside.pre_tokenizer, inside.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    return _fast(inside, unk_token="[UNK]")


class Embeds(torch.nn.Module):
    """As much of a model as the check of a tokenizer asks for."""

    def get_input_embeddings(self):
        return torch.nn.Embedding(512, 1)


@pytest.mark.parametrize("make", [llama2, gpt2, t5, bert])
def test_outputs_end_where_transformers_ends_them(make, seed):
    tokenizer, draw = make(), random.Random(f"{make.__name__} {seed}")
    ids = [i for i in sorted(tokenizer.get_vocab().values()) if tokenizer.decode([i]) or make is not bert]
    ended = 0
    for _ in range(60):
        prompt, output = ([draw.choice(ids) for _ in range(draw.randint(1, 6))] for _ in range(2))
        text = tokenizer.decode(prompt + output)
        cuts = (
            [sorted(draw.sample(range(len(text) + 1), 2)) for _ in range(draw.randint(1, 3))] if len(text) > 1 else []
        )
        stops = [text[a:b].replace("�", "") or "st" for a, b in cuts] or ["st"]
        stops.append("".join(draw.choice(LETTERS) for _ in range(draw.randint(1, 4))))
        try:
            theirs = StopStringCriteria(tokenizer, stops)
        except ValueError:  # no token has a character of one
            continue
        ours = stop_on_strings(stops, tokenizer, Embeds(), prompt)
        for length in range(1, len(output) + 1):
            expected = bool(theirs(torch.tensor([prompt + output[:length]]), None))
            assert ours(output[:length]) == expected, (prompt, output[:length], stops)
            ended += expected
    assert ended > 10, "the texts are found now and then"


def test_a_text_may_begin_in_the_prompt_with_a_space_or_inside_a_character():
    tokenizer = llama2()
    one, end = (tokenizer.convert_tokens_to_ids(word) for word in ("▁a", "▁END"))
    assert stop_on_strings(" END", tokenizer, Embeds(), [1, one])([end])
    assert stop_on_strings(["a END"], tokenizer, Embeds(), [1, one])([end])
    assert not stop_on_strings(["a"], tokenizer, Embeds(), [1, one])([end]), "what the prompt holds ends nothing"
    tokenizer = gpt2()
    first, second, third = (tokenizer.convert_tokens_to_ids(part) for part in "æĹ¥")
    stop = stop_on_strings(["日"], tokenizer, Embeds(), [first])
    assert [stop([second]), stop([second, third])] == [False, True]


def test_a_generation_its_recording_and_its_replay_end_there(pocket):
    model, tokenizer = pocket
    prompt = list(tokenizer("def add(total, x):\n    total = total + x\n")["input_ids"])
    plain = generate(model, prompt, max_new_tokens=24, eos_token_id=[]).tokens
    stops = [tokenizer.decode(plain[6:8]), "no such text"]
    theirs = StopStringCriteria(tokenizer, stops)
    until = next(n for n in count(1) if bool(theirs(torch.tensor([prompt + plain[:n]]), None)))
    for given in (stops, tuple(stops), (text for text in stops), iter(stops)):
        run = generate(
            model, prompt, PromptLookup(), max_new_tokens=24, eos_token_id=[], stop_strings=given, tokenizer=tokenizer
        )
        assert (run.tokens, run.finish_reason) == (plain[:until], "stop_string")
    for reason, eos in (("stop_string", []), ("eos", plain[until - 1])):
        trace = record(model, prompt, max_new_tokens=24, eos_token_id=eos, stop_strings=stops, tokenizer=tokenizer)
        again = replay(trace, PromptLookup())
        assert (again.tokens, again.finish_reason) == (trace.tokens, trace.finish_reason) == (plain[:until], reason)


def test_none_and_nothing_stop_nothing_and_what_is_no_text_is_named(pocket):
    model, tokenizer = pocket
    prompt = list(tokenizer("def add(a, b):\n    return a")["input_ids"])
    plain = generate(model, prompt, max_new_tokens=4, eos_token_id=[]).tokens
    for nothing in (None, [], (), iter(())):
        assert generate(model, prompt, max_new_tokens=4, eos_token_id=[], stop_strings=nothing).tokens == plain
        assert record(model, prompt, max_new_tokens=4, eos_token_id=[], stop_strings=None).tokens == plain
    for given, own, told in (
        ([b"\n"], tokenizer, r"stop_strings holds b'\\n', a bytes"),
        (b"\n", tokenizer, "stop_strings is b"),
        ([5], tokenizer, "stop_strings holds 5"),
        (5, tokenizer, "stop_strings is 5"),
        (["x", None], tokenizer, "stop_strings holds None"),
        ("\n", "pocket", "tokenizer is 'pocket'; expected the model's tokenizer itself"),
    ):
        with pytest.raises(TypeError, match=told):
            generate(model, prompt, max_new_tokens=4, stop_strings=given, tokenizer=own)
