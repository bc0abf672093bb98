"""What is made of prompts and kept in a folder of shards, so that a later run goes on where an earlier one stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tqdm.auto import tqdm
from transformers import PreTrainedModel

from specdec_lib.datastores.store_files import BuildLock
from specdec_lib.decoding.checks import whole
from specdec_lib.decoding.generate import as_token_list
from specdec_lib.decoding.served_models import vocabulary_size
from specdec_lib.files import replacing

FORMAT = 1


def checked(target: PreTrainedModel, prompts: Sequence[Sequence[int]], **numbers: int) -> list[list[int]]:
    """The prompts as lists of the target's token ids; ValueError if there are none or one of ``numbers`` is below 1."""
    for name, value in numbers.items():
        whole(name, value, 1)
    if not len(prompts):
        raise ValueError("no prompts; expected at least one")
    return [as_token_list(prompt, vocabulary_size(target)) for prompt in prompts]


class Shards(NamedTuple):
    """Files of ``size`` prompts each, whose names begin with ``prefix``, and a JSON file that says what they were made from.

    ``held`` is for bars and errors: "answers recorded".
    """

    folder: Path
    manifest: str
    prefix: str
    held: str
    size: int

    def paths(self, prompts: int) -> list[Path]:
        """The files of so many prompts."""
        return [self.folder / f"{self.prefix}-{i:05d}.safetensors" for i in range(-(-prompts // self.size))]

    def fill(
        self,
        prompts: Sequence[Sequence[int]],
        about: Mapping[str, Any],
        make: Callable[[Path, Mapping[int, Sequence[int]]], None],
        progress: bool,
    ) -> None:
        """Let ``make(path, prompts by number)`` write each file that is missing; ``about`` is what else decides the content.

        ValueError if the folder was begun with something else, StoreBusy if another process fills it.
        """
        digest = hashlib.sha256(json.dumps(prompts).encode()).hexdigest()
        about = {"format": FORMAT, **about, "shard_size": self.size, "prompts": len(prompts), "prompts_sha256": digest}
        self.folder.mkdir(parents=True, exist_ok=True)
        # Resolved: the lock lies beside the folder, and "." has no name to lie beside.
        with BuildLock(self.folder.resolve()):
            self._begin(about)
            with tqdm(total=len(prompts), desc=self.held, unit="prompt", disable=not progress) as bar:
                for index, path in enumerate(self.paths(len(prompts))):
                    numbers = range(index * self.size, min((index + 1) * self.size, len(prompts)))
                    if not path.exists():
                        make(path, {number: prompts[number] for number in numbers})
                    bar.update(len(numbers))

    def _begin(self, about: Mapping[str, Any]) -> None:
        manifest = self.folder / self.manifest
        if manifest.exists():
            begun = json.loads(manifest.read_text(encoding="utf-8"))
            differ = [name for name in about if begun.get(name) != about[name]]
            if differ:
                raise ValueError(
                    f"{self.folder} holds {self.held} with another {', '.join(differ)}; name an empty folder"
                )
            return
        with replacing(manifest) as aside:
            aside.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
