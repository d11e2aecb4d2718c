"""The ring socket of the sidecar's double: docs/formats/ring.md from the sidecar's side."""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import struct
import threading
import zlib

import pyarrow as pa
from fake_sidecar import Refused

from millrace._wire import pack_header

HEAD = 4096
SLOT = 1 << 16


class Gone(Exception):
    """The trainer has left."""


class FakeRing:
    """Hands over what a FakeSidecar makes. ``slots`` and ``damage`` may be changed before a trainer connects."""

    def __init__(self, sidecar, path: str) -> None:
        self.sidecar = sidecar
        self.slots = 0  # prefetch + 2
        self.slot_bytes = SLOT
        self.read_only = False
        self.damage = None
        self.refusal = ""
        self.released: list[int] = []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path + ".ring")
        self.listener.listen()
        self.conns: list[socket.socket] = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                conn, _ = self.listener.accept()
            except OSError:
                return
            self.conns.append(conn)
            threading.Thread(target=self.serve, args=(conn,), daemon=True).start()

    def close(self) -> None:
        self.listener.close()
        for conn in self.conns:
            with contextlib.suppress(OSError):
                conn.shutdown(socket.SHUT_RDWR)
            conn.close()

    def serve(self, conn: socket.socket) -> None:
        with contextlib.suppress(Gone, OSError):
            Trainer(self, conn).run()
        conn.close()


class Trainer:
    def __init__(self, ring: FakeRing, conn: socket.socket) -> None:
        self.ring = ring
        self.sidecar = ring.sidecar
        self.conn = conn
        self.begun = None
        self.acked = 0
        self.stream = 0

    def is_cancelled(self) -> bool:
        """Stand in for the context of a call."""
        try:
            return self.conn.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False

    def read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.conn.recv(count - len(data))
            if not more:
                raise Gone
            data += more
        return data

    def run(self) -> None:
        magic, version, flags, _, name = struct.unpack("<8sHHI32s16x", self.read(64))
        assert (magic, version, flags) == (b"MILLRING", 1, 0)
        session = name.rstrip(b"\0").decode()
        member = self.sidecar.members.get(session)
        if member is None:
            self.end(0, f"there is no session {session} [kind=not_found]")
            return
        if self.ring.refusal:
            self.end(0, self.ring.refusal)
            return
        schema = self.sidecar.schema(member.job)
        raw = schema.serialize().to_pybytes()
        self.conn.sendall(struct.pack("<B3xIII48x", 16, len(raw), HEAD, 1) + raw)
        self.share(member)
        while True:
            while self.begun is None:
                self.handle()
            begun, self.begun = self.begun, None
            self.stream, self.acked = begun[0], 0
            try:
                self.serve(member, begun[1:], schema)
            except Refused as error:
                self.end(self.stream, str(error))

    def share(self, member) -> None:
        self.slots = self.ring.slots or member.job.request["settings"]["prefetch"] + 2
        self.free = list(range(self.slots))
        self.generations = [0] * self.slots
        fd = os.memfd_create("fake-ring")
        os.ftruncate(fd, self.slots * self.ring.slot_bytes)
        self.memory = mmap.mmap(fd, self.slots * self.ring.slot_bytes)
        message = struct.pack("<BxHIQQ40x", 17, int(self.ring.read_only), self.slots, self.ring.slot_bytes, 77)
        socket.send_fds(self.conn, [message], [fd])
        os.close(fd)

    def end(self, stream: int, text: str = "") -> None:
        self.conn.sendall(struct.pack("<B3xII52x", 19, len(text.encode()), stream) + text.encode())

    def handle(self) -> None:
        message = self.read(32)
        if message[0] == 1:
            self.begun = struct.unpack("<B3xIQQQ", message)[1:]
        elif message[0] == 2:
            _, slot, generation, arena = struct.unpack("<B3xIQQ8x", message)
            assert arena == 77
            assert slot not in self.free
            assert generation == self.generations[slot]
            self.free.append(slot)
            self.ring.released.append(slot)
        else:
            _, stream, count = struct.unpack("<B3xIQ16x", message)
            if stream == self.stream:
                self.acked = count
                self.sidecar.acks.append(count)

    def serve(self, member, where, schema) -> None:
        options = member.job.options
        if "refuse_read" in options:
            raise Refused("unavailable", "the sidecar is shutting down")
        self.sidecar.rendezvous(self, member, where)
        prefetch = max(1, member.job.request["settings"]["prefetch"])
        sent = 0
        for batch, header in self.sidecar.batches(member, where, schema):
            while sent - self.acked >= prefetch or not self.free:
                self.handle()
                if self.begun is not None:
                    return
            if header == "stall":
                while not self.is_cancelled():
                    if self.sidecar.hold.wait(0.02) and "release" in options:
                        break
                else:
                    raise Gone
                continue
            self.hand_over(batch, header)
            sent += 1
            self.sidecar.most_ahead = max(self.sidecar.most_ahead, sent - self.acked)
            if header.last_part:
                member.where = tuple(header.next)
        while self.acked < sent and self.begun is None:
            self.handle()
        self.end(self.stream)

    def hand_over(self, batch, header) -> None:
        parts = image(batch)
        total = parts[-1][0] + len(parts[-1][1])
        inline = total > self.ring.slot_bytes
        slot, generation, arena = 0xFFFFFFFF, 0, 0
        if not inline:
            slot = self.free.pop(0)
            self.generations[slot] += 1
            generation, arena = self.generations[slot], 77
        meta = pack_header(header)
        meta_padded = meta + bytes(-len(meta) % 8)
        begin = struct.pack(
            "<IHHQQQIIQ8xI", 0x4C53524D, 1, 0, arena, generation, header.sequence, len(meta), len(parts[0][1]), total, 0
        )
        head = begin + struct.pack("<I", zlib.crc32(meta_padded + parts[0][1], zlib.crc32(begin))) + meta_padded + parts[0][1]
        whole = bytearray(total)
        whole[: len(head)] = head
        for offset, data in parts[1:]:
            whole[offset : offset + len(data)] = data
        if self.ring.damage is not None:
            self.ring.damage(whole)
        message = struct.pack("<BxHIIIQQQQ16x", 18, 0, slot, self.stream, 0, generation, header.sequence, len(head), total)
        if inline:
            self.conn.sendall(message + whole)
        else:
            at = slot * self.ring.slot_bytes
            self.memory[at : at + total] = bytes(whole)
            self.conn.sendall(message)


def image(batch: pa.RecordBatch) -> list[tuple[int, bytes]]:
    """Give the table of a batch, then its buffers and where they lie."""
    numbers: list[int] = []
    parts: list[tuple[int, bytes]] = [(0, b"")]
    at = HEAD

    def add(array) -> None:
        nonlocal at
        if isinstance(array, pa.ExtensionArray):
            add(array.storage)
            return
        kind = array.type
        assert array.offset == 0
        numbers.extend((len(array), array.null_count))
        nested = pa.types.is_struct(kind) or pa.types.is_fixed_size_list(kind)
        own = 1 if nested else 2
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            own = 3
        for buffer in array.buffers()[:own]:
            if buffer is None or buffer.size == 0:
                numbers.extend((0, 0))
                continue
            parts.append((at, buffer.to_pybytes()))
            numbers.extend((at, buffer.size))
            at += (buffer.size + 63) // 64 * 64
        if pa.types.is_struct(kind):
            for i in range(kind.num_fields):
                add(array.field(i))
        elif pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
            add(array.values)

    for column in batch.columns:
        add(column)
    parts[0] = (0, struct.pack(f"<{len(numbers)}Q", *numbers))
    return parts
