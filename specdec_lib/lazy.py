"""Public names of a package that are imported when they are asked for, and names of version 1.0 that still work.

A module, class or function says on one line what a name was called: it works as before, with a DeprecationWarning that says the
new one. These lines go with version 1.2.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def _warn(old: str, new: str, level: int = 3) -> None:
    warnings.warn(f"{old} is now {new}; the old name goes with version 1.2", DeprecationWarning, stacklevel=level)


def names_of(
    package: str, homes: Mapping[str, str], former: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` for a package: each name of ``homes`` with the module that has it, or is it.

    ``former`` has by names of version 1.0 those of ``homes`` that they are now.
    """

    def get(name: str) -> Any:
        new = (former or {}).get(name, name)
        if new not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if new != name:
            _warn(f"{package}.{name}", f"{package}.{new}")
        home = import_module(f"{package}.{homes[new]}")
        return home if homes[new] == new else getattr(home, new)

    return get, lambda: sorted(homes), sorted(homes)


def former_names(module: str, home: str | None = None, **names: str) -> Callable[[str], Any]:
    """``__getattr__`` for a module whose ``names`` of version 1.0 are other ones now, in the module itself or in ``home``."""

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        place = home or module
        _warn(f"{module}.{name}", f"{place}.{names[name]}")
        return getattr(import_module(place) if home else sys.modules[module], names[name])

    return get


def former_attribute(new: str) -> Any:
    """A property by which an attribute of version 1.0 is read and set under the name that it has now."""

    class Former:
        def __set_name__(self, owner: type, name: str) -> None:
            self.name = name

        def __get__(self, one: Any, owner: type) -> Any:
            if one is None:
                raise AttributeError(self.name)
            _warn(f"{owner.__name__}.{self.name}", f"{owner.__name__}.{new}")
            return getattr(one, new)

        def __set__(self, one: Any, value: Any) -> None:
            _warn(f"{type(one).__name__}.{self.name}", f"{type(one).__name__}.{new}")
            setattr(one, new, value)

    return Former()


def former_keywords(**names: str) -> Callable[[Any], Any]:
    """Decorate a function, or a class, some of whose keywords had other ``names`` in version 1.0."""

    def decorate(made: Any) -> Any:
        call = made.__init__ if isinstance(made, type) else made

        @functools.wraps(call)
        def renamed(*arguments: Any, **given: Any) -> Any:
            for old in names.keys() & given.keys():
                _warn(f"{made.__qualname__}({old}=)", f"{made.__qualname__}({names[old]}=)")
                given[names[old]] = given.pop(old)
            return call(*arguments, **given)

        if isinstance(made, type):
            made.__init__ = renamed
            return made
        return renamed

    return decorate
