"""Compilation where nothing can be kept on disk."""

from __future__ import annotations

from numba import njit

from specdec_lib.datastores import compiled


def double(x):
    return 2 * x


def test_code_is_compiled_anew_where_no_folder_can_be_written(monkeypatch):
    asked = []

    def without_a_folder(*, cache=False, **options):
        asked.append(cache)
        if cache:
            raise RuntimeError("cannot cache function 'double': no locator available")
        return njit(**options)

    monkeypatch.setattr(compiled, "njit", without_a_folder)
    fast = compiled.compiled(double)
    assert fast(21) == 42 and fast.signatures and asked == [True, False]
