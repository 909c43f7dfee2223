"""Training on several processes: `Ranks` divides the rows of every batch among them and adds up what belongs together.

    torchrun --nproc-per-node N -m memgen train ...

All ranks draw the noise of the whole batch from the same generator, and each uses that of its own rows. A step is then
the same function of the same numbers whatever the number of ranks, up to rounding:

    loss = sum over ranks of (own rows / all rows) * (local reconstruction - mean bound of own rows)

Batch norm and the local reconstruction standardise over the rows of all ranks (core/rows.py), forward and backward. The
gradients of the ranks are added in one flat buffer, those of memories that are read by index row by row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from memgen.core.model import Batch, GenerativeModel, Levels
from memgen.errors import FailedError, MemgenError, reason
from memgen.recipes.settings import Recipe
from memgen.tasks.shards import Shard
from memgen.training.losses import step_loss

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


@dataclass
class Traffic:
    """What a rank has exchanged with the others so far."""

    sums: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Ranks:
    """The processes that train together, as one of them sees them."""

    index: int
    size: int
    group: dist.ProcessGroup
    device: torch.device
    traffic: Traffic = field(default_factory=Traffic)

    @staticmethod
    def join(store: Store, index: int, size: int, device: torch.device | str, seconds: int) -> Ranks:
        """Join the process group. A process that waits longer than `seconds` for another raises an error."""
        device = torch.device(device)
        backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
        try:
            dist.init_process_group(
                backend, store=store, rank=index, world_size=size, timeout=timedelta(seconds=seconds)
            )
        except (RuntimeError, ValueError) as error:
            raise MemgenError(
                f"rank {index} has not reached {size} ranks within {seconds} s ({reason(error)}); start all of them on "
                "machines that reach each other"
            ) from None
        assert dist.group.WORLD is not None
        return Ranks(index, size, dist.group.WORLD, device)

    @staticmethod
    def leave() -> None:
        dist.destroy_process_group()

    def __deepcopy__(self, memo: dict[int, Any]) -> Ranks:
        return self

    @property
    def writes(self) -> bool:
        """Whether this is the rank that reads and writes the run folder."""
        return self.index == 0

    @property
    def shard(self) -> Shard:
        return Shard(self.index, self.size)

    def own(self, rows: int) -> slice:
        """The rows of this rank, of a batch of `rows`."""
        part = self.shard.rows(range(rows + 1))
        return slice(part.start, part.stop)

    def total(self, x: Tensor) -> Tensor:
        """Add x over all ranks, in place. All ranks get the same bits."""
        self.traffic.sums += 1
        self.traffic.bytes += x.nbytes
        with self._together():
            dist.all_reduce(x, group=self.group)
        return x

    def any(self, true: bool) -> bool:
        """Whether it is true on any rank."""
        return bool(self.total(torch.tensor([float(true)])))

    def first(self, x: Tensor) -> Tensor:
        """Give x, in place, the values that it has on rank 0."""
        with self._together():
            dist.broadcast(x, 0, group=self.group)
        return x

    def words(self, text: str = "") -> str:
        """The text that rank 0 gives."""
        given = torch.tensor(list(text.encode()), dtype=torch.uint8)
        length = int(self.first(torch.tensor([len(given)])))
        buffer = given if self.writes else torch.empty(length, dtype=torch.uint8)
        return self.first(buffer).numpy().tobytes().decode()

    def all_words(self, text: str) -> list[str]:
        """The texts of all ranks, in order."""
        given = torch.tensor(list(text.encode()), dtype=torch.uint8)
        return [part.numpy().tobytes().decode() for part in self.gather(given)]

    def gather(self, x: Tensor) -> list[Tensor]:
        """The tensors of all ranks in order, whose lengths may differ."""
        lengths = torch.zeros(self.size, dtype=torch.int64)
        lengths[self.index] = len(x)
        longest = int(self.total(lengths).max())
        padded = torch.cat([x, x.new_zeros(longest - len(x), *x.shape[1:])])
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        with self._together():
            dist.all_gather(parts, padded, group=self.group)
        self.traffic.sums += 1
        self.traffic.bytes += self.size * padded.nbytes
        return [part[:length] for part, length in zip(parts, lengths.tolist(), strict=True)]

    def tensors(self, tensors: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """The tensors that rank 0 gives, in the memory of the CPU."""
        given = {name: value.detach().cpu().contiguous() for name, value in (tensors or {}).items()}
        forms = json.dumps({name: [str(value.dtype), list(value.shape)] for name, value in given.items()})
        for name, (dtype, shape) in json.loads(self.words(forms)).items():
            value = given[name].clone() if self.writes else torch.empty(shape, dtype=getattr(torch, dtype[6:]))
            given[name] = self.first(value)
        return given

    @contextmanager
    def _together(self) -> Iterator[None]:
        """What torch says where another rank has gone becomes one line."""
        try:
            yield
        except RuntimeError as error:
            waited = "timed out" in str(error).lower()
            what = "waited longer than --timeout for another rank" if waited else "lost another rank"
            raise FailedError(
                f"rank {self.index} of {self.size} has {what}; the last checkpoint remains: go on with --resume"
            ) from None


def align(ranks: Ranks, tensors: Sequence[Tensor]) -> None:
    """Give all ranks the bits of rank 0, if they differ: processors of several kinds may round differently, and no step
    would bring the weights together again."""
    bits = sum(int(tensor.detach().flatten().view(torch.int32).sum()) for tensor in tensors)
    if len(set(torch.cat(ranks.gather(torch.tensor([bits]))).tolist())) > 1:
        for tensor in tensors:
            ranks.first(tensor.detach())


def divided_gradients(
    ranks: Ranks, model: GenerativeModel, recipe: Recipe, batch: Batch, noise: Levels, beta: float
) -> Float[Tensor, "2"]:
    """Leave the gradients of a step on the whole batch in the parameters of every rank; returns its loss and bound."""
    own = ranks.own(len(batch))
    share = (own.stop - own.start) / len(batch)
    part = tuple(level[:, own] for level in noise)
    value, report = step_loss(model, recipe, batch.rows(own), part, beta, ranks.total)
    (share * value).backward()
    return add_gradients(ranks, model.parameters(), share * report)


@torch.no_grad()
def add_gradients(ranks: Ranks, parameters: Iterable[nn.Parameter], report: Float[Tensor, "2"]) -> Float[Tensor, "2"]:
    """Add the gradients and the report over all ranks. Which parameters have a gradient is the same on all ranks."""
    gradients = [(parameter, parameter.grad) for parameter in parameters if parameter.grad is not None]
    dense = [(parameter, gradient) for parameter, gradient in gradients if not gradient.is_sparse]
    for parameter, gradient in gradients:
        if gradient.is_sparse:
            parameter.grad = _sum_of_rows(ranks, gradient)
    flat = ranks.total(torch.cat([report, *(gradient.flatten() for _, gradient in dense)]))
    report, *parts = flat.split([2, *(gradient.numel() for _, gradient in dense)])
    for (parameter, _), part in zip(dense, parts, strict=True):
        parameter.grad = part.view_as(parameter)
    return report


def _sum_of_rows(ranks: Ranks, gradient: Tensor) -> Tensor:
    """The sum over ranks of gradients that are sparse in rows, in the order of the ranks."""
    gradient = gradient.coalesce()
    rows = torch.cat(ranks.gather(gradient.indices()[0]))
    values = torch.cat(ranks.gather(gradient.values()))
    return torch.sparse_coo_tensor(rows.unsqueeze(0), values, gradient.shape, check_invariants=False).coalesce()
