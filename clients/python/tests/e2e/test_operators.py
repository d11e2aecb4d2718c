"""Functions of users, run by workers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import millrace as mr

from .conftest import SAMPLES
from .test_processes import wait_until

HERE = Path(__file__).parent
ROOT = Path(__file__).parents[4]
FUNCTIONS = "operator_functions"


@pytest.fixture
def serve(binary, tmp_path):
    """Start `millrace local` with flags; give its endpoint, and the directory where functions leave marks."""
    started = []

    @contextmanager
    def start(*flags: str, allow: str = "imports", end: int = 0):
        marks = tmp_path / f"marks-{len(started)}"
        marks.mkdir()
        path = tmp_path / f"s{len(started)}.sock"
        env = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
            "OPERATOR_MARKS": str(marks),
        }
        command = [binary, "local", "--socket", str(path), "--watch-stdin", "--allow-python", allow]
        command += ["--python-executable", sys.executable, *flags]
        with (
            open(tmp_path / f"log-{len(started)}", "wb") as log,
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=env) as process,
        ):
            started.append(process)
            try:
                ready = json.loads(process.stdout.readline())
                yield f"unix://{path}", marks, ready
            finally:
                process.stdin.close()
                try:
                    assert process.wait(15) == end
                finally:
                    process.kill()
        wait_until(lambda: children_of(marks) == [])

    return start


def children_of(marks: Path) -> list[int]:
    """Find processes of operators that were given this directory for their marks."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if f"OPERATOR_MARKS={marks}\0".encode() in (entry / "environ").read_bytes():
                line = (entry / "cmdline").read_bytes()
                if b"millrace._operators" in line:
                    found.append(int(entry.name))
        except OSError:
            continue
    return found


def chain(source: str) -> mr.Recipe:
    """Every way to call a function on rows, between native operators."""
    return (
        mr.Recipe(source)
        .decode_image("image")
        .map(f"{FUNCTIONS}:noisy", output={"caption": "text", "mean": "float64"})
        .random_resized_crop("image", 6)
        .filter(f"{FUNCTIONS}:two_of_three", input=["label"])
        .label("label")
        .flat_map(f"{FUNCTIONS}:many", output={"part": "int64", "embedding": {"dtype": "float32", "shape": [4]}})
        .partition(samples=8, target_bytes=1000)
    )


FIELDS = ("image", "label", "caption", "mean", "part", "embedding")


def row_of(batch, i):
    values = []
    for field in FIELDS:
        value = batch[field][i]
        values.append(value if isinstance(value, str) else np.asarray(value).tobytes())
    return (batch.meta.keys[i], int(batch.meta.samples[i]), *values)


def stream(batches) -> list[list]:
    return [[row_of(b, i) for i in range(len(b.meta.valid)) if b.meta.valid[i]] for b in batches]


def opened(source, endpoint, batch_size=4, **options):
    options.setdefault("job", f"test-{os.urandom(6).hex()}")
    return mr.DataLoader(source, batch_size, endpoint=endpoint, **options)


def test_the_stream_is_the_same_with_other_workers_kills_and_a_restart(serve, source):
    recipe = chain(source)
    with serve("--python", "1") as (endpoint, _, _), opened(recipe, endpoint, shuffle=True, seed=7) as loader:
        whole = stream(loader)
    rows = [row for batch in whole for row in batch]
    assert sorted({row[1] for row in rows}) == [s for s in range(SAMPLES) if s % 3]
    assert len(rows) == sum(s % 3 for s in range(SAMPLES))
    assert len({row[4] for row in rows}) == len({row[1] for row in rows})  # captions are drawn by the sample's key

    with serve("--workers", "3", "--python", "3") as (endpoint, marks, _):
        kills, over = [], threading.Event()

        def kill() -> None:
            while not over.is_set() and len(kills) < 3:
                for pid in children_of(marks):
                    if (marks / f"pid-{pid}").exists() and pid not in kills:
                        os.kill(pid, signal.SIGKILL)
                        kills.append(pid)
                        break
                over.wait(0.05)

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            with opened(recipe, endpoint, shuffle=True, seed=7) as loader:
                assert stream(loader) == whole
                epochs = 1
                while len(kills) < 2:  # whatever the epoch
                    list(loader)
                    epochs += 1
                    assert epochs < 50
        finally:
            over.set()
            killer.join()

        with opened(recipe, endpoint, shuffle=True, seed=7) as loader:
            batches = iter(loader)
            first = stream([next(batches), next(batches)])
            state = loader.state_dict()
        with opened(recipe, endpoint, 2, rank=0, world_size=2, shuffle=True, seed=7, job="resumed") as one:
            with opened(recipe, endpoint, 2, rank=1, world_size=2, shuffle=True, seed=7, job="resumed") as two:
                halves: list = [None, None]

                def run(i, loader):
                    loader.load_state_dict(state)
                    halves[i] = stream(loader)

                threads = [threading.Thread(target=run, args=(i, each)) for i, each in enumerate((one, two))]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
        assert first + [a + b for a, b in zip(*halves, strict=True)] == whole


@pytest.mark.parametrize("function", ["normal", "normal_arrow"])
def test_batches(serve, source, function):
    recipe = (
        mr.Recipe(source)
        .decode_image("image")
        .resize("image", [8, 8])
        .map_batches(
            f"{FUNCTIONS}:{function}",
            batch_size=5,
            format="arrow" if function.endswith("arrow") else None,
            input=["image"],
            output={"image": {"dtype": "float32", "shape": [3]}},
        )
    )
    from .conftest import pixels

    with serve("--python", "2") as (endpoint, _, _), opened(recipe, endpoint) as loader:
        seen = 0
        for batch in loader:
            for i in range(len(batch.meta.valid)):
                if batch.meta.valid[i]:
                    want = pixels(int(batch.meta.samples[i])).astype(np.float32).mean(axis=(0, 1))
                    assert np.asarray(batch["image"][i]).tolist() == want.tolist()
                    seen += 1
        assert seen == SAMPLES


def test_batches_that_drop_rows(serve, source):
    recipe = mr.Recipe(source, {"label": "cls"}).map_batches(f"{FUNCTIONS}:halves", keeps_rows=False)
    with serve() as (endpoint, _, _), opened(recipe, endpoint) as loader:
        samples = [int(s) for b in loader for s, v in zip(b.meta.samples, b.meta.valid, strict=True) if v]
    assert samples == [s for s in range(SAMPLES) if s * 13 % 100 % 2 == 0]


def test_what_a_function_keeps_is_its_own(serve, source):
    recipe = mr.Recipe(source).decode_image("image").map(f"{FUNCTIONS}:Kept", args={"limit": 20})
    recipe = recipe.resize("image", [8, 8]).partition(samples=4)
    with serve("--python", "1") as (endpoint, _, _), opened(recipe, endpoint) as loader:
        assert len(list(loader)) == 14


def failure(serve, recipe, cls=mr.BadDataError, **options) -> str:
    with serve(**options) as (endpoint, _, _), pytest.raises(cls) as caught, opened(recipe, endpoint) as loader:
        list(loader)
    return str(caught.value)


def test_an_exception_is_the_error_of_its_sample(serve, source):
    text = failure(serve, mr.Recipe(source).decode_image().map(f"{FUNCTIONS}:picky").resize("image", [8, 8]))
    first, _, rest = text.partition("\n")
    for word in ("train-02.tar!00030", f"python {FUNCTIONS}:picky: ValueError: no caption in ", "offset"):
        assert word in first
    assert rest.startswith("Traceback (most recent call last):")
    assert "operator_functions.py" in rest
    assert "in picky" in rest


def test_a_call_that_does_not_come_back(serve, source):
    recipe = mr.Recipe(source).map(f"{FUNCTIONS}:stuck", input=["label"], timeout=1)
    text = failure(serve, recipe)
    assert "00030" in text
    assert "did not come back within 1s" in text


def test_a_function_that_kills_its_process(serve, source):
    text = failure(serve, mr.Recipe(source).map(f"{FUNCTIONS}:fatal", input=["label"]))
    assert "00030" in text
    assert "crashed 2 times: signal: aborted" in text
    assert "Fatal Python error: Aborted" in text


def test_a_function_that_is_not_there(serve, source):
    text = failure(serve, mr.Recipe(source).map("no_such_module:f"), mr.InvalidError)
    assert "ModuleNotFoundError: No module named 'no_such_module'" in text


@pytest.mark.parametrize(
    ("allow", "flags", "function", "words"),
    [
        ("none", [], f"{FUNCTIONS}:picky", "functions in Python are not run here|such are not run here"),
        ("none", ["--workers", "2"], f"{FUNCTIONS}:picky", "such are not run here; start workers with --allow-python imports"),
        ("imports", [], lambda row: row, "only installed ones are run here"),
    ],
)
def test_refused_where_it_is_not_allowed(serve, source, allow, flags, function, words):
    with serve(*flags, allow=allow) as (endpoint, marks, _):
        wait_until(lambda: workers(endpoint) > 0)
        loader = opened(mr.Recipe(source).map(function), endpoint)
        with pytest.raises(mr.InvalidError, match=words):
            next(iter(loader))
        loader.close()
        assert children_of(marks) == []


def workers(endpoint: str) -> int:
    binary = os.environ.get("MILLRACE_BIN") or str(ROOT / "bin" / "millrace")
    done = subprocess.run([binary, "status", "--json", "--endpoint", endpoint], capture_output=True, check=True)
    return len(json.loads(done.stdout).get("workers", []))


def test_stages_overlap(serve, source):
    """While a function is at a sample, native stages before and after it go on with others."""
    recipe = (
        mr.Recipe(source)
        .decode_image("image")
        .map(f"{FUNCTIONS}:gate", input=["label"])
        .resize("image", [8, 8])
        .partition(samples=8, target_bytes=400)
    )
    flags = ("--python", "2", "--metrics", "127.0.0.1:0")  # one may be at the second partition before the first is done
    with serve(*flags) as (endpoint, marks, ready), opened(recipe, endpoint, 4) as loader:
        batches = iter(loader)
        assert [int(s) for s in next(batches).meta.samples] == [0, 1, 2, 3]  # after the function
        wait_until((marks / "at-8").exists)

        def read() -> float:
            with urllib.request.urlopen(f"http://{ready['metrics']}/metrics") as page:
                return float(re.search(r"(?m)^millrace_worker_samples_total (\S+)", page.read().decode())[1])

        wait_until(lambda: read() >= 24)  # before the function: a third partition, while it waits at the second
        assert not (marks / "at-9").exists()
        assert [int(s) for s in next(batches).meta.samples] == [4, 5, 6, 7]
        (marks / "open").touch()
        assert len(list(batches)) == 12


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_processes_end_with_their_worker(serve, source, end):
    recipe = mr.Recipe(source).map(f"{FUNCTIONS}:gate", input=["label"]).partition(samples=8)
    with serve("--python", "1", end=-end if end == signal.SIGKILL else 0) as (endpoint, marks, ready):
        loader = opened(recipe, endpoint)
        next(iter(loader))
        wait_until((marks / "at-8").exists)  # and there it stays
        assert len(children_of(marks)) == 1
        os.kill(ready["pid"], end)
        wait_until(lambda: children_of(marks) == [])
        with pytest.raises(mr.MillraceError):
            list(loader)
        loader.close()


SCRIPT = """
    import millrace as mr
    offset = 1000

    class Doubled:
        def __init__(self, by):
            self.by = by
        def __call__(self, row):
            return {{"label": int(row["label"]) * self.by}}

    def added(n):
        return lambda row: {{"label": row["label"] + n + offset}}

    recipe = (
        mr.Recipe({source!r}, {{"label": "cls"}})
        .map(Doubled, args={{"by": 2}}, output={{"label": "int64"}})
        .map(added(5))
        .filter(lambda row: row["label"] % 4 == 1, version="b")
    )
    print(recipe)
    try:
        recipe.to_yaml()
    except mr.InvalidError as error:
        print(error)
    loader = mr.DataLoader(recipe, batch_size=4)
    for batch in loader:
        print(*batch["label"][batch.meta.valid].tolist(), flush=True)
"""


def test_functions_of_a_script_are_shipped(script, source):
    refused, *lines = script.run(SCRIPT.format(source=source)).splitlines()[1:]
    assert refused == (
        "recipe: operator 1: __main__:Doubled cannot be written down, only shipped: "
        "move it to a module that can be imported, and it goes by its name"
    )
    labels = [int(n) for line in lines for n in line.split()]
    want = [s * 13 % 100 * 2 + 1005 for s in range(SAMPLES)]
    assert labels == [n for n in want if n % 4 == 1]
    assert script.left() == []


def test_functions_of_rank_0_are_used(serve, source):
    with serve(allow="shipped") as (endpoint, _, _):
        results: list = [None, None]

        def run(rank: int) -> None:
            recipe = mr.Recipe(source, {"label": "cls"}).map(lambda row: {"label": b"%d" % rank})
            with opened(recipe, endpoint, job="both", rank=rank, world_size=2) as loader:
                batches = iter(loader)
                results[rank] = next(batches)["label"].tolist()

        # Rank 1 comes first.
        second = threading.Thread(target=run, args=(1,))
        second.start()
        time.sleep(0)
        wait_until(lambda: "both" in jobs(endpoint))
        run(0)
        second.join()
        assert results == [[0] * 4, [0] * 4]


def jobs(endpoint: str) -> list[str]:
    binary = os.environ.get("MILLRACE_BIN") or str(ROOT / "bin" / "millrace")
    done = subprocess.run([binary, "status", "--json", "--endpoint", endpoint], capture_output=True, check=True)
    return [job["name"] for job in json.loads(done.stdout).get("jobs", [])]


def test_the_example_of_the_docs(script, source, tmp_path):
    """The recipe and the functions of docs/recipes.md, as they stand."""
    text = (ROOT / "docs/recipes.md").read_text()
    text = text[text.index("## Your own functions") : text.index("## Virtual operators")]
    (recipe,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    functions, builder = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    builder = builder.replace("data/demo/train-{000000..000009}.tar", source)
    (tmp_path / "mypackage").mkdir()
    (tmp_path / "mypackage/captions.py").write_text(functions)
    (tmp_path / "recipe.yaml").write_text(recipe.replace("data/demo/train-{000000..000009}.tar", source))
    (tmp_path / "builder.py").write_text(builder)
    output = script.run(
        f"""
        import sys, runpy
        sys.path.insert(0, {str(tmp_path)!r})
        import millrace as mr
        built = runpy.run_path({str(tmp_path / "builder.py")!r}, run_name="__main__")["recipe"]
        for recipe in {str(tmp_path / "recipe.yaml")!r}, built:
            for batch in mr.DataLoader(recipe, batch_size=4):
                print(*batch["caption"], sep="\\n")
        """
    )
    lines = output.splitlines()
    assert len(lines) > SAMPLES  # the second recipe keeps all, the first most
    assert all(re.fullmatch(r"class \d+", line) for line in lines)


@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_a_sample_at_which_a_function_raises_is_skipped_or_replaced(serve, source, policy):
    recipe = mr.Recipe(source).decode_image().map(f"{FUNCTIONS}:picky").resize("image", [8, 8])
    runs = []
    for slots in ("1", "3"):
        with serve("--python", slots) as (endpoint, _, _), opened(recipe, endpoint, on_error=policy) as loader:
            runs.append([int(s) for b in loader for s, v in zip(b.meta.samples, b.meta.valid, strict=True) if v])
    assert runs[0] == runs[1]
    rest = [s for s in range(SAMPLES) if s != 30]
    assert (runs[0] if policy == "skip" else runs[0][:30] + runs[0][31:]) == rest
