"""A client stores random blocks, and another one reads them back."""

import asyncio
import ctypes
import os
import sys

import infinistore

BLOCK, COUNT = 64 << 10, 16


def connect():
    config = infinistore.ClientConfig(
        host_addr="127.0.0.1",
        service_port=int(sys.argv[1]),
        connection_type=infinistore.TYPE_RDMA,
        link_type=infinistore.LINK_ETHERNET,
        dev_name="soft0",
        log_level="info",
    )
    connection = infinistore.InfinityConnection(config)
    connection.connect()
    return connection


blocks = [(f"key{number}", number * BLOCK) for number in range(COUNT)]
data = os.urandom(BLOCK * COUNT)

writer = connect()
source = ctypes.create_string_buffer(data, len(data))
writer.register_mr(ctypes.addressof(source), len(data))
asyncio.run(writer.rdma_write_cache_async(blocks, BLOCK, ctypes.addressof(source)))
writer.close()

reader = connect()
target = ctypes.create_string_buffer(len(data))
reader.register_mr(ctypes.addressof(target), len(data))
asyncio.run(reader.rdma_read_cache_async(blocks, BLOCK, ctypes.addressof(target)))
assert target.raw == data, "the blocks arrived wrong"
assert reader.check_exist("key3") and not reader.check_exist("another")
reader.close()
print(f"{COUNT} blocks of {BLOCK} bytes stored and read")
