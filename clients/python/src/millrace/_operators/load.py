"""From an import path, or a pickle, to the function."""

from __future__ import annotations

import base64
import functools
import importlib
import inspect
import pickle
from collections.abc import Callable
from typing import Any


def load(call: str, pickled: str, args: dict[str, Any]) -> tuple[Callable[..., Any], bool]:
    """Return what to call, and whether it takes ``ctx``.

    Parameters
    ----------
    call : str
        ``"package.module:name"``; a class is made into an object, once.
    pickled : str
        The function itself instead, base64 of a pickle.
    args : dict
        Keyword arguments, of the class or of each call.
    """
    target = _unpickle(call, pickled) if pickled else _import(call)
    if inspect.isclass(target):
        target = target(**args)
    elif args:
        target = functools.partial(target, **args)
    if not callable(target):
        raise TypeError(f"{call} is a {type(target).__name__}, which can't be called")
    try:
        takes_context = "ctx" in inspect.signature(target).parameters
    except (TypeError, ValueError):  # a function in C without a signature
        takes_context = False
    return target, takes_context


def _import(call: str) -> Any:
    module, _, name = call.partition(":")
    target: Any = importlib.import_module(module)
    for part in name.split("."):
        target = getattr(target, part)
    return target


def _unpickle(call: str, pickled: str) -> Any:
    try:
        return pickle.loads(base64.b64decode(pickled))
    except ModuleNotFoundError as error:
        if error.name == "cloudpickle":
            raise ModuleNotFoundError(
                f"{call} was shipped with cloudpickle, which is missing where workers run: pip install cloudpickle"
            ) from None
        raise
