"""A second implementation of log p(x) that checks the first one. It uses NumPy, and nothing of memgen or torch.

    python -m reproduction.independent memgen/runs/zoo/mnist-mem-vae.safetensors --images 100 --samples 1000

It estimates log p(x) = log mean_k p(x, z_k) / q(z_k | x) of test images by importance sampling, for Bernoulli models
with one stochastic level and batch norm. MEMGEN_DATA names the folder that holds mnist/ and ocr_letters/.
"""

import argparse
import gzip
import os
import random
import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load_file

Array = NDArray[np.float64]
Weights = dict[str, Array]
ATTENTIONS = {
    "sigmoid": lambda a: np.exp(-np.logaddexp(0, -a)),
    "softmax": lambda a: np.exp(a - np.logaddexp.reduce(a, -1, keepdims=True)),
}


def read(file: Path) -> tuple[Weights, dict[str, str]]:
    """Weights in float64, and the settings of the recipe; of settings with the same name the first one counts."""
    with safe_open(file, framework="numpy") as opened:
        lines = re.findall(r'^(\w+) = "?([^"\n]*)', opened.metadata()["recipe"], re.MULTILINE)
    return {name: value.astype(np.float64) for name, value in load_file(file).items()}, dict(reversed(lines))


def mlp(w: Weights, name: str, h_g: Array, h_m: Array) -> Array:
    a1, a2, a3, a4, b1 = (w[f"{name}.{k}"] for k in ("a1", "a2", "a3", "a4", "b1"))
    c1, c2, c3, c4 = (w[f"{name}.c{i}"] for i in (1, 2, 3, 4))
    c: Array = ATTENTIONS["sigmoid"](c1 + c2 * h_m + c3 * h_g + c4 * h_g * h_m)
    return np.maximum(a1 + a2 * h_m + a3 * h_g + a4 * h_g * h_m + b1 * c, 0)


def linear(w: Weights, name: str, h: Array) -> Array:
    return h @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def layers(w: Weights, recipe: dict[str, str], net: str, h: Array) -> Array:
    """ReLU(BN(W h + b)), layer after layer; where a layer has a memory, its answer is composed into that."""
    for i in range(sum(key.startswith(net) and key.endswith("linear.bias") for key in w)):
        layer = f"{net}.layers.{i}"
        dense = f"{layer}.dense" if f"{layer}.memory.M" in w else layer
        gamma, beta, mean, variance = (w[f"{dense}.norm.{k}"] for k in ("gamma", "beta", "mean", "variance"))
        epsilon = float(recipe.get("norm_epsilon", "1e-5"))
        h = np.maximum(gamma * (linear(w, f"{dense}.linear", h) - mean) / np.sqrt(variance + epsilon) + beta, 0)
        if dense != layer:
            h_m = (
                ATTENTIONS[recipe.get("attention", "sigmoid")](linear(w, f"{layer}.attention.A", h))
                @ w[f"{layer}.memory.M"]
            )
            h = mlp(w, f"{layer}.composition", h, h_m) if f"{layer}.composition.a1" in w else np.maximum(h + h_m, 0)
    return h


def log_likelihood(w: Weights, recipe: dict[str, str], x: Array, noise: Array) -> Array:
    """log p(x) of every row, by standard normal noise (rows, K, d)."""
    h, log_p = layers(w, recipe, "q.0", x), []
    mean, log_variance = linear(w, "q.0.head.mean", h), linear(w, "q.0.head.log_variance", h)
    for row, mu, s, eps in zip(x, mean, log_variance, noise, strict=True):
        z = mu + np.exp(0.5 * s) * eps
        logits = linear(w, "p.0.head.logits", layers(w, recipe, "p.0", z))
        log_p_x = (row * logits - np.logaddexp(0, logits)).sum(1)
        log_w = log_p_x - 0.5 * (z**2).sum(1) + 0.5 * (eps**2 + s).sum(1)  # the log(2 pi) of p(z) and q(z|x) cancel
        log_p.append(np.logaddexp.reduce(log_w) - np.log(len(eps)))
    return np.array(log_p)


def images(data: str, folder: Path) -> Array:
    """Test images: MNIST at v/256, binarised once by RandomState(1234); or the last 10,000 of the shuffled letters."""
    if data == "mnist":
        grey = np.frombuffer(gzip.decompress((folder / "mnist/t10k-images-idx3-ubyte.gz").read_bytes())[16:], np.uint8)
        return (np.random.RandomState(1234).random_sample((10000, 784)) < grey.reshape(-1, 784) / 256).astype(float)
    rows = gzip.decompress((folder / "ocr_letters/letter.data.gz").read_bytes()).splitlines()
    draw = random.Random(12345).random
    for i in reversed(range(1, len(rows))):  # as Python 2 shuffled
        j = int(draw() * (i + 1))
        rows[i], rows[j] = rows[j], rows[i]
    return np.array([row.split(b"\t")[6:134] for row in rows[-10000:]]).astype(float)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--samples", type=int, default=1000)
    options = parser.parse_args()
    w, recipe = read(options.file)
    x = images(recipe.get("name", "mnist"), Path(os.environ["MEMGEN_DATA"]))[: options.images]
    noise = np.random.default_rng(0).standard_normal((len(x), options.samples, len(w["q.0.head.mean.bias"])))
    log_p = log_likelihood(w, recipe, x, noise)
    print(f"{log_p.mean():.4f} nats, {len(x)} images, K = {options.samples}")
