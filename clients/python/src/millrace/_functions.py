"""Functions of users as operators: by their import path where there is one, else shipped with the recipe."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from millrace.errors import InvalidError

# What fits in a recipe, of which the server reads 1 MiB.
_MOST_BYTES = 700_000


class Named(NamedTuple):
    """A function by name."""

    call: str
    """``"package.module:name"``."""
    function: Callable[..., Any] | None
    """The function itself where it has to be shipped, else None."""


def named(function: Callable[..., Any] | str) -> Named:
    """Find the import path of a function or class.

    Parameters
    ----------
    function : callable or str
        An import path is taken as it is.

    Raises
    ------
    InvalidError
        When it is neither.
    """
    if isinstance(function, str):
        return Named(function, None)
    if not callable(function):
        raise InvalidError(f"recipe: {function!r} is neither a function nor an import path such as 'package.module:name'")
    target = function if hasattr(function, "__qualname__") else type(function)
    module, name = str(target.__module__), str(target.__qualname__)
    call = f"{module}:{name}".replace(" ", "_")
    if module == "__main__" or target is not function or _lookup(module, name) is not function:
        return Named(call, function)
    return Named(call, None)


def _lookup(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def pickled(call: str, function: Callable[..., Any]) -> str:
    """Pickle a function to ship it.

    Parameters
    ----------
    call : str
        Its name, for messages.
    function : callable
        What is shipped, with what it refers to in ``__main__``; of other modules only the names.

    Raises
    ------
    InvalidError
        When it cannot be pickled or is too large.
    """
    try:
        import cloudpickle
    except ImportError:
        raise ImportError(
            f"{call} is not importable by name, and shipping it needs cloudpickle here and where workers run: "
            "pip install 'millrace[functions]', or move it to a module that workers can import"
        ) from None
    try:
        data = cloudpickle.dumps(function)
    except Exception as error:
        raise InvalidError(f"recipe: {call} cannot be pickled: {error}; move it to a module that workers can import") from error
    if len(data) > _MOST_BYTES:
        raise InvalidError(
            f"recipe: {call} has {len(data):,} bytes with what it refers to, and at most {_MOST_BYTES:,} are shipped: "
            "load large objects in a class's constructor, or move it to a module that workers can import"
        )
    return base64.b64encode(data).decode()
