"""YAML of recipes by PyYAML, read and written so that every YAML reader agrees on it."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from millrace.errors import InvalidError

# Text that no YAML reader takes for a number, a date or a truth value stays without quotes.
_WORD = re.compile(r"[A-Za-z_/][A-Za-z0-9_/.]*(://[A-Za-z0-9_/.\-]+)?")
_NOT_WORDS = frozenset("y n yes no on off true false null none".split())
# PyYAML follows YAML 1.1, where 1e-3 is text. Everyone else reads a number.
_FLOAT = re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+")


def dump(document: dict[str, Any]) -> str:
    """Write a document."""
    text: str = _yaml().dump(document, Dumper=_classes()[0], sort_keys=False, allow_unicode=True, width=120)
    return text


def load(text: str) -> Any:
    """Read a document."""
    yaml = _yaml()
    try:
        return yaml.load(text, Loader=_classes()[1])
    except yaml.YAMLError as error:
        raise InvalidError(f"recipe is not YAML: {error}") from error


def _yaml() -> Any:
    try:
        import yaml
    except ImportError:
        raise ImportError(
            "YAML recipes need PyYAML: pip install pyyaml. Without it use to_json and from_json (JSON is YAML), "
            "or give the loader the file's name: DataLoader('recipe.yaml')"
        ) from None
    return yaml


@lru_cache(maxsize=1)
def _classes() -> tuple[Any, Any]:
    yaml = _yaml()

    class Dumper(yaml.SafeDumper):  # type: ignore[misc,name-defined]
        """Quotes what could be misread, and shares nothing by anchors."""

        def ignore_aliases(self, _: Any) -> bool:
            return True

    class Loader(yaml.SafeLoader):  # type: ignore[misc,name-defined]
        """Reads 1e-3 as a number."""

    def text(dumper: Any, value: str) -> Any:
        plain = _WORD.fullmatch(value) and value.lower() not in _NOT_WORDS
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')

    Dumper.add_representer(str, text)
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
    return Dumper, Loader
