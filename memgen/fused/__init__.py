"""The loss of a training step and its gradients without autograd: for the paper's models in float32 on a CPU.

autograd finds the derivative of any program, and pays for it with every call: on small nets a step spends more time
between the formulas than in them. The nets of the paper have few kinds of parts, whose derivatives are known
(`parts.py`). So a step is written down once, as a list of matrix products and kernels with all their operands (`Tape`),
and then only repeated; nothing is allocated on the way, and Python is not asked (but for the gradient of a memory that
is read by index, which is made at the end and has other rows every time). With several threads each has a share of the
rows and a list of its own (`share.py`), and goes through the nets with some of them at a time (`blocks.py`); `step.py`
has the whole, `single.py` that of the estimator `single`, and `written.py` finds it again. What it buys:
docs/performance.md.

`objective.py` and `model.py` say what is computed; tests/test_fused.py holds values and gradients of both together.
What does not fit (`fits`) goes the ordinary way.
"""
