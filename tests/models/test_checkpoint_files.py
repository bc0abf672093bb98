"""A checkpoint whose files are not what their names say is refused with the file's name, however it is loaded."""

import json
import shutil

import pytest

from specdec_lib import load_model
from specdec_lib.commands.datastore import load_tokenizer
from specdec_lib.commands.options import hidden_size_and_context
from specdec_lib.models.checkpoint_files import check_files
from tests.families import build, save

POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0123abcd' * 8}\nsize 22465024\n".encode()
PAGE = b"\n<!DOCTYPE html><html><body>404</body></html>"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return save(build("llama-gqa"), tmp_path_factory.mktemp("whole"))


def cut(content: bytes, rest: int) -> bytes:
    return content[:rest]


@pytest.mark.parametrize(("name", "changed", "told"), [
    ("model.safetensors", lambda old: POINTER, "is a pointer of Git LFS"),
    ("tokenizer.json", lambda old: POINTER, "is a pointer of Git LFS"),
    ("config.json", lambda old: POINTER, "is a pointer of Git LFS"),
    ("model.safetensors", lambda old: PAGE, "is a page of HTML"),
    ("tokenizer.json", lambda old: PAGE, "is a page of HTML"),
    ("model.safetensors", lambda old: old[:-100], "was cut off: it has"),
    ("model.safetensors", lambda old: old + b"more", "is damaged: it has"),
    ("model.safetensors", lambda old: old[:20], "was cut off within its header"),
    ("model.safetensors", lambda old: b"", "is empty"),
    ("model.safetensors", lambda old: old[:8] + b"x" * (len(old) - 8), "has a damaged header"),
    ("tokenizer.json", lambda old: old[: len(old) // 2], "is no JSON"),
    ("tokenizer_config.json", lambda old: b"{", "is no JSON"),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_a_damaged_file_is_named(name, changed, told, whole, tmp_path):
    folder = tmp_path / "my-model"
    shutil.copytree(whole, folder)
    file = folder / name
    file.write_bytes(changed(file.read_bytes()))
    loads = [load_model, hidden_size_and_context]
    if "model" not in name:
        loads.append(lambda place: load_tokenizer(str(place)))
    for load in loads:
        with pytest.raises(ValueError) as raised:
            load(folder)
        assert str(file) in str(raised.value) and told in str(raised.value)


@pytest.mark.parametrize(
    "held", ["5", "[]", '{"a": 5}', '{"a": ["model"]}', '{"a": "../model.safetensors"}', '{"a": "/x"}']
)
def test_a_list_of_parts_that_is_none_is_refused(held, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(f'{{"weight_map": {held}}}')
    with pytest.raises(ValueError, match="model.safetensors.index.json lists no weights"):
        check_files(tmp_path)


def test_a_missing_part_is_named_and_whole_checkpoints_are_loaded(whole, tmp_path):
    check_files(whole)
    check_files("a/name-on-the-hub")
    folder = tmp_path / "my-model"
    shutil.copytree(whole, folder)
    for unread in ("pytorch_model.bin", "consolidated.safetensors", "optimizer.pt", "other.gguf", "tokenizer.model"):
        (folder / unread).write_bytes(POINTER)
    assert load_model(folder)[0].num_parameters() > 0, "what is not read may be a pointer"
    (folder / "model.safetensors").write_bytes(POINTER)
    assert load_tokenizer(str(folder)), "a tokenizer needs no weights"
    (folder / "model.safetensors").unlink()
    shutil.copy(whole / "model.safetensors", folder / "model-00001-of-00002.safetensors")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="lacks model-00002-of-00002.safetensors, 1 of 2 files of weights"):
        load_model(folder)
