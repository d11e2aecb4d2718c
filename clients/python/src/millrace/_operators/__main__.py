"""Entry of ``python -m millrace._operators``."""

from __future__ import annotations

from millrace._operators.serve import main

main()
