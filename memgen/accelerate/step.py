"""Compiled plans of training steps: the supported models, the compilation and the execution of a plan."""

from __future__ import annotations

from itertools import product
from operator import attrgetter, is_
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook as has_global_hooks

from memgen.accelerate.decoding import linear_fits, recall_fits, sizes_chain
from memgen.accelerate.library import serves
from memgen.accelerate.program import Program, blas
from memgen.accelerate.rows import gradient_of_rows
from memgen.accelerate.worker import Worker
from memgen.core.layers import BatchNorm, Dense, MemoryLayer
from memgen.core.likelihoods import Bernoulli, Gaussian
from memgen.core.model import DGM, Batch, Conditional, Levels
from memgen.recipes.settings import Objective

SERVED = [*product(("plain", "stl"), ("elbo", "importance")), *product(("dreg", "single"), ("importance",))]
"""Supported pairs of estimator and bound."""
ENTRIES = 4096
"""Minimum number of rows of P times units per thread for a plan with several workers. With fewer, threads wait too
long for each other, and a single plan uses all threads only in large calls. Measured on two threads, relative to the
time of a single plan: 0.5 to 0.74 for 100 rows of 200 units (benchmarks/pieces.py), on MNIST 0.62
for 100 rows of 125 and 0.70 for 20 of 500, on the digits 1.04 for 100 of 100 and 1.1 for 100 of 50."""


def supports(model: DGM, objective: Objective) -> bool:
    """Whether a step of this model can be planned: exactly the classes of the paper's models, one level, batch norm,
    dense attention or product keys, Bernoulli or Gaussian rows, matching sizes, no shared parameters,
    float32 on the CPU, and a torch whose matrix products are MKL's.
    """
    return (
        (objective.estimator, objective.bound) in SERVED
        and type(model) is DGM
        and not model.mask
        and len(model.q) == 1
        and all(type(net) is Conditional and not net.skip for net in (*model.q, *model.p))
        and all(type(layer) is Dense and _layer_fits(layer) for layer in cast(Conditional, model.q[0]).layers)
        and all(map(_layer_fits, cast(Conditional, model.p[0]).layers))
        and type(model.q[0].head) is Gaussian
        and not model.q[0].head.floor
        and type(model.p[0].head) in (Bernoulli, Gaussian)
        and all(map(linear_fits, (*model.q[0].head.children(), *cast(nn.Module, model.p[0].head).children())))
        and _sizes_fit(model, objective)
        and len([*model.named_parameters(remove_duplicate=False)]) == len([*model.parameters()])
        and serves(*model.parameters())
        and blas()
    )


def _sizes_fit(model: DGM, objective: Objective) -> bool:
    """Whether all sizes match as torch requires, because C would read beyond a matrix without an error."""
    q, p = cast(Conditional, model.q[0]), cast(Conditional, model.p[0])
    up = [cast(Dense, layer) for layer in q.layers]
    down = [cast(Dense, layer.dense if isinstance(layer, MemoryLayer) else layer) for layer in p.layers]
    x, z = model.likelihood.columns, model.latent[0]
    compared = any(map(any, objective.local_reconstruction))
    return (
        sizes_chain([dense.linear for dense in up], x, [*q.head.children()], z)
        and sizes_chain([dense.linear for dense in down], z, [*p.head.children()], x)
        and all(len(dense.norm.gamma) == dense.linear.out_features for dense in (*up, *down))  # type: ignore[arg-type]
        and (not compared or [d.linear.out_features for d in up] == [d.linear.out_features for d in down[::-1]])
    )


def _layer_fits(layer: nn.Module) -> bool:
    if type(layer) is MemoryLayer:
        return type(layer.dense) is Dense and _layer_fits(layer.dense) and recall_fits(layer)
    return type(layer) is Dense and type(layer.norm) is BatchNorm and linear_fits(layer.linear)


def _hooked(parameter: nn.Parameter) -> bool:
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def _watched(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


class PlannedStep:
    """The compiled plan of a step of a model, with K samples of each of B rows.

    A call writes the gradients of the loss to the parameters and returns loss and bound. Dense gradients have the same
    addresses after every call.
    """

    def __init__(self, model: DGM, objective: Objective, K: int, B: int, *, backward: bool = True) -> None:
        """Without `backward` there is no backward pass, and only `weigh` can be called."""
        if not supports(model, objective):
            raise ValueError("a step of this model cannot be planned")
        self.objective, self.K, self.backward = objective, K, backward
        self.q, self.p, self.latent = model.q[0], model.p[0], model.latent[0]
        self.x = next(model.parameters()).new_empty(B, model.likelihood.columns)
        self.bounds = self.x.new_empty(B)
        self.modules, self.places = [*model.modules()], [(p, p.data_ptr()) for p in model.parameters()]
        widest = max([net.linear.out_features for net in self.modules if isinstance(net, Dense)], default=0)
        threads = torch.get_num_threads()
        self.compile(threads if min(B, K * B * widest // ENTRIES) >= threads else 1)

    def compile(self, workers: int) -> None:
        """Build one plan per worker; the rows are divided among the workers."""
        self.count, self.reports = workers, self.x.new_empty(workers, 2)
        """reports: the contribution of each worker to loss and bound."""
        pool: list[Tensor] = []
        self.workers = [Worker(self, index, pool) for index in range(workers)]
        whole = {id(parameter): [place] for parameter, place in self.workers[0].places}
        for worker in self.workers:
            for parameter, place in worker.gradients:
                whole.setdefault(id(parameter), []).append(place)
        self.gradients = [(parameter, whole[id(parameter)]) for parameter, _ in self.places if id(parameter) in whole]
        self.reads = self.workers[0].reads
        by_index = {id(M) for M, *_ in self.reads}
        dense = [parameter for parameter, _ in self.places if id(parameter) not in by_index]
        self.dense, self.stay = dense, [whole.get(id(parameter), [None])[0] for parameter in dense]
        """Parameters and the buffers of their gradients; None for a bias that batch norm subtracts."""
        several = [places for _, places in self.gradients if workers > 1 and len(places) == workers]
        self.program = Program([worker.plan for worker in self.workers], several)

    @property
    def moved(self) -> bool:
        """Whether the address of a parameter has changed."""
        return any(parameter.data_ptr() != place for parameter, place in self.places)

    @property
    def alone(self) -> bool:
        """Whether all modules train, and neither hooks nor a transform of torch need autograd."""
        return (
            all(parameter.requires_grad and not _hooked(parameter) for parameter, _ in self.places)
            and all(module.training and not _watched(module) for module in self.modules)
            and not has_global_hooks()
            and not torch.is_autocast_enabled("cpu")
            and not torch.compiler.is_compiling()
        )

    @torch.no_grad()
    def __call__(self, batch: Batch, noise: Levels) -> Float[Tensor, "2"]:
        for M, *_ in self.reads:
            M.grad = None  # frees up to hundreds of MB at K = 50 before the next one is allocated
        self._run(batch, noise)
        if not all(map(is_, map(attrgetter("grad"), self.dense), self.stay)):
            for parameter, gradient in zip(self.dense, self.stay, strict=True):
                parameter.grad = gradient
        for M, index, h_a, to_m in self.reads:
            M.grad = gradient_of_rows(M, index, h_a, to_m)
        return self.reports.sum(0)

    def weigh(self, batch: Batch, noise: Levels) -> tuple[Float[Tensor, "K B"], Float[Tensor, ""]]:
        """The normalised weights of all samples, and the mean of the bound."""
        self._run(batch, noise)
        weights = [worker.weights.view(self.K, -1) for worker in self.workers]
        return torch.cat(weights, 1) * -len(self.x), self.reports.sum(0)[1]

    def _run(self, batch: Batch, noise: Levels) -> None:
        expected = (self.K, len(self.x), self.latent)
        if batch.x.shape != self.x.shape or noise[0].shape != expected:
            raise ValueError(f"this step is for rows {tuple(self.x.shape)} and noise {expected}")
        self._take(batch, noise)
        if not self.program.run():  # fewer threads are available than planned
            self.compile(1)
            self._take(batch, noise)
            self.program.run()

    def _take(self, batch: Batch, noise: Levels) -> None:
        self.x.copy_(batch.x)
        for worker in self.workers:
            worker.take(noise[0])
