"""A training step of the MNIST MEM-VAE (batch 100), memgen beside a hand-written PyTorch loop of the same model.

    python benchmarks/step.py [--samples 1] [--repeats 15] [--steps 40]

The loop is what one writes without a library: nn.Linear, nn.BatchNorm1d, the memory and the mlp composition as the
paper's formulas, the local reconstruction, torch's Adam (its default and its fused one) and gradient clipping. All get
the same rows, binarise them and draw their own noise. Blocks of steps alternate in one process; the figures are the
medians of the blocks and of the ratios of neighbouring blocks.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memgen.model import Batch, count_parameters
from memgen.recipe import Recipe, build
from memgen.train import begin, train_step

B = 100


class HandMemory(nn.Module):
    """One layer of P with memory, as in the paper."""

    def __init__(self, inputs: int, units: int, slots: int) -> None:
        super().__init__()
        self.g = nn.Linear(inputs, units)
        self.bn = nn.BatchNorm1d(units)
        self.A = nn.Linear(units, slots)
        self.M = nn.Parameter(0.01 * torch.randn(units, slots))
        self.a1, self.a2, self.a4, self.b1, self.c1, self.c2, self.c4 = (
            nn.Parameter(torch.zeros(units)) for _ in range(7)
        )
        self.a3, self.c3 = nn.Parameter(torch.ones(units)), nn.Parameter(torch.ones(units))

    def forward(self, h: Tensor) -> Tensor:
        h_g = torch.relu(self.bn(self.g(h)))
        h_a = torch.sigmoid(self.A(h_g))
        h_m = F.linear(h_a, self.M)
        a = self.a1 + self.a2 * h_m + self.a3 * h_g + self.a4 * h_g * h_m
        c = torch.sigmoid(self.c1 + self.c2 * h_m + self.c3 * h_g + self.c4 * h_g * h_m)
        return torch.relu(a + self.b1 * c)


class HandModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q1, self.q2 = nn.Linear(784, 500), nn.Linear(500, 500)
        self.n1, self.n2 = nn.BatchNorm1d(500), nn.BatchNorm1d(500)
        self.mean, self.log_variance = nn.Linear(500, 100), nn.Linear(500, 100)
        self.p2, self.p1 = HandMemory(100, 500, 30), HandMemory(500, 500, 70)
        self.out = nn.Linear(500, 784)

    def loss(self, x: Tensor, K: int) -> Tensor:
        u1 = self.q1(x)
        h = torch.relu(self.n1(u1))
        u2 = self.q2(h)
        h = torch.relu(self.n2(u2))
        mean, log_variance = self.mean(h), self.log_variance(h)
        eps = torch.randn(K, len(x), 100)
        z = mean + torch.exp(0.5 * log_variance) * eps
        log_q = -0.5 * (math.log(2 * math.pi) + log_variance + eps**2).sum(-1)
        log_p_z = -0.5 * (math.log(2 * math.pi) + z**2).sum(-1)
        h2 = self.p2(z.flatten(0, 1))
        h1 = self.p1(h2)
        logits = self.out(h1).view(K, len(x), 784)
        target = x.expand_as(logits)
        log_p_x = -F.binary_cross_entropy_with_logits(logits, target, reduction="none").sum(-1)
        log_w = log_p_x + log_p_z - log_q
        bound = (torch.logsumexp(log_w, 0) - math.log(K)).mean()
        return -bound + 0.1 * (lre(h1, u1, K) + lre(h2, u2, K))


def lre(p: Tensor, q: Tensor, K: int) -> Tensor:
    p = F.batch_norm(p, None, None, training=True).view(K, -1, p.shape[-1]).mean(0)
    return F.mse_loss(p, F.batch_norm(q, None, None, training=True))


def by_hand(rows: Tensor, K: int, fused: bool) -> Callable[[], object]:
    torch.manual_seed(0)
    model = HandModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-4, fused=fused)

    def step() -> None:
        x = (torch.rand(rows.shape) < rows).float()
        optimizer.zero_grad()
        model.loss(x, K).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        nn.utils.clip_grad_value_(model.parameters(), 1.0)
        optimizer.step()

    assert count_parameters(model) == 1_550_084
    return step


def by_memgen(rows: Tensor, K: int) -> Callable[[], object]:
    recipe = Recipe.named("mnist-mem-vae").override([f"objective.samples={K}"])
    state = begin(build(recipe), recipe)
    state.model.train()

    def step() -> None:
        x = (torch.rand(rows.shape, generator=state.generator) < rows).float()
        train_step(state, Batch(x), recipe, 600)
        state.step += 1

    return step


def seconds_per_step(step: Callable[[], object], steps: int) -> float:
    started = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - started) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    rows = torch.rand(B, 784, generator=torch.Generator().manual_seed(0)) ** 4
    K = options.samples
    loops = {"torch's default Adam": by_hand(rows, K, False), "torch's fused Adam": by_hand(rows, K, True)}
    steps = [by_memgen(rows, K), *loops.values()]
    for step in steps:
        seconds_per_step(step, 10)
    blocks = [[seconds_per_step(step, options.steps) for step in steps] for _ in range(options.repeats)]
    print(f"K = {K}, batch {B}, {torch.get_num_threads()} threads, median of {options.repeats} blocks")
    print(f"memgen: {1e3 * statistics.median(block[0] for block in blocks):.2f} ms a step")
    for i, name in enumerate(loops, 1):
        ratios = sorted(block[0] / block[i] for block in blocks)
        loop = 1e3 * statistics.median(block[i] for block in blocks)
        spread = f"{ratios[0]:.3f} to {ratios[-1]:.3f}"
        print(f"by hand with {name}: {loop:.2f} ms; memgen / by hand: {statistics.median(ratios):.3f} ({spread})")


if __name__ == "__main__":
    main()
