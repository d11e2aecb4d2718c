"""Modules that only some functions need, imported when they do."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def numpy(purpose: str) -> Any:
    """Import NumPy.

    Parameters
    ----------
    purpose : str
        What it is needed for, to be named where it is missing.
    """
    try:
        import numpy
    except ImportError:
        raise ImportError(
            f"{purpose} of operators in Python need NumPy where workers run: pip install 'millrace[numpy]'"
        ) from None
    return numpy


@cache
def pyarrow() -> Any:
    """Import pyarrow."""
    import pyarrow

    return pyarrow
