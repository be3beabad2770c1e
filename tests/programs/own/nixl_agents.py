"""Two agents, each a process: one writes to the other's memory and reads from it."""

import ctypes
import multiprocessing
import os
import time

from nixl_cu12 import nixl_agent

SIZE = 4 << 20


def buffer(agent, data):
    memory = ctypes.create_string_buffer(data, len(data))
    address = ctypes.addressof(memory)
    agent.register_memory([(address, len(data), 0, "")], "DRAM")
    return memory, address


def target(pipe):
    agent = nixl_agent("target")
    data = os.urandom(SIZE)
    memory, address = buffer(agent, data)
    pipe.send((agent.get_agent_metadata(), address, data))
    written = pipe.recv()
    assert memory.raw[: SIZE // 2] == written, "the write arrived wrong"
    assert memory.raw[SIZE // 2 :] == data[SIZE // 2 :]
    deadline = time.monotonic() + 30
    while b"written" not in agent.get_new_notifs().get("initiator", []):
        assert time.monotonic() < deadline, "no notification"
    pipe.send("right")
    pipe.recv()


def transfer(agent, operation, local, remote, message=b""):
    sides = [agent.get_xfer_descs([side], "DRAM") for side in (local, remote)]
    handle = agent.initialize_xfer(operation, *sides, "target", message)
    state = agent.transfer(handle)
    deadline = time.monotonic() + 60
    while state == "PROC":
        assert time.monotonic() < deadline, "a transfer does not end"
        state = agent.check_xfer_state(handle)
    assert state == "DONE", state
    agent.release_xfer_handle(handle)


def main():
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    process = context.Process(target=target, args=(other,), daemon=True)
    process.start()
    other.close()

    agent = nixl_agent("initiator")
    print("plugin:", agent.get_plugin_list())
    data = os.urandom(SIZE)
    memory, address = buffer(agent, data)
    metadata, remote, expected = pipe.recv()
    agent.add_remote_agent(metadata)
    half = SIZE // 2
    transfer(agent, "WRITE", (address, half, 0), (remote, half, 0), b"written")
    pipe.send(data[:half])
    assert pipe.recv() == "right"
    transfer(agent, "READ", (address + half, half, 0), (remote + half, half, 0))
    assert memory.raw[half:] == expected[half:], "the read arrived wrong"
    pipe.send("end")
    process.join(30)
    assert process.exitcode == 0, process.exitcode
    print(f"{SIZE} bytes written and read")


if __name__ == "__main__":
    main()
