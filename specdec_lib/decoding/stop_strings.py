"""Where texts that shall end an output are complete, token by token, as transformers' ``StopStringCriteria`` finds them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import chain

from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from specdec_lib.decoding.served_models import check_tokenizer

#: A text before a token, so that no decoder takes the token for the beginning of a text and leaves its space out.
_BEFORE = "abcdef"


def checked_stop_strings(stop_strings: str | Iterable[str] | None) -> list[str]:
    r"""The texts that shall end an output, as a list.

    Parameters
    ----------
    stop_strings : str, iterable of str, or None

    Returns
    -------
    list of str
        Empty for None.

    Raises
    ------
    TypeError, ValueError
        For what is no text, or empty.

    Examples
    --------
    >>> from specdec_lib.decoding.stop_strings import checked_stop_strings
    >>> checked_stop_strings("\n\n")
    ['\n\n']
    """
    if stop_strings is None:
        return []
    if isinstance(stop_strings, bytes) or not isinstance(stop_strings, str | Iterable):
        raise TypeError(f"stop_strings is {stop_strings!r:.60}; expected texts, or None for none")
    texts = [stop_strings] if isinstance(stop_strings, str) else list(stop_strings)
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"stop_strings holds {text!r:.60}, a {type(text).__name__}; expected texts")
    if not all(texts):
        raise ValueError(f"stop_strings is {texts!r}; expected strings that are not empty")
    return texts


def stop_on_strings(
    stop_strings: str | Iterable[str] | None,
    tokenizer: PreTrainedTokenizerBase | None,
    model: PreTrainedModel,
    prompt: Sequence[int],
) -> Callable[[Sequence[int]], bool] | None:
    r"""A check for ``Limits.stop``: whether the last of the new tokens completes one of the texts.

    As in transformers, tokens are compared by their bytes, special ones by their names, and a text may begin in the prompt.

    Parameters
    ----------
    stop_strings : str, iterable of str, or None
    tokenizer : PreTrainedTokenizerBase or None
    model : PreTrainedModel
    prompt : sequence of int

    Returns
    -------
    callable or None
        Takes the new tokens and gives a bool; None without any text.

    Raises
    ------
    ValueError
        If there are texts and no tokenizer, or the tokenizer is another model's.

    Examples
    --------
    >>> from specdec_lib.decoding.stop_strings import stop_on_strings
    >>> stop = stop_on_strings("return", tokenizer, model, prompt)
    >>> new = tokenizer("\n    return")["input_ids"]
    >>> stop(new), stop(new[:1])
    (True, False)
    """
    texts = checked_stop_strings(stop_strings)
    if not texts:
        return None
    if tokenizer is None:
        raise ValueError("stop_strings needs the tokenizer: pass tokenizer=... as well")
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise TypeError(
            f"tokenizer is {tokenizer!r:.60}; expected the model's tokenizer itself, as load_model gives it"
        )
    check_tokenizer(tokenizer, model)
    wanted, bytes_of = [text.encode() for text in texts], token_bytes(tokenizer)
    longest = max(map(len, wanted))

    def stop(new: Sequence[int]) -> bool:
        tokens = chain(reversed(new), reversed(prompt))
        last, before = bytes_of(next(tokens)), b""
        for token in tokens:
            if len(before) >= longest - 1:
                break
            before = bytes_of(token) + before
        # Too little of what stands before to hold a text that ends there.
        return any(text in before[max(0, len(before) - len(text) + 1) :] + last for text in wanted)

    return stop


def token_bytes(tokenizer: PreTrainedTokenizerBase) -> Callable[[int], bytes]:
    """What each token adds to a text that has begun.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase

    Returns
    -------
    callable
        From a token id to bytes, also where they are a part of a character; empty for an id that the tokenizer does not know.

    Examples
    --------
    >>> from specdec_lib.decoding.stop_strings import token_bytes
    >>> bytes_of = token_bytes(tokenizer)
    >>> b"".join(map(bytes_of, tokenizer("x = 'é'")["input_ids"])).decode()
    "x = 'é'"
    """
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    kinds = "" if decoder is None else f"{decoder.__class__.__name__} {decoder.__getstate__()}"
    fallback = "ByteFallback" in kinds
    byte_of = {} if fallback or "ByteLevel" not in kinds else {char: byte for byte, char in bytes_to_unicode().items()}
    begun = tokenizer.convert_ids_to_tokens(tokenizer(_BEFORE, add_special_tokens=False)["input_ids"])
    before = tokenizer.convert_tokens_to_string(begun)

    @cache
    def bytes_of(token: int) -> bytes:
        name = tokenizer.convert_ids_to_tokens(int(token))
        if name is None:  # a row of padding, of which the tokenizer knows nothing
            return b""
        if fallback and (written := re.fullmatch("<0x([0-9A-Fa-f]{2})>", name)):
            return bytes([int(written[1], 16)])
        if byte_of and all(char in byte_of for char in name):
            return bytes(byte_of[char] for char in name)
        return tokenizer.convert_tokens_to_string([*begun, name]).removeprefix(before).encode()

    return bytes_of
