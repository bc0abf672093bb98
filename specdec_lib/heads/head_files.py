"""Files of heads: the weights of a module and, as JSON, what it was made with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from specdec_lib.files import named, replacing

FORMAT = 1


def save(path: str | Path, key: str, head: nn.Module, about: dict[str, Any]) -> None:
    """Write one safetensors file in bfloat16, aside and renamed.

    Parameters
    ----------
    path : path
    key : str
        Names the kind of head in the file.
    head : torch.nn.Module
    about : dict
        What the head was made with, JSON.

    Examples
    --------
    >>> from torch import nn
    >>> from specdec_lib.heads.head_files import load, save
    >>> save(folder / "head.safetensors", "my_head", nn.Linear(4, 2), {"width": 4})
    >>> make = lambda about: nn.Linear(about["width"], 2)
    >>> load(folder / "head.safetensors", "my_head", make, "my-command")
    Linear(in_features=4, out_features=2, bias=True)
    """
    weights = {name: w.detach().to("cpu", torch.bfloat16).contiguous() for name, w in head.state_dict().items()}
    with replacing(path) as aside:
        save_file(weights, aside, metadata={key: json.dumps({"format": FORMAT} | about)})


def load(path: str | Path, key: str, make: Callable[[dict[str, Any]], nn.Module], command: str) -> Any:
    """Read what :func:`save` wrote.

    Parameters
    ----------
    path : path
    key : str
    make : callable
        From what the file says the head was made with to a head, whose weights are then replaced.
    command : str
        What errors say to train another one by.

    Returns
    -------
    torch.nn.Module
        In evaluation mode.

    Raises
    ------
    FileNotFoundError
    ValueError
        If the file is damaged, or holds another kind of head.

    Examples
    --------
    >>> from torch import nn
    >>> from specdec_lib.heads.head_files import load
    >>> load(folder / "head.safetensors", "my_head", lambda about: nn.Linear(4, 2), "my-command")
    Traceback (most recent call last):
        ...
    FileNotFoundError: no my head at ...head.safetensors; train: my-command
    """
    what = key.replace("_", " ")
    path = named(path)
    if not path.exists():
        raise FileNotFoundError(f"no {what} at {path}; train: {command}")
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {})[key])
            weights = {name: file.get_tensor(name).float() for name in file.keys()}
        version = about["format"]
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError):
        raise ValueError(f"{path} holds no {what}; expected a file that their save() wrote") from None
    if version != FORMAT:
        raise ValueError(f"{path} is of format {version}; this version reads format {FORMAT}: train again: {command}")
    try:
        with torch.device("meta"):  # the file says how large they are: nothing is asked for before its weights fit
            head = make(about)
        head.load_state_dict(weights, assign=True)
        broken = next((name for name, values in weights.items() if not bool(values.isfinite().all())), None)
        if broken is not None:
            raise ValueError(f"{broken} holds NaN or infinity")
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError, RuntimeError) as error:
        # torch lists missing tensors and wrong shapes over several lines.
        raise ValueError(f"{path} holds a damaged {what} ({' '.join(str(error).split())}); train: {command}") from error
    return head.eval()
