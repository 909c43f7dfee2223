"""The learning rate and the epsilon of every step."""

from __future__ import annotations

import math

from memgen.recipes.settings import Training


def learning_rate(settings: Training, t: int, steps: int) -> float:
    """The rate of step t (from 0) with `steps` steps per epoch.

    >>> [learning_rate(Training(schedule="step", decay=0.5, decay_after=2), t, 1) for t in range(4)]
    [0.001, 0.001, 0.0005, 0.00025]
    """
    rate = settings.rate * min(1.0, (t + 1) / max(1, settings.warmup_steps))
    if settings.schedule == "cosine":
        progress = t / (settings.epochs * steps)
        return rate * (settings.final_rate + (1 - settings.final_rate) * (1 + math.cos(math.pi * progress)) / 2)
    epoch = t // steps
    if settings.schedule == "step" and epoch >= settings.decay_after:
        return rate * settings.decay ** (1 + (epoch - settings.decay_after) // settings.decay_every)
    return rate


def adam_epsilon(settings: Training, t: int) -> float:
    """torch divides by sqrt(v / (1 - beta2^t)) + epsilon. The paper's program added its epsilon to sqrt(v) itself,
    which is the same as torch's with epsilon / sqrt(1 - beta2^t).
    """
    if settings.optimizer == "adamw":
        return settings.epsilon
    return settings.epsilon / math.sqrt(1 - settings.beta2 ** (t + 1))
