#!/bin/bash
# InfiniStore: a server, and a client that stores blocks and reads them back.
. "$(dirname "$0")/common.sh"
# Its requirements include torch, of which it needs nothing without a GPU.
pypi --no-deps infinistore==0.2.35 uvloop==0.21.0 numpy==1.26.4 fastapi==0.115.14 uvicorn==0.34.3 \
	starlette==0.46.2 pydantic==2.11.7 pydantic-core==2.33.2 annotated-types==0.7.0 \
	typing-extensions==4.14.1 typing-inspection==0.4.1 anyio==4.9.0 idna==3.10 sniffio==1.3.1 \
	click==8.2.1 h11==0.16.0

start server.log soft 100 "$python" "$here/own/infinistore_server.py" --host 127.0.0.1 --service-port 18801 \
	--manage-port 18802 --dev-name soft0 --link-type Ethernet --prealloc-size 1 --log-level info
if until_true 60 listens 18801; then
	check blocks soft 60 "$python" "$here/own/infinistore_blocks.py" 18801
else
	fail blocks 'its server does not listen' server.log
fi
