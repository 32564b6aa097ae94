"""Trains a small transformer, sharded with FSDP2 over gloo, so that a kill and a resize change nothing.

Runs under torchrun, or with one process per task under srun. Nothing of the supervisor is imported; what
it tells a training is in a few environment variables, and without them this is an ordinary script:

* SUPERVISE_RESUME_FROM: checkpoint to load; absent or empty means step 0
* SUPERVISE_ATTEMPT: number of this attempt, part of the name of every checkpoint
* SUPERVISE_PROGRESS: JSON-lines file that gets one line a step
* SUPERVISE_STOP_FILE: when it exists, save and leave with exit code 85
* SUPERVISE_GLOBAL_BATCH: samples a step at every world size

Three rules make the loss curve independent of the world size: a sample is a function of (seed, step,
index) alone, the global batch is fixed and each rank takes its slice, and every rank divides by the
global batch, so gradients are added over ranks and never averaged over unequal parts.
"""

import argparse
import json
import math
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

VOCABULARY, LENGTH = 64, 32
STOPPED_ON_REQUEST = 85
"""Exit code: saved and left as asked, not finished."""


# --- model ---------------------------------------------------------------------------------------------


class Block(nn.Module):
    """A pre-norm transformer block with causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, length, width) to the same shape."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        result: torch.Tensor = x + self.mlp(self.norm2(x))
        return result


class Transformer(nn.Module):
    """A language model over a small vocabulary."""

    def __init__(self, width: int, layers: int, heads: int = 4) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of predicting each next token of (batch, length + 1)."""
        x = self.token(tokens[:, :-1]) + self.position.weight
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        loss: torch.Tensor = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        return loss


def build(args: argparse.Namespace) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return the sharded model and its optimizer; the same weights at every world size."""
    torch.manual_seed(args.seed)
    # In double precision the order in which ranks add their gradients does not show in the loss.
    model = Transformer(args.width, args.layers).double()
    for block in (*model.blocks, model):
        fully_shard(block)
        # Every rank already divides by the global batch: add gradients, do not average them.
        block.set_gradient_divide_factor(1.0)
        block.set_force_sum_reduction_for_comms(True)
    return model, torch.optim.AdamW(model.parameters(), lr=3e-3)


# --- data ----------------------------------------------------------------------------------------------


def make_batch(seed: int, step: int, indices: range) -> torch.Tensor:
    """Return samples (len(indices), length + 1) of one step: arithmetic sequences, some tokens replaced."""
    rows = []
    for index in indices:
        chance = torch.Generator().manual_seed((seed * 1_000_003 + step) * 100_003 + index)
        start, stride = torch.randint(0, VOCABULARY, (2,), generator=chance).tolist()
        row = (start + (stride % 7) * torch.arange(LENGTH + 1)) % VOCABULARY
        noise = torch.rand(LENGTH + 1, generator=chance) < 0.05
        rows.append(torch.where(noise, torch.randint(0, VOCABULARY, (LENGTH + 1,), generator=chance), row))
    return torch.stack(rows)


def slice_of_rank(global_batch: int, rank: int, world: int) -> range:
    """Return this rank's sample indices; sizes differ by at most one where the batch does not divide."""
    return range(global_batch * rank // world, global_batch * (rank + 1) // world)


# --- checkpoint ----------------------------------------------------------------------------------------


def collect(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, loss: float) -> dict[str, Any]:
    """Return everything that a training is made of; the step is also the position in the data."""
    model_state, optimizer_state = get_state_dict(model, optimizer)
    progress = {"step": torch.tensor(step), "loss": torch.tensor(loss, dtype=torch.float64)}
    return {"model": model_state, "optimizer": optimizer_state, "progress": progress}


def save(directory: Path, attempt: int, step: int, state: dict[str, Any]) -> None:
    """Save after ``step`` steps into a fresh directory; ``.metadata``, written last, is the commit point."""
    target = directory / f"step-{step:08d}-a{attempt}"
    # Saving over an older checkpoint can leave half of each behind one commit point, and that loads.
    taken = [target.exists() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(taken)
    if taken[0]:
        raise FileExistsError(f"{target} exists and is never written twice: give a new SUPERVISE_ATTEMPT")
    dcp.save(state, checkpoint_id=target)


def load(source: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[int, float]:
    """Load at any world size; return the steps done and the last loss, (0, nan) with no source."""
    if not source:
        return 0, math.nan
    state = collect(model, optimizer, 0, math.nan)
    dcp.load(state, checkpoint_id=source)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return int(state["progress"]["step"]), float(state["progress"]["loss"])


# --- loop ----------------------------------------------------------------------------------------------


class StopRequest:
    """Says, the same on every rank, whether the training was asked to stop."""

    def __init__(self) -> None:
        self.signalled = False
        self.file = os.environ.get("SUPERVISE_STOP_FILE", "")
        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.signalled = True

    def local(self) -> bool:
        """Return whether this rank was asked."""
        return self.signalled or bool(self.file and Path(self.file).exists())


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, args: argparse.Namespace, step: int
) -> torch.Tensor:
    """Do one step over the global batch and return this rank's part of its mean loss."""
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = slice_of_rank(args.global_batch, rank, world)
    # Collectives must match, so every rank runs as many micro-batches as the one with the most samples.
    num_micro = max(1, math.ceil(math.ceil(args.global_batch / world) / args.micro_batch))
    total = torch.zeros((), dtype=torch.float64)
    for number in range(num_micro):
        part = mine[number * args.micro_batch : (number + 1) * args.micro_batch]
        # A rank that has run out of samples takes part with one sample of weight zero.
        batch = make_batch(args.seed, step, part or range(1))
        loss = model(batch) * (len(part) / args.global_batch)
        loss.backward()
        total += loss.detach()
    optimizer.step()
    optimizer.zero_grad()
    return total


def train(args: argparse.Namespace) -> int:
    """Train to ``args.steps`` and return the exit code."""
    rank, world = dist.get_rank(), dist.get_world_size()
    attempt = int(os.environ.get("SUPERVISE_ATTEMPT") or 0)
    progress = os.environ.get("SUPERVISE_PROGRESS", "")
    stop = StopRequest()
    model, optimizer = build(args)
    first, loss = load(os.environ.get("SUPERVISE_RESUME_FROM", ""), model, optimizer)
    step = first
    while step < args.steps:
        part = train_step(model, optimizer, args, step)
        # One sum tells every rank the loss and whether any of them was asked to stop.
        sums = torch.stack([part, torch.tensor(float(stop.local()), dtype=torch.float64)])
        dist.all_reduce(sums)
        step, loss, asked = step + 1, float(sums[0]), bool(sums[1] > 0)
        if rank == 0:
            print(f"step={step} loss={loss:.12g} world={world}", flush=True)
            if progress:
                line = {"step": step, "loss": loss, "time": time.time(), "world": world}
                with Path(progress).open("a", encoding="ascii") as file:
                    file.write(json.dumps(line) + "\n")
        if step % args.checkpoint_every == 0 or step == args.steps or asked:
            save(args.checkpoint_dir, attempt, step, collect(model, optimizer, step, loss))
        if asked and step < args.steps:
            if rank == 0:
                print(f"stopped early at step {step}", flush=True)
            return STOPPED_ON_REQUEST
        time.sleep(args.step_time)
    if rank == 0:
        done = {
            "final_step": step,
            "final_loss": loss,
            "first_step": first,
            "steps": args.steps,
            "world": world,
        }
        temporary = args.done_file.with_name(args.done_file.name + ".tmp")
        temporary.write_text(json.dumps(done) + "\n", encoding="ascii")
        temporary.replace(args.done_file)
    return 0


def parse_arguments() -> argparse.Namespace:
    """Return the command line's arguments."""
    parser = argparse.ArgumentParser(description="Train a small transformer that survives kills and resizes.")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--checkpoint-dir", type=Path, default=Path("checkpoints"))
    parser.add_argument("--checkpoint-every", type=int, default=10)
    parser.add_argument("--done-file", type=Path, help="default: done.json beside the checkpoint directory")
    batch = int(os.environ.get("SUPERVISE_GLOBAL_BATCH") or 24)
    parser.add_argument("--global-batch", type=int, default=batch)
    parser.add_argument("--micro-batch", type=int, default=8, help="most samples at a time on one rank")
    parser.add_argument("--step-time", type=float, default=0.0, help="seconds to sleep after each step")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--layers", type=int, default=2)
    args = parser.parse_args()
    args.done_file = args.done_file or args.checkpoint_dir.parent / "done.json"
    return args


def main() -> int:
    """Join the other ranks, train, and leave together."""
    args = parse_arguments()
    environ = os.environ
    for name, slurm in (("RANK", "SLURM_PROCID"), ("WORLD_SIZE", "SLURM_NTASKS")):
        environ.setdefault(name, environ.get(slurm, "0" if name == "RANK" else "1"))
    environ.setdefault("MASTER_ADDR", "127.0.0.1")
    environ.setdefault("MASTER_PORT", "29400")
    # A dead peer must end the others, not hang them: gloo sees a closed connection at once, and a lost
    # node only by this timeout.
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    code = train(args)
    dist.barrier()
    dist.destroy_process_group()
    return code


if __name__ == "__main__":
    exit_code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything is saved and the ranks have said goodbye. Interpreter teardown after gloo and FSDP aborts
    # now and then ("terminate called without an active exception", torch 2.13); Slurm would say FAILED.
    os._exit(exit_code)
