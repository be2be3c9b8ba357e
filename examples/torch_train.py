"""PyTorch training with a DataLoader and DDP, which yields to a service.

    gpreempt run -p 2 python3 examples/torch_train.py
    gpreempt run -p 2 torchrun --nproc-per-node 8 examples/torch_train.py

- Every rank has the priority of the command: ranks wait for each other in each step, so the job is
  as fast as its slowest rank, and different priorities gain nothing.
- Processes of the DataLoader inherit the priority too. They use no GPU and are never preempted; do
  not use CUDA in them.
- Never suspend one rank: the others wait for it in a collective. Nor all ranks for longer than the
  timeout of the process group (10 minutes with NCCL, 30 with Gloo, `timeout=` changes it): its
  clock runs on. A preemption lasts milliseconds and needs no change.
- For a longer pause end the job at a checkpoint; a suspended process keeps its GPU memory.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import gpreempt

WIDTH = 256


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--layers", type=int, default=4)
    arguments = parser.parse_args()
    rank, world = (int(os.environ.get(name, n)) for name, n in (("RANK", 0), ("WORLD_SIZE", 1)))
    has_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) if has_gpu else None)
    if has_gpu:
        torch.cuda.set_device(device)
        # Room for the service: both must fit into the memory of the GPU together.
        torch.cuda.set_per_process_memory_fraction(0.4, device)
    else:
        device = torch.device("cpu")
    if world > 1:
        # Longer than the longest suspension of the whole job.
        dist.init_process_group("nccl" if has_gpu else "gloo", timeout=timedelta(minutes=30))
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(arguments.layers)]
    model = torch.nn.Sequential(*layers).to(device)
    trained = DistributedDataParallel(model) if world > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = TensorDataset(torch.randn(4096, WIDTH), torch.randn(4096, WIDTH))
    sampler = DistributedSampler(rows) if world > 1 else None
    batches = DataLoader(
        rows,
        batch_size=arguments.batch,
        shuffle=sampler is None,
        sampler=sampler,
        num_workers=arguments.workers,
        pin_memory=has_gpu,
        persistent_workers=arguments.workers > 0,
    )
    begin, step, loss = time.monotonic(), 0, torch.zeros(())
    while step < arguments.steps:
        for inputs, targets in batches:
            inputs, targets = (part.to(device, non_blocking=True) for part in (inputs, targets))
            loss = torch.nn.functional.mse_loss(trained(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == arguments.steps:
                break
    told = {
        "rank": rank,
        "world": world,
        "pid": os.getpid(),
        "priority": os.environ.get("GPREEMPT_PRIORITY"),
        "loss": loss.item(),
        "steps_per_s": step / (time.monotonic() - begin),
        "status": gpreempt.status(),
    }
    # In one piece, because ranks share the output.
    os.write(1, (json.dumps(told) + "\n").encode())
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
