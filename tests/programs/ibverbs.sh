#!/bin/bash
# rdma4py, a Python binding (package `ibverbs`): its own tests.
. "$(dirname "$0")/common.sh"
pypi ibverbs==2026.10.22 pytest==8.4.2 numpy
pypi_source ibverbs 2026.10.22

# Its tests for GPUs skip themselves.
tests() { soft 200 "$python" -m pytest -q -rs -p no:cacheprovider "ibverbs-2026.10.22/tests"; }
check tests tests
version "passed $(grep -oE '[0-9]+ passed.*' "$work/tests.log" | tail -n 1)"
