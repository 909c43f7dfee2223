"""The memory layer is the paper's formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError
from numpy.typing import NDArray
from torch import Tensor

from memgen.core.layers import EPSILON, NORMS, Dense, MemoryLayer
from memgen.core.memory import ATTENTIONS, COMPOSITIONS, SPARSE_ATTENTIONS, Attention, Memory, Preference, ProductKeys
from memgen.errors import MemgenError


def layer(attention: str, composition: str) -> MemoryLayer:
    torch.manual_seed(0)
    made = MemoryLayer(
        Dense(3, 4, NORMS["batch"]), ATTENTIONS[attention](4, 5), Memory(4, 5), COMPOSITIONS[composition](4)
    )
    with torch.no_grad():
        for parameter in made.parameters():  # nothing may hide behind a starting value of 0 or 1
            parameter.copy_(torch.randn(parameter.shape))
    return made


def array(tensor: Tensor) -> NDArray[np.float64]:
    return tensor.detach().double().numpy()


def sigmoid(u: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-u))


@pytest.mark.parametrize("composition", ["sum", "mlp"])
@pytest.mark.parametrize("attention", ["sigmoid", "softmax"])
def test_layer_equals_the_formulas_written_out_by_hand(attention: str, composition: str) -> None:
    made = layer(attention, composition)
    h_in = torch.randn(2, 7, 3)  # (K, B, d): batch norm pools all K*B rows
    w = {name: array(value) for name, value in made.named_parameters()}
    u = array(h_in).reshape(14, 3) @ w["dense.linear.weight"].T + w["dense.linear.bias"]
    normalised = (u - u.mean(0)) / np.sqrt(u.var(0) + EPSILON)
    h_g = np.maximum(0, w["dense.norm.gamma"] * normalised + w["dense.norm.beta"])
    score = h_g @ w["attention.A.weight"].T + w["attention.A.bias"]
    softmax = np.exp(score) / np.exp(score).sum(-1, keepdims=True)
    h_a = sigmoid(score) if attention == "sigmoid" else softmax
    M = w["memory.M"].T  # features x slots, as in the paper
    h_m = h_a @ M.T
    if composition == "sum":
        h = np.maximum(0, h_g + h_m)
    else:
        a1, a2, a3, a4 = (w[f"composition.a{i}"] for i in range(1, 5))
        c1, c2, c3, c4 = (w[f"composition.c{i}"] for i in range(1, 5))
        a = a1 + a2 * h_m + a3 * h_g + a4 * h_g * h_m
        c = sigmoid(c1 + c2 * h_m + c3 * h_g + c4 * h_g * h_m)
        h = np.maximum(0, a + w["composition.b1"] * c)
    pre, output = made(h_in)
    np.testing.assert_allclose(array(pre).reshape(14, 4) + w["dense.linear.bias"], u, atol=1e-5)
    np.testing.assert_allclose(array(output).reshape(14, 4), h, rtol=1e-4, atol=1e-4)


def test_mlp_layer_starts_as_the_identity_on_h_g() -> None:
    made = MemoryLayer(Dense(3, 4, NORMS["batch"]), ATTENTIONS["sigmoid"](4, 5), Memory(4, 5), COMPOSITIONS["mlp"](4))
    h_in = torch.randn(9, 3)
    assert made(h_in).output.equal(made.dense(h_in).output)


def test_starting_values() -> None:
    torch.manual_seed(0)
    memory, attention = Memory(400, 300), ATTENTIONS["sigmoid"](400, 300)
    assert memory.M.std().item() == pytest.approx(0.01, rel=0.02)
    glorot = (6 / 700) ** 0.5
    assert attention.A.weight.abs().max().item() == pytest.approx(glorot, rel=1e-3)
    assert attention.A.weight.std().item() == pytest.approx(glorot / 3**0.5, rel=0.01)
    assert not attention.A.bias.any()


def test_reading_a_chosen_few_slots_equals_a_dense_preference_that_is_zero_elsewhere() -> None:
    memory = Memory(4, 6)
    weights, index = torch.rand(2, 3, 2), torch.tensor([[0, 5], [2, 3], [4, 1]]).expand(2, 3, 2)
    dense = torch.zeros(2, 3, 6).scatter(-1, index, weights)
    torch.testing.assert_close(memory(Preference(weights, index)), memory(Preference(dense)))


def test_softmax_preferences_sum_to_one_and_sigmoid_ones_do_not_have_to() -> None:
    torch.manual_seed(0)
    h_g = torch.rand(10, 4)
    assert torch.allclose(ATTENTIONS["softmax"](4, 5)(h_g).weights.sum(-1), torch.ones(10))
    assert not torch.allclose(ATTENTIONS["sigmoid"](4, 5)(h_g).weights.sum(-1), torch.ones(10))


def test_hooks_look_between_the_parts_and_silence_a_memory() -> None:
    made = layer("sigmoid", "sum")
    h_in = torch.randn(6, 3)
    seen: list[Preference] = []
    made.attention.register_forward_hook(lambda module, inputs, output: seen.append(output))
    made.memory.register_forward_hook(lambda module, inputs, output: torch.zeros_like(output))
    assert made(h_in).output.equal(made.dense(h_in).output)
    assert seen[0].weights.shape == (6, 5)


def test_shapes_in_signatures_are_checked_in_this_test_run() -> None:
    """Else every annotation in memgen would be an unchecked comment."""
    with pytest.raises(TypeCheckError):
        COMPOSITIONS["mlp"](4)(torch.rand(5, 4), torch.rand(6, 4))


def as_dense(keys: ProductKeys) -> Attention:
    """The attention over all slots whose keys are the pairs of half-keys."""
    n, (left, right) = keys.side, keys.halves
    dense = Attention(left + right, n * n, squash=torch.sigmoid)
    i, j = torch.arange(n * n) // n, torch.arange(n * n) % n
    with torch.no_grad():
        dense.A.weight.copy_(torch.cat([keys.first.weight[i], keys.second.weight[j]], -1))
        dense.A.bias.copy_(keys.first.bias[i] + keys.second.bias[j])
    return dense


@pytest.mark.parametrize(("slots", "top"), [(49, 1), (49, 5), (49, 49), (400, 32), (4, 3)])
def test_product_keys_find_exactly_the_largest_of_all_scores(slots: int, top: int) -> None:
    """Chosen slots, their weights and the memory's answer are the dense ones, restricted to the slots chosen."""
    keys = ProductKeys(9, slots, top, squash=torch.sigmoid)
    with torch.no_grad():
        for parameter in keys.parameters():
            parameter.copy_(torch.randn(parameter.shape))
    h_g, memory = torch.randn(3, 20, 9), Memory(9, slots, sparse=True)
    dense, chosen = as_dense(keys)(h_g).weights, keys(h_g)
    assert chosen.index is not None
    weights, index = dense.topk(top)
    assert chosen.index.sort().values.equal(index.sort().values)
    torch.testing.assert_close(chosen.weights, dense.gather(-1, chosen.index))
    restricted = torch.zeros_like(dense).scatter(-1, index, weights)
    torch.testing.assert_close(memory(chosen), memory(Preference(restricted)), atol=1e-5, rtol=1e-4)


def test_product_keys_have_the_gradients_of_the_dense_attention_restricted() -> None:
    keys, memory = ProductKeys(6, 64, 7, squash=torch.sigmoid), Memory(6, 64, sparse=True)
    h_g = torch.randn(11, 6, requires_grad=True)
    memory(keys(h_g)).sin().sum().backward()
    found = [h_g.grad, memory.M.grad.to_dense(), keys.first.weight.grad, keys.second.bias.grad]
    h_g.grad = memory.M.grad = None
    dense, index = as_dense(keys), keys(h_g).index
    weights = dense(h_g).weights
    memory(Preference(torch.zeros_like(weights).scatter(-1, index, weights.gather(-1, index)))).sin().sum().backward()
    to_first = dense.A.weight.grad.view(8, 8, 6)[..., :3].sum(1)
    to_second = dense.A.bias.grad.view(8, 8).sum(0)
    for a, b in zip(found, [h_g.grad, memory.M.grad, to_first, to_second], strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_the_top_slots_are_those_of_the_dense_attention() -> None:
    dense = ATTENTIONS["sigmoid"](5, 12)
    top = SPARSE_ATTENTIONS["top"](5, 12, 4)
    top.load_state_dict(dense.state_dict())
    h_g = torch.randn(9, 5)
    weights, index = dense(h_g).weights.topk(4)
    assert top(h_g).index.equal(index)
    torch.testing.assert_close(top(h_g).weights, weights)


def test_product_keys_want_a_square_number_of_slots() -> None:
    with pytest.raises(MemgenError, match="try 121"):
        ProductKeys(6, 120, 3, squash=torch.sigmoid)
