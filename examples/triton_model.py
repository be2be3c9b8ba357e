"""A model of Triton's Python backend that gives hints: `MODELS/summed/1/model.py`.

    gpreempt run -p 12 tritonserver --model-repository MODELS

with `MODELS/summed/config.pbtxt`:

    backend: "python"
    max_batch_size: 8
    input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ]
    output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
    instance_group [ { kind: KIND_GPU count: 1 } ]

Each instance of such a model is a process of its own, `triton_python_backend_stub`, which
inherits the priority of the server. Models of the other backends (TensorRT, ONNX, PyTorch)
compute inside `tritonserver`: they share one queue and one priority, and Triton orders them
itself.
"""

from __future__ import annotations

from typing import Any

import triton_python_backend_utils as pb_utils

import gpreempt


class TritonPythonModel:
    """Sums each row of a batch."""

    def initialize(self, args: dict[str, str]) -> None:
        """Called once, when the instance starts."""
        pb_utils.Logger.log_info(gpreempt.status())

    # Triton hands over the requests that wait; the hint covers all of them.
    @gpreempt.critical(deadline_us=10_000)
    def execute(self, requests: list[Any]) -> list[Any]:
        """Answers a list of requests, each with its own response."""
        responses = []
        for request in requests:
            rows = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            # A model on the GPU stands here.
            sums = rows.sum(axis=-1, keepdims=True)
            output = pb_utils.Tensor("OUT", sums)
            responses.append(pb_utils.InferenceResponse(output_tensors=[output]))
        return responses
