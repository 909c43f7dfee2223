"""Every operation of the C library, in one table: names, order and kinds of its operands.

The table makes both sides of a call. `c_source` declares the C functions, so that one which takes other operands does
not compile, and writes the wrapper by which a list of calls reaches each of them. `bind` checks the operands of a call
from Python: number, type, precision, device, memory layout and shape. Sizes are never given, they are read off the
tensors, so that a wrong operand is an error that names operation and operand, and never a read beyond a matrix.

A line is the C function's own: `name(operand: kind, ...)`. Kinds:

    float[rows, units]            a float32 matrix, row by row; also int64[...] and double[...]; float[] is one number
    out float[...]                the same, written to
    float[...]?                   the same, or None
    strided[m, k]                 a matrix of float32 whose rows, or whose columns, lie side by side
    list[9] float[units]          nine tensors; list[count] float[*sizes]: of any shapes, with one size for each
    count, flag, number, double   a whole number from 0 on, a bool, a float, a float with all its digits
    (none)                        a size that shapes contain: `rows`; or `worker`, the thread's worker

Sizes in shapes are names, whole numbers, or sums and products of these.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property

TABLE = """
product(a: strided[m, k], b: strided[k, n], out: out strided[m, n], m, n, k, keep: number, worker)
barrier(worker)
bias(out: out float[rows, units], rows, units, bias: float[units])
sum_rows(h: float[rows, units], rows, units, accumulate: flag, out: out float[units])
add_bias_relu(h: out float[rows, units], rows, units, bias: float[units])

gather(h: float[rows, units], rows, units, before: count, numbers: out float[5, units])
settle(numbers: out float[5, units], rows: count, units, gamma: float[units]?, epsilon: number, worker)
normalise(h: float[rows, units], rows, units, numbers: float[5, units], beta: float[units], out: out float[rows, units])
normalise_sums(gradient: float[rows, units], h: float[rows, units], rows, units, numbers: float[5, units],
    beta: float[units], accumulate: flag, sums: out float[2*units+1])
normalise_settle(sums: out float[2*units+1], rows: count, units, numbers: float[5, units],
    to_gamma: out float[units], to_beta: out float[units], worker)
normalise_to_input(gradient: float[rows, units], h: float[rows, units], rows, units, numbers: float[5, units],
    beta: float[units], sums: float[2*units+1], to_h: out float[rows, units])

sum_samples(h: float[samples*rows, units], samples: count, rows, units, accumulate: flag, out: out float[rows, units])
centre(total: float[rows, units], rows, units, share: number, numbers: float[5, units], out: out float[rows, units])
compare(a: float[rows, units], b: float[rows, units], rows, units, share: double,
    difference: out float[rows, units], error: out float[])
standardise_sums(gradient: float[rows, units], out: float[rows, units], samples: count, rows, units,
    numbers: float[5, units], factor: number, sums: out float[3*units+1], worker)
standardise_to_input(gradient: float[rows, units], h: float[samples*rows, units], samples: count, rows, units,
    numbers: float[5, units], sums: float[3*units+1], share: number, to_h: out float[samples*rows, units])

mlp(h_g: float[rows, units], h_m: float[rows, units], rows, units, c: list[9] float[units],
    out: out float[rows, units])
mlp_backward(gradient: float[rows, units], h_g: float[rows, units], h_m: float[rows, units], rows, units,
    c: list[9] float[units], to_g: out float[rows, units], to_m: out float[rows, units], accumulate: flag,
    to_c: out float[9, units])
add(h_g: float[rows, units], h_m: float[rows, units], rows, units, out: out float[rows, units])
add_backward(gradient: float[rows, units], out: float[rows, units], rows, units, to_g: out float[rows, units],
    to_m: out float[rows, units])
sigmoid(scores: float[rows, slots], rows, slots, out: out float[rows, slots])
sigmoid_backward(gradient: float[rows, slots], h_a: float[rows, slots], rows, slots, out: out float[rows, slots])
softmax(scores: float[rows, slots], rows, slots, out: out float[rows, slots])
softmax_backward(gradient: float[rows, slots], h_a: float[rows, slots], rows, slots, out: out float[rows, slots])

largest_sums(first: float[rows, side], second: float[rows, side], ranks: int64[2, pairs], pairs, rows, side, top,
    sums: out float[rows, top], index: out int64[rows, top])
keys_backward(gradient: float[rows, top], index: int64[rows, top], h: float[rows, half+rest], rows, top, side,
    half, rest, A_1: float[side, half], A_2: float[side, rest], accumulate: flag, to_A_1: out float[side, half]?,
    to_b_1: out float[side]?, to_A_2: out float[side, rest]?, to_b_2: out float[side]?,
    to_h: out float[rows, half+rest])
read_rows(M: float[slots, width], index: int64[rows, chosen], weights: float[rows, chosen], slots, rows, chosen, width,
    out: out float[rows, width])
read_rows_backward_weights(gradient: float[rows, width], M: float[slots, width], index: int64[rows, chosen], slots,
    rows, chosen, width, to_weights: out float[rows, chosen])
sort_slots(index: int64[entries], entries, slots: count, order: out int64[entries], different: out int64[entries],
    first: out int64[entries+1], found: out int64[])
read_rows_backward_slots(gradient: float[rows, width], weights: float[rows, chosen], order: int64[rows*chosen],
    first: int64[found+1], rows, chosen, width, found, to_slots: out float[found, width])

bernoulli(products: float[samples*rows, columns], bias: float[columns], x: float[rows, columns], samples: count, rows,
    columns, out: out float[samples*rows])
bernoulli_backward(gradient: float[samples*rows], products: float[samples*rows, columns], bias: float[columns],
    x: float[rows, columns], samples: count, rows, columns, to_products: out float[samples*rows, columns],
    accumulate: flag, to_bias: out float[columns])
gaussian(mean: float[samples*rows, columns], raw: float[samples*rows, columns], x: float[rows, columns],
    samples: count, rows, columns, square: number, out: out float[samples*rows])
gaussian_backward(gradient: float[samples*rows], mean: float[samples*rows, columns], raw: float[samples*rows, columns],
    x: float[rows, columns], samples: count, rows, columns, square: number, to_mean: out float[samples*rows, columns],
    to_raw: out float[samples*rows, columns])
reparameterise(mean: float[rows, units], log_variance: float[rows, units], noise: float[samples, rows, units], samples,
    rows, units, z: out float[samples*rows, units], log_q: out float[samples, rows])
reparameterise_backward(to_z: float[samples*rows, units], to_log_q: float[samples, rows],
    log_variance: float[rows, units], noise: float[samples, rows, units], samples, rows, units,
    to_mean: out float[rows, units], to_log_variance: out float[rows, units])

log_weights(log_p: float[samples*rows], z: float[samples*rows, d], log_q: float[samples, rows], samples, rows, d,
    out: out double[samples, rows])
weigh(log_p: float[samples*rows], z: float[samples*rows, d], log_q: float[samples, rows], samples, rows, d,
    importance: flag, every: count, bound: out float[rows], weights: out float[samples*rows],
    squares: out float[samples*rows])
path(to_z: out float[samples*rows, d], z: float[samples*rows, d], noise: float[samples, rows, d],
    log_variance: float[rows, d], weights: float[samples*rows], squares: float[samples*rows],
    weighed: float[samples*rows, d]?, samples, rows, d, fixed: flag, to_log_q: out float[samples, rows])
report(bounds: float[rows], rows, every: count, errors: float[layers], layers, out: out float[2])

squares(gradients: list[count] float[*sizes], sizes, count, total: out double[])
adam(values: out list[count] float[*sizes], gradients: list[count] float[*sizes], first: out list[count] float[*sizes],
    second: out list[count] float[*sizes], averages: out list[count] float[*sizes]?, sizes, count, s: float[10])
adam_rows(values: out float[slots, width], gradient: float[rows, width], first: out float[slots, width],
    second: out float[slots, width], average: out float[slots, width]?, index: int64[rows], missed: float[rows], slots,
    rows, width, s: float[10])

flush_denormals(on: flag)
flushing(threads: out int64[])
use_own_products(on: flag, available: out int64[])
own_products_done(count: out int64[])
apart(turns: count, seconds: out double[])
"""

C_TYPES = {"float": "float", "int64": "int64_t", "double": "double"}
SCALARS = {"count": ("long", "n"), "flag": ("int", "n"), "number": ("float", "f"), "double": ("double", "f")}
"""kind -> its C type, and the member of an operand that holds it."""
KIND = re.compile(
    r"(?P<out>out )?(?:list\[(?P<length>\w+)\] )?(?P<base>float|int64|double|strided)\[(?P<shape>.*)\](?P<optional>\?)?"
)


@dataclass(frozen=True)
class Parameter:
    """One operand of an operation."""

    name: str
    scalar: str = ""
    """Its kind if it is a number and not a tensor."""
    base: str = ""
    shape: tuple[str, ...] = ()
    out: bool = False
    optional: bool = False
    length: str = ""
    """Of a list of tensors: how many."""

    @classmethod
    def parse(cls, name: str, kind: str) -> Parameter:
        """
        >>> Parameter.parse("h", "out float[rows, 2*units+1]").shape
        ('rows', '2*units+1')
        """
        if kind in SCALARS:
            return cls(name, scalar=kind)
        match = KIND.fullmatch(kind)
        if match is None:
            raise ValueError(f"{name}: there is no kind {kind!r}")
        shape = tuple(size.strip() for size in match["shape"].split(",") if size.strip())
        out, optional = match["out"] is not None, match["optional"] is not None
        return cls(name, "", match["base"], shape, out, optional, match["length"] or "")

    @property
    def any_shape(self) -> bool:
        """Whether its tensors may have any shape: `float[*sizes]`."""
        return any(size.startswith("*") for size in self.shape)

    @property
    def c_types(self) -> list[str]:
        """Of the arguments that it becomes in C."""
        if self.scalar:
            return [SCALARS[self.scalar][0]]
        constant = "" if self.out else "const "
        if self.base == "strided":
            return [f"{constant}float *", *([] if self.out else ["int"]), "long"]
        pointer = f"{constant}{C_TYPES[self.base]} *"
        return [f"{pointer}const *" if self.length else pointer]

    @property
    def members(self) -> list[str]:
        """Of the operands that hold these arguments."""
        if self.scalar:
            return [SCALARS[self.scalar][1]]
        return ["p", *("n" for _ in self.c_types[1:])]


@dataclass(frozen=True)
class Operation:
    """A C function, and what it takes."""

    name: str
    arguments: tuple[str, ...]
    """Of the C function, in order: names of operands and of sizes."""
    parameters: dict[str, Parameter] = field(hash=False)

    @classmethod
    def parse(cls, line: str) -> Operation:
        """
        >>> [*Operation.parse("f(h: float[rows], rows, n: count)").parameters]
        ['h', 'n']
        """
        name, _, inside = line.rstrip(")").partition("(")
        parts = [part.strip() for part in re.split(r",\s*(?![^\[]*\])", inside)]
        named = [part.partition(": ") for part in parts]
        parameters = {key: Parameter.parse(key, kind) for key, _, kind in named if kind}
        return cls(name, tuple(key for key, _, _ in named), parameters)

    @cached_property
    def lists(self) -> set[str]:
        """Sizes that are one for each tensor of a list."""
        return {parameter.shape[0][1:] for parameter in self.parameters.values() if parameter.any_shape}

    @property
    def waits(self) -> bool:
        """Whether the operation has a barrier for all workers."""
        return "worker" in self.arguments and self.name != "product"

    def _argument(self, name: str) -> tuple[list[str], list[str]]:
        """C types, and members of the operands that hold them."""
        if name in self.parameters:
            return self.parameters[name].c_types, self.parameters[name].members
        return (["const long *"], ["p"]) if name in self.lists else (["long"], ["n"])

    @cached_property
    def members(self) -> list[str]:
        """Of all operands of a call, in order."""
        return [member for name in self.arguments if name != "worker" for member in self._argument(name)[1]]

    @property
    def c_source(self) -> str:
        """The declaration of the function, and its wrapper."""
        types, values, place = [], [], 0
        for name in self.arguments:
            if name == "worker":
                types.append("Worker *")
                values.append("worker")
                continue
            for c_type, member in zip(*self._argument(name), strict=True):
                types.append(c_type)
                values.append(f"({c_type})o[{place}].{member}")
                place += 1
        unused = "" if "worker" in self.arguments else "(void)worker; "
        unused += "" if place else "(void)o; "
        return (
            f"static int {self.name}({', '.join(types)});\n"
            f"int call_{self.name}(const Operand *o, Worker *worker) {{ "
            f"{unused}return {self.name}({', '.join(values)}); }}\n"
        )


OPERATIONS = {
    operation.name: operation
    for operation in (Operation.parse(re.sub(r"\s+", " ", line)) for line in re.findall(r"\w+\([^)]*\)", TABLE))
}
OPERANDS = max(len(operation.members) for operation in OPERATIONS.values())
"""Maximum number of operands of a call."""


def c_source() -> str:
    """The text of operations.h: one declaration and one wrapper for each operation."""
    return "\n".join([f"#define OPERANDS {OPERANDS}", *(operation.c_source for operation in OPERATIONS.values())])
