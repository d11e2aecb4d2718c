"""The binary as scripts bring it along."""

from __future__ import annotations

import signal
import time

import pytest

from .conftest import SAMPLES

TRAINER = """
    import millrace as mr
    recipe = (
        mr.Recipe({source!r})
        .decode_image("image")
        .random_resized_crop("image", size=6)
        .label("label")
    )
    loader = mr.DataLoader(recipe, batch_size=4, shuffle=True, job="demo")
    for batch in loader:
        print(batch.meta.step, batch["image"].dtype, *batch.meta.samples[batch.meta.valid], flush=True)
"""

TORCHRUN = {
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
}


def wait_until(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def samples(output: str) -> list[int]:
    return [int(s) for line in output.splitlines() for s in line.split()[2:]]


def test_a_script_with_nothing_running(script, source):
    output = script.run(TRAINER.format(source=source))
    assert sorted(samples(output)) == list(range(SAMPLES))
    assert output.startswith("0 uint8 ")
    assert script.left() == []
    assert list(script.sockets.iterdir()) == []


def test_two_ranks_of_a_host(script, source):
    text = TRAINER.format(source=source)
    ranks = [script.start(text, **TORCHRUN, RANK=str(r), LOCAL_RANK=str(r)) for r in (1, 0)]
    outputs = []
    for process in ranks:
        output, errors = process.communicate(timeout=90)
        assert (process.returncode, errors) == (0, "")
        outputs.append(output)
    assert [len(output.splitlines()) for output in outputs] == [7, 7]
    assert sorted(samples("\n".join(outputs))) == list(range(SAMPLES))
    wait_until(lambda: script.left() == [])


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_a_script_ends_nothing_is_left(script, source, end):
    process = script.start(TRAINER.format(source=source) + "        import time; time.sleep(60)")
    assert process.stdout.readline().startswith("0 ")
    process.send_signal(end)
    errors = process.communicate(timeout=30)[1]
    assert process.returncode == -end
    assert errors.count("Traceback") == (1 if end == signal.SIGINT else 0)
    wait_until(lambda: script.left() == [])


def test_exit_right_after_one_batch(script, source):
    process = script.start(TRAINER.format(source=source) + "        break")
    assert process.stdout.readline().startswith("0 ")
    started = time.monotonic()
    errors = process.communicate(timeout=30)[1]
    assert (process.returncode, errors) == (0, "")
    # The promise is 1 s; a machine that is busy with other tests gets some more.
    assert time.monotonic() - started < 5
    assert script.left() == []


def test_a_sidecar_killed_in_the_middle(script, source):
    text = (
        TRAINER.format(source=source)
        + """
        if batch.meta.step == 1:
            break
    import os, signal
    from millrace._process import PROCESS
    os.kill(PROCESS.local._process.pid, signal.SIGKILL)
    state = loader.state_dict()
    try:
        for epoch in range(100):
            list(loader)
    except mr.UnavailableError as error:
        print(error)
    loader.load_state_dict(state)
    print(next(iter(loader)).meta.step)
    """
    )
    lines = script.run(text).splitlines()
    assert lines[-2].startswith("millrace local ended with exit code -9")
    assert lines[-1] == "2"


def test_a_source_that_is_missing(script):
    process = script.start(TRAINER.format(source="/nowhere/train.tar"))
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert "millrace.errors.NotFoundError: " in errors.splitlines()[-1]
    assert "/nowhere/train.tar" in errors.splitlines()[-1]
    assert script.left() == []
