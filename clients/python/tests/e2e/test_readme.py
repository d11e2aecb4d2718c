"""The example of the README runs as it stands, on two ranks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]


def test_the_example_of_the_readme_runs_on_two_ranks(binary, source, tmp_path):
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    replaced = example.replace("data/demo/train-{000000..000009}.tar", source).replace("batch_size=64", "batch_size=4")
    replaced = replaced.replace("96 * 96, 20)", "96 * 96, 100)")  # the test data has that many classes
    assert source in replaced and ", 100)" in replaced
    script = tmp_path / "train.py"
    script.write_text(replaced + "    print(len(loader), state['millrace'][:4])\n")
    env = os.environ | {"MILLRACE_BIN": binary, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--redirects", "1", "--log-dir", str(tmp_path / "logs"), str(script)]  # lines of two ranks can mix
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    # 53 samples in global batches of 8, the rest dropped.
    printed = [path.read_text().splitlines() for path in (tmp_path / "logs").rglob("stdout.log")]
    assert printed == [["6 mr1."], ["6 mr1."]]
