"""Models of every kind that the accelerated path covers."""

from __future__ import annotations

import pytest
import torch

from memgen.accelerate.program import blas
from memgen.core.model import DGM, Batch
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe

needs_kernels = pytest.mark.skipif(
    not blas(), reason="there is no C compiler here, or a torch without MKL, so autograd does all steps"
)
SMALL = ["model.hidden=[19, 13]", "model.latent=6"]
MEMORY = [*SMALL, "model.slots=[7, 4]", "objective.local_reconstruction=[0.3, 0.2]"]
KEYS = [*MEMORY, "model.slots=[25, 9]", "model.attention=product", "model.top=4"]
CASES = {
    "without memory": ["model.slots=[]", "objective.local_reconstruction=[]", *SMALL],
    "with memory": MEMORY,
    "memory in one layer": [*SMALL, "model.slots=[0, 4]", "objective.local_reconstruction=[0.3, 0]"],
    "softmax and sum": [*MEMORY, "model.attention=softmax", "model.composition=sum"],
    "stl": [*MEMORY, "objective.estimator=stl"],
    "several samples": [*MEMORY, "objective.samples=4"],
    "several samples, elbo": [*MEMORY, "objective.samples=4", "objective.bound=elbo"],
    "several samples, elbo, stl": [*MEMORY, "objective.samples=4", "objective.bound=elbo", "objective.estimator=stl"],
    "dreg": [*MEMORY, "objective.samples=4", "objective.estimator=dreg"],
    "dreg with one sample": [*MEMORY, "objective.estimator=dreg"],
    "dreg without memory": ["model.slots=[]", *SMALL, "objective.samples=3", "objective.estimator=dreg"],
    "dreg, softmax, sum, Gaussian": [
        *(*MEMORY, "model.attention=softmax", "model.composition=sum", "model.likelihood=gaussian"),
        *("objective.samples=3", "objective.estimator=dreg"),
    ],
    "Gaussian rows": [*MEMORY, "model.likelihood=gaussian"],
    "Gaussian rows with a floor": [
        *MEMORY,
        "model.likelihood=gaussian",
        "model.sigma_floor=0.7",
        "objective.samples=3",
    ],
    "one layer": ["model.hidden=[19]", "model.slots=[7]", "objective.local_reconstruction=[0.3]"],
    "a large epsilon": [*MEMORY, "model.norm_epsilon=0.5", "objective.samples=2"],
    "one slot": [*MEMORY, "model.slots=[1, 1]", "objective.samples=2"],
    "product keys": KEYS,
    "product keys, all slots": [*MEMORY, "model.slots=[4, 9]", "model.attention=product", "model.top=9"],
    "product keys, sum, several samples": [
        *(*MEMORY, "model.slots=[64, 0]", "model.attention=product", "model.top=5", "model.composition=sum"),
        "objective.samples=4",
    ],
    "product keys, dreg": [
        *(*MEMORY, "model.slots=[0, 49]", "model.attention=product", "model.top=5"),
        *("objective.samples=3", "objective.estimator=dreg"),
    ],
    "single": [*MEMORY, "objective.samples=4", "objective.estimator=single"],
    "single, product keys": [*KEYS, "objective.samples=3", "objective.estimator=single"],
    "single, Gaussian rows without memory": [
        *("model.slots=[]", *SMALL, "model.likelihood=gaussian", "objective.samples=50", "objective.estimator=single"),
    ],
    "no layers": ["model.hidden=[]", "model.slots=[]", "objective.local_reconstruction=[]"],
}
BLOCKED = [
    (name, most)
    for name, settings in CASES.items()
    for most in ((1000, 8, 3) if any("samples" in setting for setting in settings) else (1000, 3))
]
"""With the most rows of a block: all, some samples, or some rows of a sample."""


def case(settings: list[str]) -> tuple[DGM, Recipe]:
    """A model whose parameters are all away from their starting values, many of which have no gradient."""
    recipe = Recipe.named("digits-mem-vae").override(settings)
    torch.manual_seed(0)
    model = build(recipe).train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model, recipe


def rows(model: DGM, B: int = 11) -> Batch:
    return Batch(torch.rand(B, model.likelihood.columns, generator=torch.Generator().manual_seed(1)).round())
