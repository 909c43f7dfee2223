"""pythae, the library that people would use otherwise: its VAE and IWAE with the layers of the MNIST VAE."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from benchmarks.speed.clock import Action
from benchmarks.speed.rows import COLUMNS, batches

INSTALL = "pip install '.[bench]'"
HIDDEN, LATENT = 500, 100


def missing() -> str | None:
    """Why there is nothing to compare with, and what to do; None where pythae is at hand."""
    try:
        import pythae.models  # noqa: F401
    except ImportError as error:
        return f"pythae is not installed ({error}): {INSTALL}"
    return None


def _layers(*sizes: int) -> nn.Sequential:
    """Linear, batch norm and ReLU, one after the other."""
    return nn.Sequential(
        *(part for i, o in pairwise(sizes) for part in (nn.Linear(i, o), nn.BatchNorm1d(o), nn.ReLU()))
    )


def model(K: int) -> Any:
    """pythae's VAE at K = 1, else its IWAE, 784-500-500-100 and back, with a Bernoulli likelihood."""
    from pythae.models import IWAE, VAE, IWAEConfig, VAEConfig
    from pythae.models.base.base_utils import ModelOutput
    from pythae.models.nn import BaseDecoder, BaseEncoder

    class Encoder(BaseEncoder):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = _layers(COLUMNS, HIDDEN, HIDDEN)
            self.mean, self.log_variance = nn.Linear(HIDDEN, LATENT), nn.Linear(HIDDEN, LATENT)

        def forward(self, x: Tensor) -> Any:
            h = self.layers(x)
            return ModelOutput(embedding=self.mean(h), log_covariance=self.log_variance(h))

    class Decoder(BaseDecoder):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(_layers(LATENT, HIDDEN, HIDDEN), nn.Linear(HIDDEN, COLUMNS), nn.Sigmoid())

        def forward(self, z: Tensor) -> Any:
            return ModelOutput(reconstruction=self.layers(z))

    settings = {"input_dim": (COLUMNS,), "latent_dim": LATENT, "reconstruction_loss": "bce"}
    if K == 1:
        return VAE(VAEConfig(**settings), encoder=Encoder(), decoder=Decoder())
    return IWAE(IWAEConfig(**settings, number_samples=K), encoder=Encoder(), decoder=Decoder())


class Peer(NamedTuple):
    """A model of pythae and how it trains."""

    model: Any
    step: Action


def peer(rows: Float[Tensor, "N D"], K: int, batch: int) -> Peer:
    """A training step as pythae's trainer does it, without its data loader and its callbacks."""
    vae = model(K)
    optimizer = torch.optim.Adam(vae.parameters(), lr=1e-3)
    feed = batches(rows, batch)

    def step() -> None:
        grey = next(feed)
        x = (torch.rand(grey.shape) < grey).float()
        output = vae({"data": x})
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()

    return Peer(vae, step)
