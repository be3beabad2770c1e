"""Two endpoints on one device write and read 1 MiB each, and send a message."""

import ctypes
import os

import dlslime

SIZE = 1 << 20
nic = dlslime.available_nic()
assert "soft0" in nic, nic
one, two = (dlslime.RDMAEndpoint("soft0", 1, "RoCE") for _ in range(2))
memory = [ctypes.create_string_buffer(os.urandom(SIZE), SIZE) for _ in range(2)]
keys = [
    end.register_memory_region("buffer", ctypes.addressof(buffer), 0, SIZE)
    for end, buffer in zip((one, two), memory)
]
info = [end.endpoint_info() for end in (one, two)]
one.connect(info[1])
two.connect(info[0])
remote = one.register_remote_memory_region("buffer", two.mr_info()["buffer"])

half = SIZE // 2
# Local and remote handles, remote and local offsets, and a length: the tuples of their examples.
future = one.write([(keys[0], remote, 0, 0, half)])
assert future.wait() == 0
assert memory[1].raw[:half] == memory[0].raw[:half], "the write arrived wrong"
assert memory[1].raw[half:] != memory[0].raw[half:]

future = one.read([(keys[0], remote, half, half, half)])
assert future.wait() == 0
assert memory[0].raw == memory[1].raw, "the read arrived wrong"
print("1 MiB written and read")
