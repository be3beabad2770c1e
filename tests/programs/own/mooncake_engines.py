"""Two transfer engines, each a process: one writes to the other's memory and reads from it."""

import ctypes
import multiprocessing
import os

from mooncake.engine import TransferEngine

SIZE = 4 << 20


def engine(data):
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") == 0
    memory = ctypes.create_string_buffer(data, len(data))
    address = ctypes.addressof(memory)
    assert engine.register_memory(address, len(data)) == 0
    return engine, memory, address


def target(pipe):
    data = os.urandom(SIZE)
    server, memory, address = engine(data)
    pipe.send((f"127.0.0.1:{server.get_rpc_port()}", address, data))
    written = pipe.recv()
    assert memory.raw[: SIZE // 2] == written, "the write arrived wrong"
    assert memory.raw[SIZE // 2 :] == data[SIZE // 2 :]
    pipe.send("right")
    pipe.recv()


def main():
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    process = context.Process(target=target, args=(other,), daemon=True)
    process.start()
    other.close()

    data = os.urandom(SIZE)
    client, memory, address = engine(data)
    name, remote, expected = pipe.recv()
    half = SIZE // 2
    assert client.transfer_sync_write(name, address, remote, half) == 0
    pipe.send(data[:half])
    assert pipe.recv() == "right"
    assert client.transfer_sync_read(name, address + half, remote + half, half) == 0
    assert memory.raw[half:] == expected[half:], "the read arrived wrong"
    pipe.send("end")
    process.join(30)
    print(f"{SIZE} bytes written and read", flush=True)
    # The engine's threads may outlive the interpreter.
    os._exit(process.exitcode)


if __name__ == "__main__":
    main()
