"""The comparisons on real tables: methods, metrics, who wins, what is kept. How good, no test says."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import multivariate_normal

from benchmarks import density, imputation, reporting, tables
from benchmarks.reporting import Cell, Metric, Store
from tests.benchmarks.tables import mixed

LOW = Metric("loss", "Loss", higher=False, digits=2)


def row(method: str, seed: int, loss: float, table: str = "iris") -> dict[str, Any]:
    return {"table": table, "setting": "s", "seed": seed, "method": method, "loss": loss}


@pytest.mark.parametrize("method", ["mean", "knn", "ridge", "spoil"])
def test_methods_fill_what_is_missing_and_leave_the_rest(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(imputation.METHODS, "spoil", lambda x, seed: x.assign(x=9.0, zeros=9.0, word="a"))
    x = mixed(100)
    missing = imputation.keep_one(np.random.default_rng(0).random(x.shape) < 0.3, np.random.default_rng(0))
    found, _, _ = imputation.impute(x, missing, method, 0)
    assert (found == x).to_numpy()[~missing].all()
    assert set(found["word"]) <= {"a", "b", "c"}
    assert list(found.dtypes) == list(x.dtypes)


@pytest.mark.parametrize("method", ["knn", "ridge", "trees"])
def test_peers_learn_a_level_that_a_number_tells(method: str) -> None:
    """With an indicator for every level, IterativeImputer gives the mode whatever the numbers say."""
    rng = np.random.default_rng(0)
    groups = rng.integers(3, size=300)
    spots = np.array([[0, 0], [4, 0], [0, 4]])[groups] + rng.normal(size=(300, 2))
    x = pd.DataFrame({"a": spots[:, 0], "b": spots[:, 1], "word": pd.Series(groups.astype(str), dtype=object)})
    missing = np.zeros(x.shape, dtype=bool)
    missing[::4, 2] = True
    found, _, _ = imputation.impute(x, missing, method, 0)
    hits = imputation.accuracy(x, found, missing)
    assert hits is not None
    assert hits > 0.8


def test_closed_forms_of_the_metrics() -> None:
    truth = pd.DataFrame({"a": [0.0, 2.0], "b": [0.0, 20.0], "w": ["u", "v"]})
    found = pd.DataFrame({"a": [3.0, 2.0], "b": [0.0, 60.0], "w": ["u", "u"]})
    everything = np.ones((2, 3), dtype=bool)
    # Standard deviations 1 and 10: errors 3, 0, 0, 4.
    assert imputation.nrmse(truth, found, everything) == pytest.approx(math.sqrt(25 / 4))
    assert imputation.accuracy(truth, found, everything) == 0.5
    some = np.array([[False, True, True], [False, True, False]])
    assert imputation.nrmse(truth, found, some) == pytest.approx(math.sqrt(16 / 2))
    assert imputation.accuracy(truth, found, some) == 1
    assert imputation.nrmse(truth[["w"]], found[["w"]], some[:, 2:]) is None
    assert imputation.accuracy(truth[["a"]], found[["a"]], some[:, :1]) is None
    assert imputation.classifier(truth, found, None, 0) is None


def test_mean_imputation_has_error_one_when_everything_is_hidden_once() -> None:
    """Mean over columns of the mean square of (x - mean) / sd is 1."""
    x = tables.load("iris").x
    found = pd.DataFrame({name: np.full(len(x), x[name].mean()) for name in x})
    assert imputation.nrmse(x, found, np.ones(x.shape, dtype=bool)) == pytest.approx(1)


def test_errors_over_seeds_and_over_rows() -> None:
    np.testing.assert_allclose(reporting.estimate([np.array([1.0]), np.array([3.0])]), (2, 1, 2))
    rows = np.array([0.0, 2.0, 4.0, 6.0])
    np.testing.assert_allclose(reporting.estimate([rows, rows + 1]), (3.5, rows.std(ddof=1) / 2, 4))
    assert math.isnan(reporting.estimate([np.array([1.0])]).error)


@pytest.mark.parametrize(
    ("ours", "outcome"), [((1.0, 1.1, 0.9), "better"), ((3.0, 3.1, 2.9), "worse"), ((1.0, 3.0, 2.1), "within error")]
)
def test_wins_and_losses_are_paired_with_the_best_other(ours: tuple[float, ...], outcome: str) -> None:
    rows = [row("memgen", seed, loss) for seed, loss in enumerate(ours)]
    rows += [row("peer", seed, loss) for seed, loss in enumerate((2.0, 2.1, 1.9))]
    rows += [row("poor", seed, 9) for seed in range(3)]
    (found,) = reporting.verdicts(rows, [LOW], ["s"])
    assert (found.peer, found.outcome) == ("peer", outcome)
    assert found.difference == pytest.approx(np.mean(ours) - 2)
    assert reporting.verdicts(rows[:3], [LOW], ["s"]) == reporting.verdicts(rows[3:], [LOW], ["s"]) == []
    higher = reporting.verdicts(rows, [LOW._replace(higher=True)], ["s"])[0]
    assert (higher.peer, higher.outcome) == ("poor", "worse")


def test_a_method_that_failed_on_a_seed_has_no_value_and_the_last_rank() -> None:
    rows = [row("memgen", 0, 1), row("peer", 0, 2), row("peer", 1, 2), row("mean", 0, 2), row("mean", 1, 2)]
    (found,) = reporting.verdicts(rows, [LOW], ["s"])
    assert found.outcome == "no value"
    runs = reporting.gather(rows, LOW)[("iris", "s")]
    assert reporting.ranks(runs, ["memgen", "peer", "mean"], LOW) == [3, 1.5, 1.5]


def test_results_are_kept_and_a_run_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "kept.jsonl"
    cells = [Cell("iris", "s", seed, "mean") for seed in range(3)]

    def measure(cell: Cell) -> dict[str, Any]:
        if cell.seed == 1:
            raise ValueError("no")
        if cell.seed == 2:
            raise KeyboardInterrupt
        return {"loss": 1.0}

    assert not reporting.collect(cells, Store(file), measure)
    file.write_text(file.read_text() + '{"table": "ir')
    store = Store(file)
    assert [store.done(cell) for cell in cells] == [True, False, False]
    assert reporting.collect(cells, store, lambda cell: {"loss": 2.0})
    assert [Store(file).rows[cell]["loss"] for cell in cells] == [1, 2, 2]


def test_a_gaussian_in_the_users_units() -> None:
    """Standardising and the Jacobian leave the density as it is: a full-covariance Gaussian, up to its floor."""
    train, test = density.split("iris", 0)
    assert (len(train), len(test)) == (120, 30)
    spread = train.std(ddof=0)
    wide = np.cov(train.T, ddof=0) + np.diag((density.FLOOR * spread) ** 2)
    expected = multivariate_normal(train.mean(), wide).logpdf(test)
    np.testing.assert_allclose(density.METHODS["gauss"](train, test, 0), expected, rtol=1e-6)


def test_kernel_bandwidths_respect_the_floor() -> None:
    assert density.BANDWIDTHS.min() == pytest.approx(density.FLOOR)


ESTIMATORS = """
import numpy as np

class MemImputer:
    def __init__(self, random_state):
        assert random_state in (0, 1)

    def fit_transform(self, x):
        return x.fillna(x.median()).to_numpy()

class MemDensity:
    def __init__(self, random_state, sigma_floor, kinds):
        assert sigma_floor == 0.01
        assert set(kinds.values()) == {"real"}

    def fit(self, x):
        assert len(x) == 120
        return self

    def score_samples(self, x):
        return np.full(len(x), -99.0)
"""


def test_how_memgen_is_called_and_where_its_losses_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stand_in_estimators.py").write_text(ESTIMATORS)
    monkeypatch.syspath_prepend(tmp_path)
    for script, methods in ((imputation, "mean,memgen"), (density, "gauss,memgen")):
        monkeypatch.setattr(script, "MODULE", "stand_in_estimators")
        assert script.main(["--tables", "iris", "--methods", methods, "--seeds", "2"]) == 0
        assert "Failures" not in capsys.readouterr().out
    assert density.main(["--tables", "iris", "--methods", "gauss,memgen", "--seeds", "2"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["log_p", "all", "0", "1", "0", "0"] in lines
    monkeypatch.setattr(density, "MODULE", "no_such_estimators")
    assert density.main(["--tables", "iris", "--methods", "gauss,memgen", "--seeds", "1"]) == 0
    assert "method memgen is left out" in capsys.readouterr().out


def test_both_comparisons_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = ["--json", str(tmp_path / "n.json"), "--markdown", str(tmp_path / "n.md")]
    assert imputation.main(["--tables", "iris", "--methods", "mean", "--seeds", "2", *written]) == 0
    assert len(json.loads((tmp_path / "n.json").read_text())["rows"]) == 8
    assert "| iris | mcar10 | **" in (tmp_path / "n.md").read_text()
    assert density.main(["--tables", "iris", "--methods", "gauss", "--seeds", "2", *written]) == 0
    assert "rows" not in json.loads((tmp_path / "n.json").read_text())["rows"][0]
    assert "Average ranks" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="none of"):
        imputation.main(["--tables", "irises"])
