#!/bin/bash
# DLSlime: two endpoints of one process, which write and read 1 MiB.
. "$(dirname "$0")/common.sh"
# Its requirements are those of parts that are not used here.
pypi --no-deps dlslime==0.1.23
check endpoints soft 100 "$python" "$here/own/dlslime_endpoints.py"
