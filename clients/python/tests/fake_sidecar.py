"""A sidecar for tests: it really speaks the session protocol, over rows that it makes up.

Row r of an epoch is sample permutation(seed, epoch)[r]; its image is a function of (sample, seed, epoch).
The source of the recipe says what the dataset is and what goes wrong with it: ``fake://rows=100&bad=17&columns=image,text``.

Run as a program it stands in for ``millrace local``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import threading
import time
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

import pyarrow as pa
from pyarrow import flight

from millrace._wire import Header, pack_header

IMAGE = (2, 3)
DEFAULT_COLUMNS = "image,label"


class Refused(Exception):
    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{text} [kind={kind}]")


@dataclass
class Job:
    name: str
    request: dict
    options: dict
    ranks: dict = field(default_factory=dict)
    asked: dict = field(default_factory=dict)
    generation: int = 0

    @property
    def rows(self) -> int:
        return int(self.options.get("rows", "20"))


@dataclass
class Member:
    session: str
    job: Job
    rank: int
    world: int
    where: tuple | None = None
    opens: int = 0


def cursor_of(job: Job, epoch: int, step: int, row: int) -> str:
    return f"fake1.{job.options['source'].encode().hex()}.{job.request['settings']['seed']}.{epoch}.{step}.{row}"


def order(seed: int, epoch: int, rows: int) -> list[int]:
    samples = list(range(rows))
    random.Random(seed * 1_000_003 + epoch).shuffle(samples)
    return samples


class FakeSidecar(flight.FlightServerBase):
    """Acks are obeyed: it never sends more than prefetch batches beyond what is acknowledged."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.lock = threading.Condition()
        self.jobs: dict[str, Job] = {}
        self.members: dict[str, Member] = {}
        self.log: list[str] = []
        self.acks: list[int] = []
        self.most_ahead = 0
        self.opened: list[dict] = []
        self.count = 0
        self.hold = threading.Event()
        self.hold.set()
        self.ring = 0  # version of the ring protocol that is offered

    # Actions.

    def list_actions(self, context):
        return [("millrace.open", ""), ("millrace.close", ""), ("millrace.stop", ""), ("millrace.status", "")]

    def do_action(self, context, action):
        body = json.loads(action.body.to_pybytes() or b"{}")
        with self.lock:
            self.log.append(action.type)
            try:
                answer = getattr(self, action.type.removeprefix("millrace."))(body)
            except Refused as error:
                raise flight.FlightServerError(str(error)) from None
        return [json.dumps(answer).encode()]

    def open(self, body: dict) -> dict:
        self.opened.append(body)
        assert set(body) == {
            "version", "job", "recipe", "settings", "rank", "world_size", "cursor", "continue_on_mismatch", "attempt",
        }  # fmt: skip
        settings = body["settings"]
        recipe = json.loads(body["recipe"]) if body["recipe"].startswith("{") else {"source": body["recipe"].split()[1]}
        options = dict(parse_qsl(recipe["source"].removeprefix("fake://"))) | {"source": recipe["source"]}
        if "missing" in options:
            raise Refused("not_found", f"no samples matched {recipe['source']}")
        if "slow_open" in options:
            self.hold.wait()
        for entry in recipe.get("operators", []):
            if next(iter(entry)) == "resise":
                raise Refused("invalid", 'recipe: operator 1: unknown operator "resise"; did you mean "resize"?')
        world = body["world_size"]
        if settings["global_batch"] % (world * settings["accumulation"]):
            raise Refused("invalid", f"global batch {settings['global_batch']} is not divisible by {world}")
        start = self.start(body, options)
        job = self.jobs.get(body["job"])
        if job is None or not job.ranks:
            job = self.jobs[body["job"]] = Job(body["job"], body, options, generation=job.generation if job else 0)
        elif job.request["settings"] != settings or job.request["recipe"] != body["recipe"]:
            raise Refused("conflict", f'rank {body["rank"]} joined job "{job.name}" with other settings')
        self.count += 1
        member = Member(f"s-{self.count}", job, body["rank"], world)
        job.ranks[body["rank"]] = member
        self.members[member.session] = member
        batch = settings["global_batch"]
        steps = job.rows // batch if settings["tail"] == "drop" else -(-job.rows // batch)
        unknown = "unknown" in options
        return {
            "session": member.session, "job": job.name, "rows": -1 if unknown else job.rows,
            "steps": -1 if unknown else steps, "batch_rows": batch // world // settings["accumulation"], "samples": job.rows,
            "start": start, "order_digest": "0" * 32, "pixels_digest": "0" * 32, "manifest": "0" * 32,
            "columns": [
                {"name": "image", "dtype": "uint8", "shape": list(IMAGE)}, {"name": "label", "dtype": "int64", "shape": []},
                {"name": "half", "dtype": "bfloat16", "shape": [2]},
            ],
            "ring": self.ring,
        }  # fmt: skip

    def start(self, body: dict, options: dict) -> dict:
        if not body["cursor"]:
            return {"epoch": 0, "step": 0, "row": 0}
        parts = body["cursor"].split(".")
        if parts[0] != "fake1" or len(parts) != 6:
            raise Refused("invalid", f"{body['cursor']!r} is no cursor")
        if parts[1] != options["source"].encode().hex() and not body["continue_on_mismatch"]:
            raise Refused("conflict", 'state is of another recipe; set on_mismatch="continue" to go on at the same position.')
        epoch, step, row = map(int, parts[3:])
        return {"epoch": epoch, "step": step, "row": row}

    def close(self, body: dict) -> dict:
        member = self.members.pop(body["session"], None)
        if member is not None:
            member.job.ranks.pop(member.rank, None)
            member.job.asked.pop(member.rank, None)
            self.lock.notify_all()
        return {}

    def stop(self, body: dict) -> dict:
        self.jobs.pop(body["job"], None)
        return {}

    def status(self, body: dict) -> dict:
        jobs = []
        for job in self.jobs.values():
            waiting = ""
            if len(job.asked) < job.request["world_size"]:
                missing = sorted(set(range(job.request["world_size"])) - set(job.asked))
                waiting = f"ranks {missing} have not joined"
            elif "stall" in job.options:
                waiting = "rank 0 has waited for partition 3/1041: worker w7 reads s3://bucket/train-000417.tar"
            jobs.append({"name": job.name, "state": "running", "waiting": waiting})
        return {"version": "fake", "jobs": jobs}

    # Streams.

    def do_get(self, context, ticket):
        # Enough of DoGet for a plain reader: everything at once.
        member, where = self.find(json.loads(ticket.ticket))
        schema = self.schema(member.job)
        return flight.GeneratorStream(schema, ((b, pack_header(h)) for b, h in self.batches(member, where, schema)))

    def do_exchange(self, context, descriptor, reader, writer):
        try:
            self.exchange(context, json.loads(descriptor.command), reader, writer)
        except Refused as error:
            raise flight.FlightServerError(str(error)) from None

    def find(self, command: dict):
        assert set(command) == {"session", "epoch", "step", "row"}, command
        with self.lock:
            member = self.members.get(command["session"])
            if member is None:
                raise Refused("not_found", f"no session {command['session']}")
        return member, (command["epoch"], command["step"], command["row"])

    def rendezvous(self, context, member: Member, where: tuple) -> None:
        job = member.job
        with self.lock:
            self.log.append(f"read {member.rank} {where}")
            carries_on = member.where == where
            job.asked[member.rank] = where
            self.lock.notify_all()
            if carries_on:
                return
            while len(job.asked) < member.world:
                if context.is_cancelled():
                    job.asked.pop(member.rank, None)
                    raise Refused("canceled", "gone")
                self.lock.wait(0.02)
            if len(set(job.asked.values())) > 1:
                text = ", ".join(f"rank {r} at {w}" for r, w in sorted(job.asked.items()))
                raise Refused("conflict", f"the ranks ask for different positions: {text}")

    def exchange(self, context, command: dict, reader, writer) -> None:
        member, where = self.find(command)
        if "refuse_read" in member.job.options:
            raise Refused("unavailable", "the sidecar is shutting down")
        self.rendezvous(context, member, where)
        schema = self.schema(member.job)
        writer.begin(schema)
        prefetch = max(1, member.job.request["settings"]["prefetch"])
        sent = acked = 0
        refused = None
        try:
            for batch, header in self.batches(member, where, schema):
                while sent - acked >= prefetch:
                    if (acked := self.acknowledged(reader)) < 0:
                        return
                if header == "stall":
                    while not context.is_cancelled():
                        if self.hold.wait(0.02) and "release" in member.job.options:
                            break
                    continue
                writer.write_with_metadata(batch, pack_header(header))
                sent += 1
                self.most_ahead = max(self.most_ahead, sent - acked)
                if header.last_part:
                    member.where = tuple(header.next)
        except Refused as error:
            refused = error
        # A call that ended here could make the client's next acknowledgement fail, and lose it what it has not read.
        while 0 <= acked < sent:
            acked = self.acknowledged(reader)
        if refused is not None:
            raise refused

    def acknowledged(self, reader) -> int:
        try:
            message = reader.read_chunk()
        except (StopIteration, flight.FlightError, pa.ArrowException):
            return -1
        assert message.data is None
        self.acks.append(int.from_bytes(message.app_metadata.to_pybytes(), "little"))
        return self.acks[-1]

    def schema(self, job: Job) -> pa.Schema:
        kinds = {
            "image": pa.fixed_shape_tensor(pa.uint8(), IMAGE),
            "label": pa.int64(),
            "half": pa.fixed_shape_tensor(pa.uint16(), (2,)),
            "text": pa.string(),
            "raw": pa.binary(),
            "flag": pa.bool_(),
            "mask": pa.fixed_shape_tensor(pa.bool_(), (3,)),
            "score": pa.float32(),
            "ragged": pa.struct([("data", pa.list_(pa.uint8())), ("shape", pa.list_(pa.int32(), 2))]),
            "none": pa.int64(),
        }
        names = job.options.get("columns", DEFAULT_COLUMNS).split(",")
        columns = [(name, kinds[name]) for name in names]
        return pa.schema([*columns, ("__key__", pa.string()), ("__sample__", pa.int64()), ("__valid__", pa.bool_())])

    def batches(self, member: Member, where: tuple, schema: pa.Schema):
        job, (epoch, step, row) = member.job, where
        settings = job.request["settings"]
        size, parts = settings["global_batch"], settings["accumulation"]
        samples = order(settings["seed"], epoch, job.rows)
        sequence = 0
        while row < job.rows:
            rest = samples[row : row + size]
            if len(rest) < size and settings["tail"] == "drop":
                return
            chosen = [(rest[i % len(rest)], i < len(rest)) for i in range(size)]
            after = row + len(rest)
            last = after >= job.rows or (settings["tail"] == "drop" and after + size > job.rows)
            part_rows = size // parts
            for part in range(parts):
                mine = part_rows // member.world
                begin = part * part_rows + member.rank * mine
                rows = chosen[begin : begin + mine]
                done = part == parts - 1
                if str(step) == job.options.get("bad"):
                    raise Refused("bad_data", "sample fake://train.tar!n01_10026.jpg (offset 12, 98 bytes): truncated JPEG")
                if str(step) == job.options.get("stall") and part == 0:
                    yield None, "stall"
                if str(step) == job.options.get("cut") and part == 0:
                    return
                following = (epoch + 1, 0, 0) if last else (epoch, step + 1, after)
                cursor = cursor_of(job, *following) if done else ""
                header = Header(
                    last and done, done, part, epoch, step, after, job.generation, len(rows),
                    sum(v for _, v in rows), sequence + (str(step) == job.options.get("jump")), cursor,
                )  # fmt: skip
                yield self.record_batch(schema, rows, settings["seed"], epoch), header
                sequence += 1
            row, step = after, step + 1

    def record_batch(self, schema: pa.Schema, rows, seed: int, epoch: int) -> pa.RecordBatch:
        numbers = [s for s, _ in rows]
        columns = []
        for f in schema:
            columns.append(self.column(f, numbers, [v for _, v in rows], seed, epoch))
        return pa.record_batch(columns, schema=schema)

    def column(self, f: pa.Field, numbers: list[int], valid: list[bool], seed: int, epoch: int) -> pa.Array:
        if f.name == "image":
            size = IMAGE[0] * IMAGE[1]
            pixels = [(s * 7 + seed * 3 + epoch * 11 + i) % 256 for s in numbers for i in range(size)]
            return tensors(f.type, pa.array(pixels, pa.uint8()), size)
        if f.name == "half":
            return tensors(f.type, pa.array([0x3F80 + s for s in numbers for _ in range(2)], pa.uint16()), 2)
        if f.name == "mask":
            return tensors(f.type, pa.array([(s >> i) & 1 == 1 for s in numbers for i in range(3)]), 3)
        if f.name == "ragged":
            return pa.array([{"data": [s % 256] * (s % 3 * 2), "shape": [s % 3, 2]} for s in numbers], f.type)
        make = {
            "label": lambda s: s % 10,
            "text": lambda s: f"caption {s}",
            "raw": lambda s: bytes([s % 256]),
            "flag": lambda s: s % 2 == 0,
            "score": lambda s: s / 2,
            "none": lambda s: None,
            "__key__": lambda s: f"train.tar!{s:05d}",
            "__sample__": lambda s: s,
        }.get(f.name)
        return pa.array(valid) if make is None else pa.array([make(s) for s in numbers], f.type)


def tensors(kind, values: pa.Array, size: int) -> pa.Array:
    return pa.ExtensionArray.from_storage(kind, pa.FixedSizeListArray.from_arrays(values, size))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["local"])
    parser.add_argument("--socket", required=True)
    parser.add_argument("--watch-stdin", action="store_true")
    parser.add_argument("--idle-exit", default="")
    options = parser.parse_args()
    if os.environ.get("FAKE_FAILS"):
        sys.exit("error: " + os.environ["FAKE_FAILS"])
    if os.path.exists(options.socket):
        os.unlink(options.socket)
    server = FakeSidecar(f"grpc+unix://{options.socket}")
    if os.environ.get("FAKE_RING"):
        sys.modules["fake_sidecar"] = sys.modules["__main__"]
        from fake_ring import FakeRing

        server.ring, rings = 1, FakeRing(server, options.socket)
    print(json.dumps({"ready": True, "socket": options.socket, "pid": os.getpid()}), flush=True)
    if options.watch_stdin:
        sys.stdin.read()
    else:
        idle = float(options.idle_exit.removesuffix("s"))
        last = time.monotonic()
        while time.monotonic() - last < min(idle, 1.0):
            time.sleep(0.05)
            if server.members:
                last = time.monotonic()
    os.unlink(options.socket)
    if server.ring:
        rings.close()
        os.unlink(options.socket + ".ring")
    os._exit(0)


if __name__ == "__main__":
    main()
