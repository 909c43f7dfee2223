"""The loop that one writes without a library, for the MNIST VAE and MEM-VAE: the eager baseline.

nn.Linear, nn.BatchNorm1d, the memory and the mlp composition as the paper's formulas, the local reconstruction where
there is memory, torch's Adam as it comes and gradient clipping.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from benchmarks.speed.clock import Action
from benchmarks.speed.rows import batches


class HandLayer(nn.Module):
    """One layer of P without memory."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.g = nn.Linear(inputs, units)
        self.bn = nn.BatchNorm1d(units)

    def forward(self, h: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows units"]:
        return torch.relu(self.bn(self.g(h)))


class HandMemory(HandLayer):
    """One layer of P with memory, as in the paper."""

    def __init__(self, inputs: int, units: int, slots: int) -> None:
        super().__init__(inputs, units)
        self.A = nn.Linear(units, slots)
        self.M = nn.Parameter(0.01 * torch.randn(units, slots))
        self.a1, self.a2, self.a4, self.b1, self.c1, self.c2, self.c4 = (
            nn.Parameter(torch.zeros(units)) for _ in range(7)
        )
        self.a3, self.c3 = nn.Parameter(torch.ones(units)), nn.Parameter(torch.ones(units))

    def forward(self, h: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows units"]:
        h_g = super().forward(h)
        h_a = torch.sigmoid(self.A(h_g))
        h_m = F.linear(h_a, self.M)
        a = self.a1 + self.a2 * h_m + self.a3 * h_g + self.a4 * h_g * h_m
        c = torch.sigmoid(self.c1 + self.c2 * h_m + self.c3 * h_g + self.c4 * h_g * h_m)
        return torch.relu(a + self.b1 * c)


class HandModel(nn.Module):
    """784-500-500-100 and back, with slots 70-30 or without memory."""

    def __init__(self, memory: bool) -> None:
        super().__init__()
        self.memory = memory
        self.q1, self.q2 = nn.Linear(784, 500), nn.Linear(500, 500)
        self.n1, self.n2 = nn.BatchNorm1d(500), nn.BatchNorm1d(500)
        self.mean, self.log_variance = nn.Linear(500, 100), nn.Linear(500, 100)
        self.p2 = HandMemory(100, 500, 30) if memory else HandLayer(100, 500)
        self.p1 = HandMemory(500, 500, 70) if memory else HandLayer(500, 500)
        self.out = nn.Linear(500, 784)

    def loss(self, x: Float[Tensor, "B D"], K: int) -> Float[Tensor, ""]:
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
        loss = -(torch.logsumexp(log_w, 0) - math.log(K)).mean()
        return loss + 0.1 * (compared(h1, u1, K) + compared(h2, u2, K)) if self.memory else loss


def compared(p: Float[Tensor, "rows units"], q: Float[Tensor, "B units"], K: int) -> Float[Tensor, ""]:
    """The local reconstruction of one layer."""
    p = F.batch_norm(p, None, None, training=True).view(K, -1, p.shape[-1]).mean(0)
    return F.mse_loss(p, F.batch_norm(q, None, None, training=True))


def loop_step(rows: Float[Tensor, "N D"], K: int, batch: int, memory: bool) -> Action:
    """A training step as a plain loop, each call with the next rows."""
    model = HandModel(memory)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-4)
    feed = batches(rows, batch)

    def step() -> None:
        grey = next(feed)
        x = (torch.rand(grey.shape) < grey).float()
        optimizer.zero_grad()
        model.loss(x, K).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        nn.utils.clip_grad_value_(model.parameters(), 1.0)
        optimizer.step()

    return step
