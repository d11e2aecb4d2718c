"""Runs functions of users on a worker: ``python -m millrace._operators``, started and fed by the ``millrace`` binary.

A process has functions of one job. Rows come and go as Arrow's column buffers in shared memory; what is where stands in small
frames of JSON on a Unix socket. NumPy is needed for tensors, images, batches and random numbers, pyarrow for batches in
Arrow's form; rows of text, bytes and numbers need neither.
"""

from __future__ import annotations

from millrace._operators.context import BatchContext, Context

__all__ = ["BatchContext", "Context"]
