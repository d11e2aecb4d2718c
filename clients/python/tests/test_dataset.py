from __future__ import annotations

import json
import pickle

import pytest
import torch.utils.data as torch_data
from fake_sidecar import order

import millrace as mr


@pytest.fixture
def dataset(sidecar):
    made = []

    def make(source="fake://rows=20", batch_size=4, **options):
        made.append(mr.StreamingDataset(source, batch_size, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def samples(loader) -> list[int]:
    return [int(s) for batch in loader for s in batch.meta.samples]


def test_it_is_a_dataset_of_torch(dataset):
    made = dataset()
    assert isinstance(made, torch_data.IterableDataset)
    assert isinstance(made, mr.StreamingDataset)


def test_length_is_known_from_the_first_batch_on(dataset, sidecar):
    made = dataset()
    loader = torch_data.DataLoader(made, batch_size=None)
    with pytest.raises(TypeError, match=r"not known before its first batch; millrace\.DataLoader knows"):
        len(loader)
    assert not sidecar.opened
    next(iter(made))
    assert len(made) == len(loader) == 5
    unknown = dataset("fake://unknown=1")
    next(iter(unknown))
    with pytest.raises(TypeError, match="recipe may drop or add rows"):
        len(unknown)


def test_one_iteration_is_one_epoch(dataset):
    loader = torch_data.DataLoader(dataset(), batch_size=None)
    assert [samples(loader) for _ in range(3)] == [order(0, epoch, 20) for epoch in range(3)]


def test_batches_come_through_torchs_loader_with_meta(dataset):
    batch = next(iter(torch_data.DataLoader(dataset(), batch_size=None)))
    assert type(batch) is mr.Batch
    assert batch.meta.step == 0
    assert batch["image"].shape == (4, 2, 3)


def test_state_and_epoch(dataset):
    made = dataset()
    iterator = iter(torch_data.DataLoader(made, batch_size=None))
    first = next(iterator)
    next(iterator)
    resumed = dataset()
    resumed.load_state_dict(made.state_dict())
    assert samples(resumed) == order(0, 0, 20)[8:]
    assert made.state_dict(after=first) == {"millrace": first.meta.cursor}
    resumed.set_epoch(5)
    assert samples(resumed) == order(0, 5, 20)


WORKER = """
import torch, warnings
import millrace as mr
warnings.simplefilter("ignore", DeprecationWarning)  # Python's own about forks beside threads.

def samples(loader):
    return [int(s) for batch in loader for s in batch.meta.samples]

def main():
    dataset = mr.StreamingDataset("fake://rows=20", 4, job="worker")
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, {options})
    {body}

if __name__ == "__main__":
    main()
"""


def in_workers(script, tmp_path, options: str, body: str) -> list[list[int]]:
    """What a script prints that has worker processes; each of them starts a sidecar of its own."""
    path = tmp_path / "trainer.py"
    path.write_text(WORKER.format(options=options, body=body.strip().replace("\n", "\n    ")))
    output = script.run(f"import runpy; runpy.run_path({str(path)!r}, run_name='__main__')")
    return [json.loads(line) for line in output.splitlines()]


def epochs(*numbers: int) -> list[list[int]]:
    return [order(0, epoch, 20) for epoch in numbers]


def test_one_worker_process_goes_through_the_epochs(script, tmp_path):
    body = """
print(samples(loader))
print(samples(loader))
dataset.set_epoch(7)
print(samples(loader))
print(samples(loader))
"""
    assert in_workers(script, tmp_path, "num_workers=1", body) == epochs(0, 1, 7, 8)


def test_so_does_one_that_is_spawned(script, tmp_path):
    body = """
dataset.set_epoch(3)
print(samples(loader))
print(samples(loader))
"""
    assert in_workers(script, tmp_path, "num_workers=1, multiprocessing_context='spawn'", body) == epochs(3, 4)


def test_a_loaded_state_takes_effect_once_in_worker_processes(script, tmp_path):
    body = """
batches = list(loader)
dataset.load_state_dict(dataset.state_dict(after=batches[1]))
print(samples(loader))
print(samples(loader))
"""
    assert in_workers(script, tmp_path, "num_workers=1", body) == [order(0, 0, 20)[8:], order(0, 1, 20)]


def test_persistent_workers_follow_set_epoch(script, tmp_path):
    body = """
print(samples(loader))
dataset.set_epoch(4)
print(samples(loader))
print(samples(loader))
"""
    assert in_workers(script, tmp_path, "num_workers=1, persistent_workers=True", body) == epochs(0, 4, 5)


def test_more_worker_processes_raise_and_say_why(script, tmp_path):
    body = """
try:
    next(iter(loader))
except mr.MillraceError as error:
    print([int(w in str(error)) for w in ("2 worker processes", "each would get all batches", "num_workers=0")])
"""
    assert in_workers(script, tmp_path, "num_workers=2", body) == [[1, 1, 1]]


def test_pickled_dataset_starts_where_it_was(dataset):
    made = dataset()
    iterator = iter(made)
    next(iterator)
    twin = pickle.loads(pickle.dumps(made))
    assert isinstance(twin, mr.StreamingDataset)
    assert twin.state_dict() == made.state_dict()
    twin.close()
