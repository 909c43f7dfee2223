"""What a measurement is, and how much is measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from benchmarks.speed.clock import Spread


@dataclass(frozen=True)
class Record:
    """One row of a table.

    >>> Record("steps", "memgen", {"K": 1}, "step", Spread(0.02, 0.01, 0.03), limit=0.005).fraction
    0.25
    """

    section: str
    name: str
    settings: dict[str, Any]
    """What was run: recipe, K, batch, ..."""
    per: str
    """What the seconds are of: a step, an image, a command."""
    seconds: Spread | None = None
    """None where nothing was measured; the note says why."""
    limit: float | None = None
    """The least seconds: those of the matrix products alone, each as fast as it ever was."""
    paired: float | None = None
    """The median over the rounds of what the products took at best in a round, as a part of what the row took in it."""
    flops: float | None = None
    """Floating point operations of these products."""
    peak_bytes: int | None = None
    """The most memory that the process held."""
    faster_than: dict[str, float] = field(default_factory=dict)
    """name -> how many times faster than that one, in neighbouring blocks."""
    note: str = ""
    products: tuple[Any, ...] = ()
    """The matrix products (limit.Product) that the limit consists of, ..."""
    passes: float = 1.0
    """... how many times each of them is done, ..."""
    whole: tuple[Any, ...] = ()
    """... and those of the full backward, with which a step that leaves some out is compared in its note."""

    @property
    def fraction(self) -> float | None:
        """Of the limit: 1 would be a step that consists of its matrix products and of nothing else."""
        return None if self.limit is None or self.seconds is None else self.limit / self.seconds.median

    @property
    def best_fraction(self) -> float | None:
        """The same for the fastest block: where others slow a machine down, the limit too was met at its best."""
        return None if self.limit is None or self.seconds is None else self.limit / self.seconds.low

    @property
    def gigaflops(self) -> float | None:
        """10^9 operations a second, counting the matrix products only."""
        return None if self.flops is None or self.seconds is None else self.flops / self.seconds.median / 1e9

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "section": self.section,
            "name": self.name,
            "settings": self.settings,
            "per": self.per,
            "seconds": None if self.seconds is None else self.seconds._asdict(),
            "limit": self.limit,
            "fraction": self.fraction,
            "best_fraction": self.best_fraction,
            "paired": self.paired,
            "flops": self.flops,
            "gigaflops": self.gigaflops,
            "peak_bytes": self.peak_bytes,
            "faster_than": self.faster_than,
            "note": self.note,
        }


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    repeats: int = 15
    """Rounds, with one block of every candidate in each."""
    warm: int = 30
    """Steps that every model trains before it is timed."""
    steps: int = 40
    """Steps of a block at K = 1; fewer for larger K."""
    samples: tuple[int, ...] = (1, 5, 50)
    """K of the training steps."""
    compiled: bool = True
    """Whether they are measured with torch.compile too, which takes half a minute for each of them."""
    images: int = 32
    """Images that are scored in a block."""
    evaluation_samples: int = 5000
    child_repeats: int = 7
    """Blocks of one step in a child process."""
    slots: int = 2**20
    """Points of growth up to here ..."""
    widths: tuple[int, ...] = (125, 250, 500, 1000, 2000)
    """... units of both hidden layers ..."""
    growing_samples: tuple[int, ...] = (1, 5, 50, 500)
    """... K of a training step ..."""
    batches: tuple[int, ...] = (10, 100, 1000)
    """... its rows ..."""
    growing_evaluation: tuple[int, ...] = (100, 1000, 10_000, 100_000)
    """... and K of an evaluation."""
    commands: int = 7
    """How often every command of the startup section is run."""

    def block(self, K: int) -> int:
        """Steps of a block: about as long at every K, and three at least."""
        return max(3, self.steps // K)


QUICK = Scale(
    repeats=3,
    warm=5,
    steps=5,
    samples=(1, 5),
    compiled=False,
    images=8,
    evaluation_samples=200,
    child_repeats=3,
    slots=10**4,
    widths=(250,),
    growing_samples=(5,),
    batches=(10,),
    growing_evaluation=(200,),
    commands=1,
)
"""For tests and for a first look: about a minute."""
