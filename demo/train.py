#!/usr/bin/env python3
"""Train a small convolutional network under FSDP2 on images that Millrace reads, decodes, augments and batches.

    python -m torch.distributed.run --standalone --nproc-per-node 2 demo/train.py

Runs on CPU ranks over gloo. FSDP2 wants contiguous parameters, so only activations are channels-last, which is faster
on a CPU. GroupNorm, unlike BatchNorm, has no running statistics that would have to be kept equal on all ranks.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import millrace as mr
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

ROOT = Path(__file__).resolve().parent.parent


# The data.


def shards(data: str, split: str) -> list[str] | None:
    """The shards of a split in a directory that is laid out as the demo's; None for any other source."""
    found = sorted(str(path) for path in Path(data).glob(f"{split}-*.tar")) if Path(data).is_dir() else []
    return found or None


def sources(args: argparse.Namespace) -> tuple[list[str], list[str] | None]:
    """What to train on and what to validate on, if anything."""
    train = shards(args.data, "train") or [args.data]
    if args.val is not None:
        return train, shards(args.val, "val") or [args.val]
    return train, shards(args.data, "val")


def train_recipe(source: list[str], size: int) -> mr.Recipe:
    """A random part of each image, perhaps mirrored."""
    return (
        mr.Recipe(source)
        .decode_image("image")
        .random_resized_crop("image", size=size, scale=(0.25, 1.0))
        .random_horizontal_flip("image", p=0.5)
    )


def val_recipe(source: list[str], size: int) -> mr.Recipe:
    """The middle of each image."""
    return mr.Recipe(source).decode_image("image").resize("image", round(1.15 * size)).center_crop("image", size)


def count_classes(source: list[str], mesh: DeviceMesh) -> int:
    """One more than the greatest label: an epoch that reads and decodes nothing but labels."""
    greatest = torch.zeros((), dtype=torch.int64)
    with mr.DataLoader(mr.Recipe(source).select("label"), batch_size=1024, device_mesh=mesh, epochs=1) as loader:
        for batch in loader:
            greatest = torch.maximum(greatest, batch["label"].max())
    dist.all_reduce(greatest, dist.ReduceOp.MAX)
    return int(greatest) + 1


# The model.


class Net(nn.Module):
    """Four strided convolutions and a linear layer; takes uint8 images as they come."""

    def __init__(self, classes: int, width: int = 16) -> None:
        """Make it; every rank makes the same one from the same seed."""
        super().__init__()
        channels = [3, width, 2 * width, 4 * width, 8 * width]
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(i, o, 3, stride=2, padding=1, bias=False), nn.GroupNorm(8, o), nn.ReLU(True))
            for i, o in itertools.pairwise(channels)
        )
        self.head = nn.Linear(channels[-1], classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Logits of each image."""
        x = image.to(torch.float32, memory_format=torch.channels_last).sub_(118.0).div_(60.0)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


def sharded(model: Net, mesh: DeviceMesh) -> Net:
    """The model with the parameters of each block, and the rest, spread over the ranks."""
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


# What a run shows.


class Screen:
    """What rank 0 prints: a line that is rewritten in place on a terminal, and lines that stay."""

    def __init__(self) -> None:
        """Only rank 0 says anything."""
        self.speaks = dist.get_rank() == 0
        self.live = self.speaks and sys.stdout.isatty()
        self.shown = 0.0

    def rewrite(self, text: str) -> None:
        """Show a line for now, ten times a second at most."""
        now = time.monotonic()
        if self.live and now - self.shown > 0.1:
            self.shown = now
            text = text[: shutil.get_terminal_size().columns - 1]  # a line that wraps cannot be rewritten
            print(f"\r{text}\x1b[K", end="", flush=True)

    def say(self, text: str) -> None:
        """Show a line for good."""
        if self.speaks:
            print(f"\r{text}\x1b[K" if self.live else text, flush=True)


@dataclass
class Meter:
    """What one rank did in one epoch."""

    loss: float = 0.0  # sum over rows
    correct: int = 0
    rows: int = 0
    seconds: float = 0.0
    waited: float = 0.0  # of these, in waiting for the next batch
    timed_rows: int = 0  # rows that were trained on in these seconds

    def line(self, ranks: int) -> str:
        """Rate of all ranks, and the share of step time that went to waiting."""
        seconds = max(self.seconds, 1e-9)
        rate, share = ranks * self.timed_rows / seconds, 100 * self.waited / seconds
        return f"{rate:,.0f} images/s   waiting for data {share:.1f} % of step time"


@dataclass
class Epoch:
    """What all ranks together did in one epoch."""

    loss: float
    accuracy: float  # on validation data, or while training where there is none


def elapsed() -> float:
    """Seconds since the kernel started this process. Its parent may be a shell that has also run set-up."""
    start = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(start) / os.sysconf("SC_CLK_TCK")


def minutes(seconds: float) -> str:
    """2 m 41 s."""
    whole = round(seconds)
    return f"{whole // 60} m {whole % 60:02d} s" if whole >= 60 else f"{whole} s"


# A run, and its checkpoints.


@dataclass
class Run:
    """All that training changes. A checkpoint holds it, so that a run goes on at the very batch where it was saved."""

    model: Net
    optimizer: torch.optim.Optimizer
    loader: mr.DataLoader
    step: int = 0
    epoch: int = 0
    meter: Meter = field(default_factory=Meter)
    history: list[Epoch] = field(default_factory=list)

    def state_dict(self) -> dict[str, Any]:
        """The state in the form that torch.distributed.checkpoint saves: tensors in shards, the rest once."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        progress = {
            "step": self.step,
            "epoch": self.epoch,
            "sums": summed(self.meter),
            "history": [[e.loss, e.accuracy] for e in self.history],
        }
        return {
            "model": model,
            "optimizer": optimizer,
            "loader": self.loader.state_dict(),
            "progress": json.dumps(progress),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to where a state was saved, by however many ranks."""
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        self.loader.load_state_dict(state["loader"])
        progress = json.loads(state["progress"])
        self.step, self.epoch = progress["step"], progress["epoch"]
        self.history = [Epoch(*e) for e in progress["history"]]
        # The sums are those of all ranks: one of them carries on with them.
        loss, correct, rows = progress["sums"] if dist.get_rank() == 0 else (0.0, 0, 0)
        self.meter = Meter(loss=loss, correct=int(correct), rows=int(rows))


def summed(meter: Meter) -> list[float]:
    """Loss, hits and rows of all ranks."""
    sums = torch.tensor([meter.loss, meter.correct, meter.rows], dtype=torch.float64)
    dist.all_reduce(sums)
    return sums.tolist()


class Checkpoints:
    """A directory of checkpoints, of which the newest whole one counts and the one before is kept."""

    def __init__(self, directory: Path | None, every: int) -> None:
        """Save every so many steps, and at the end of each epoch; without a directory, never."""
        self.directory, self.every = directory, every

    def whole(self) -> list[Path]:
        """Checkpoints that were written to their end, oldest first: torch writes .metadata last."""
        if self.directory is None or not self.directory.is_dir():
            return []
        return sorted(path.parent for path in self.directory.glob("step-*/.metadata"))

    def due(self, step: int) -> bool:
        """Whether to save in mid-epoch."""
        return self.directory is not None and self.every > 0 and step % self.every == 0

    def save(self, run: Run) -> None:
        """Save the run; all ranks together."""
        if self.directory is None:
            return
        dcp.save({"run": run.state_dict()}, checkpoint_id=self.directory / f"step-{run.step:08d}")
        if dist.get_rank() == 0:
            for old in self.whole()[:-2]:
                shutil.rmtree(old, ignore_errors=True)
        dist.barrier()

    def load(self, run: Run) -> Path | None:
        """Load the newest checkpoint into the run, if there is one."""
        whole = self.whole()
        if not whole:
            return None
        state = {"run": run.state_dict()}
        dcp.load(state, checkpoint_id=whole[-1])
        run.load_state_dict(state["run"])
        return whole[-1]


# Training.


def learning_rate(step: int, total: int, peak: float) -> float:
    """A short rise and a long fall, from the step alone, so that nothing of it needs to be saved."""
    at = min(1.0, (step + 1) / max(1, total))
    return peak * (at / 0.2 if at < 0.2 else 0.5 * (1 + math.cos(math.pi * (at - 0.2) / 0.8)) + 1e-3)


def train_epoch(run: Run, args: argparse.Namespace, saves: Checkpoints, screen: Screen) -> None:
    """The rest of an epoch: all of it, or what a checkpoint left."""
    steps, ranks = len(run.loader), dist.get_world_size()
    meter = run.meter
    run.model.train()
    # The clock starts with the first batch: until then there is no step to speak of, and the wait is the set-up's.
    batches = iter(run.loader)
    asked: float | None = None
    for batch in batches:
        now = time.monotonic()
        if asked is None:
            start, rows_before = now, meter.rows
        else:
            meter.waited += now - asked
        for group in run.optimizer.param_groups:
            group["lr"] = learning_rate(run.step, args.epochs * steps, args.lr)
        logits = run.model(batch["image"])
        loss = F.cross_entropy(logits, batch["label"])
        loss.backward()
        run.optimizer.step()
        run.optimizer.zero_grad()
        rows = len(batch["label"])
        meter.loss += rows * loss.item()
        meter.correct += int((logits.argmax(1) == batch["label"]).sum())
        meter.rows += rows
        run.step += 1
        if saves.due(run.step) and batch.meta.step + 1 < steps:  # an epoch's end is saved after its validation
            saves.save(run)
        asked = time.monotonic()
        meter.seconds, meter.timed_rows = asked - start, meter.rows - rows_before
        screen.rewrite(
            f"epoch {run.epoch + 1}  step {batch.meta.step + 1}/{steps}  "
            f"loss {meter.loss / meter.rows:.2f}   {meter.line(ranks)}"
        )


@torch.no_grad()
def validate(model: Net, loader: mr.DataLoader, epoch: int) -> float:
    """Accuracy over every validation image, each counted once: rows that only fill the last batch are masked."""
    model.eval()
    loader.set_epoch(epoch)
    counts = torch.zeros(2, dtype=torch.int64)
    for batch in loader:
        hit = (model(batch["image"]).argmax(1) == batch["label"]) & batch.meta.valid
        counts += torch.stack([hit.sum(), batch.meta.valid.sum()])
    dist.all_reduce(counts)
    return counts[0].item() / max(1, counts[1].item())


def train(
    run: Run, validation: mr.DataLoader | None, args: argparse.Namespace, saves: Checkpoints, screen: Screen
) -> None:
    """All epochs that are left."""
    ranks = dist.get_world_size()
    while run.epoch < args.epochs:
        run.loader.set_epoch(run.epoch)
        train_epoch(run, args, saves, screen)
        loss, correct, rows = summed(run.meter)
        # The rank that waited longest is the one that counts.
        waited = torch.tensor(run.meter.waited)
        dist.all_reduce(waited, dist.ReduceOp.MAX)
        run.meter.waited = waited.item()
        name, accuracy = "train acc", correct / max(1, rows)
        if validation is not None:
            name, accuracy = "val acc", validate(run.model, validation, run.epoch)
        run.epoch += 1
        run.history.append(Epoch(loss / max(1, rows), accuracy))
        screen.say(
            f"epoch {run.epoch}  loss {run.history[-1].loss:.2f}  {name} {accuracy:.2f}   {run.meter.line(ranks)}"
        )
        run.meter = Meter()
        saves.save(run)


def verdict(history: list[Epoch]) -> str | None:
    """What went wrong with learning, if anything; nobody can tell from a single epoch."""
    if len(history) < 2:
        return None
    first, last = history[0], history[-1]
    if not last.loss < 0.9 * first.loss:
        return f"the loss did not fall: {first.loss:.2f} in the first epoch, {last.loss:.2f} in the last"
    if not last.accuracy > first.accuracy:
        return f"the accuracy did not rise: {first.accuracy:.2f} after the first epoch, {last.accuracy:.2f} in the end"
    return None


# The program.


def positive(text: str) -> int:
    """An option that counts something."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--data", default=str(ROOT / "data" / "demo"), help="shards, or a folder with a directory for each class")
    add("--val", help="the same for validation; by default val-*.tar in the folder --data, if there are any")
    add("--classes", type=positive, help="number of classes; by default all labels are read to find out")
    add("--epochs", type=positive, default=8)
    add("--batch-size", type=positive, default=64, help="rows of an optimizer step, over all ranks")
    add("--size", type=positive, default=96, help="pixels of the side of an image")
    add("--lr", type=float, default=4e-3, help="peak learning rate")
    add("--seed", type=int, default=0)
    add("--checkpoint", type=Path, help="folder to save to, and to go on from if it has a checkpoint")
    add("--checkpoint-every", type=int, default=20, help="steps; an epoch's end is saved in any case")
    add("--no-check", action="store_true", help="do not fail when nothing was learned")
    return parser.parse_args()


def work(args: argparse.Namespace) -> str | None:
    """Train; returns what to complain about."""
    ranks = dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp_shard",))
    screen = Screen()
    source, val_source = sources(args)
    loader = mr.DataLoader(
        train_recipe(source, args.size),
        global_batch_size=args.batch_size,
        shuffle=True,
        seed=args.seed,
        tail="drop",
        device_mesh=mesh,
    )
    validation = None
    if val_source is not None:
        validation = mr.DataLoader(
            val_recipe(val_source, args.size), global_batch_size=2 * args.batch_size, tail="pad", device_mesh=mesh
        )
    classes = args.classes or count_classes(source, mesh)
    torch.manual_seed(args.seed)
    model = sharded(Net(classes), mesh)
    run = Run(model, torch.optim.AdamW(model.parameters(), args.lr, weight_decay=0.02), loader)
    saves = Checkpoints(args.checkpoint, args.checkpoint_every)
    loaded = saves.load(run)
    if loaded is not None and run.epoch < args.epochs:
        screen.say(f"going on from {loaded}: epoch {run.epoch + 1}, step {run.step}")
    elif loaded is not None:
        screen.say(f"nothing left to do: {loaded} is the end of epoch {run.epoch}; raise --epochs to go on")
    count = f"{ranks} rank{'s' * (ranks > 1)}; {len(loader)} steps of {args.batch_size} images an epoch"
    screen.say(f"{count}, {classes} classes; ready after {minutes(elapsed())}")
    train(run, validation, args, saves, screen)
    setup = float(os.environ.get("MILLRACE_SETUP_SECONDS", "0") or 0)
    total = f"done in {minutes(setup + elapsed())}"
    screen.say(f"{total} (set-up {minutes(setup)})" if setup else total)
    for used in filter(None, (loader, validation)):
        used.close()
    return None if args.no_check else verdict(run.history)


def main() -> int:
    """Join the other ranks, train, leave."""
    args = options()
    if "RANK" not in os.environ:
        sys.exit("error: run it with: python -m torch.distributed.run --standalone --nproc-per-node 2 demo/train.py")
    # Ranks that share cores must not all start a thread on each of them.
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // int(os.environ["LOCAL_WORLD_SIZE"])))
    dist.init_process_group("gloo")
    try:
        complaint = work(args)
        rank = dist.get_rank()
    except mr.MillraceError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        return 130
    dist.destroy_process_group()
    if complaint is not None and rank == 0:
        print(f"error: {complaint}", file=sys.stderr, flush=True)
    return 1 if complaint is not None else 0


if __name__ == "__main__":
    sys.exit(main())
