#!/bin/sh
# vLLM beside other work on one GPU:  vllm_serve.sh MODEL [ARGUMENTS OF vllm serve]
#
# - The API server does not use the GPU. Its children do, `VLLM::EngineCore` and, with tensor
#   parallelism, `VLLM::Worker...`: they inherit the priority. Hints in the API server
#   (gpreempt.asgi) have no effect, because hints are for the process that gives them.
# - vLLM takes 90 % of the memory unless --gpu-memory-utilization says less. The fraction is of the
#   whole memory, and what other programs use comes on top.
# - CUDA graphs stay on (no --enforce-eager): a request then has few gaps.
# - For a server that a unit or a container starts, a rule of gpreemptd finds the children:
#   [[rule]] name = "vllm", user = "inference", command = "VLLM::*", priority = 12
#
# Not tested on a GPU.
set -eu
if [ $# -eq 0 ]; then
    echo "usage: vllm_serve.sh MODEL [ARGUMENTS OF vllm serve]" >&2
    exit 2
fi
exec gpreempt run -p "${PRIORITY:-12}" \
    vllm serve "$@" --gpu-memory-utilization "${MEMORY_FRACTION:-0.5}"
