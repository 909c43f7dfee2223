"""What bfloat16 products would do to log p(x), emulated on the CPU.

    python -m benchmarks.precision --rows 100

Every product of a shipped model is computed in bfloat16 (torch.autocast), everything else in float32, with the same
noise as in float32: the importance bound with K samples of the same rows, and the gradient of its mean.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

import memgen
from memgen.core.model import DGM, infer_all
from memgen.core.noise import Purpose, generator
from memgen.core.objective import importance

SAMPLES = 50


def bound_and_gradient(
    model: DGM, batch: memgen.Batch, context: AbstractContextManager[object]
) -> tuple[Tensor, Tensor]:
    """The bound of every row, and the gradient of its mean as one vector."""
    noise = model.noise(SAMPLES, len(batch), generator(0, Purpose.EVALUATION))
    with context:
        log_w = infer_all(model, batch, noise).log_w
    bound = importance(log_w.float())
    gradients = torch.autograd.grad(bound.mean(), list(model.parameters()), allow_unused=True)
    return bound.detach(), torch.cat([g.float().flatten() for g in gradients if g is not None])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="zoo:mnist-mem-vae")
    parser.add_argument("--rows", type=int, default=100)
    options = parser.parse_args(arguments)
    model = memgen.load(options.model)
    assert isinstance(model, nn.Module)
    # Rows that the model has drawn itself, so that no data are needed.
    means = memgen.sample(model, options.rows)
    batch = memgen.Batch((torch.rand(means.shape, generator=torch.Generator().manual_seed(1)) < means).float())
    bound, gradient = bound_and_gradient(model, batch, nullcontext())
    with_bf16, of_bf16 = bound_and_gradient(model, batch, torch.autocast("cpu", torch.bfloat16))
    shift = with_bf16 - bound
    error = float((of_bf16 - gradient).norm() / gradient.norm())
    print(f"{options.model}, {len(batch)} rows that it drew, K = {SAMPLES}")
    print(f"log p(x) in float32 {float(bound.mean()):.3f}; with products in bfloat16 {float(with_bf16.mean()):.3f}")
    print(f"change of a row: mean {float(shift.mean()):+.3f}, largest {float(shift.abs().max()):.3f} nats")
    print(f"gradient: relative change {error:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
