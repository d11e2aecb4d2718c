"""What a function is told beside its row."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from millrace._operators.modules import numpy


class Context:
    """What belongs to the row that a function is called with, if it takes a parameter named ``ctx``.

    Attributes
    ----------
    key : str
        Name of the sample that the row is of: ``"train-000017.tar!n014"``.
    sample : int
        Its number in the dataset.
    epoch : int
        Epoch, from 0.
    """

    def __init__(self, seed: int, epoch: int, sample: int, index: int, key: str) -> None:
        self.key = key
        self.sample = sample
        self.epoch = epoch
        self._entropy = (seed, epoch, sample, index)

    @cached_property
    def rng(self) -> Any:
        """A ``numpy.random.Generator`` seeded from (seed, epoch, sample, operator): a sample made again draws the same."""
        return generator(self._entropy)


class BatchContext:
    """What belongs to a batch that a function is called with, if it takes a parameter named ``ctx``.

    Attributes
    ----------
    keys : list of str
        Names of the samples.
    samples : list of int
        Their numbers in the dataset.
    epoch : int
        Epoch, from 0.
    """

    def __init__(self, seed: int, epoch: int, samples: list[int], index: int, keys: list[str]) -> None:
        self.keys = keys
        self.samples = samples
        self.epoch = epoch
        self._seed = seed
        self._index = index

    def rng(self, row: int) -> Any:
        """Make the generator of a row, as :attr:`Context.rng`.

        Parameters
        ----------
        row : int
            Row of the batch.
        """
        return generator((self._seed, self.epoch, self.samples[row], self._index))


def generator(entropy: tuple[int, ...]) -> Any:
    """Make a generator from (seed, epoch, sample, operator)."""
    random = numpy("random numbers").random
    return random.Generator(random.PCG64(random.SeedSequence(entropy)))
