"""Imports the modules that its arguments name and prints their versions, one JSON object; says which one is missing.

It also warms up: the first import of a module compiles it, and no measured run shall pay for that.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
from typing import Any


def main() -> None:
    """Print the versions, or fail with one line."""
    out = os.dup(1)
    os.dup2(2, 1)  # some modules print when they are imported
    versions: dict[str, Any] = {"python": platform.python_version()}
    for name in sys.argv[1:]:
        try:
            versions[name] = importlib.import_module(name).__version__
        except ImportError as error:
            sys.exit(f"cannot import {name}: {error}")
    if "PIL" in versions:
        from PIL import features

        # Two copies of the library may be in use: Pillow's own and that of torchvision.
        versions["PIL.libjpeg_turbo"] = features.version("libjpeg_turbo")
    os.write(out, json.dumps(versions).encode())


if __name__ == "__main__":
    main()
