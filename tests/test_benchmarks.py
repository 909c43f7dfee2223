"""The comparisons on real tables: masks, encoding, metrics, who wins, what is kept. How good, no test says."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pandas", reason="the real tables need pandas: pip install 'memgen[bench-tables]'")

import pandas as pd
from scipy.stats import multivariate_normal

from benchmarks import density, imputation, reporting, tables
from benchmarks.reporting import Cell, Metric, Store

LOW = Metric("loss", "Loss", higher=False, digits=2)


def mixed(rows: int = 4000) -> pd.DataFrame:
    """Numbers (one of them mostly zero) and levels."""
    rng = np.random.default_rng(0)
    word = rng.choice(["a", "b", "c"], rows, p=[0.6, 0.3, 0.1])
    frame = pd.DataFrame({"x": rng.normal(5, 2, rows), "zeros": rng.random(rows) > 0.9, "word": word})
    return frame.astype({"zeros": float, "word": object})


def row(method: str, seed: int, loss: float, table: str = "iris") -> dict[str, Any]:
    return {"table": table, "setting": "s", "seed": seed, "method": method, "loss": loss}


def test_the_sets_are_disjoint_and_have_enough_tables() -> None:
    with_levels = {
        "diabetes",
        "cars",
        "tips",
        "housing",
        "penguins",
        "heart",
        "german",
        "abalone",
        "insurance",
        "diamonds",
    }
    assert not set(tables.CHOOSING) & set(tables.REPORTING)
    assert len(tables.CHOOSING) >= 5
    assert len(tables.REPORTING) >= 8
    assert len(with_levels & set(tables.CHOOSING)) >= 2
    assert len(with_levels & set(tables.REPORTING)) >= 3


@pytest.mark.parametrize("name", list(tables.TABLES))
def test_every_table_that_is_installed_keeps_the_rules(name: str) -> None:
    try:
        x, y = tables.load(name)
    except tables.AbsentError as error:
        pytest.skip(str(error))
    assert not x.isna().any(axis=None)
    assert 100 < len(x) <= tables.LIMIT
    assert all(x[column].nunique() > 1 for column in x)
    assert {str(kind) for kind in x.dtypes} <= {"float64", "object"}
    assert all(isinstance(value, str) for column in tables.categorical_columns(x) for value in x[column])
    assert y is None or (len(y) == len(x) and np.bincount(y).min() >= 5)


def test_rules_for_a_table() -> None:
    frame = pd.DataFrame({"n": [1.0, 2, np.nan, 4, 5], "k": [1, 2, 1, 2, 1], "one": 3, "t": [1, 2, 3, 4, 100]})
    x, y = tables.complete(frame, "t", categorical=["k"])
    assert list(x) == ["n", "k"]
    assert x["k"].tolist() == ["1", "2", "2", "1"]
    assert y is not None
    assert y.tolist() == [0, 0, 1, 1]
    long = tables.complete(pd.DataFrame({"n": np.arange(5000)})).x
    assert len(long) == tables.LIMIT
    assert long["n"].is_monotonic_increasing
    with pytest.raises(tables.AbsentError, match="bench-tables"):
        tables.packaged("no_such_package", "file.csv")


@pytest.mark.parametrize(("name", "rate"), [("mcar10", 0.1), ("mcar30", 0.3), ("mcar50", 0.5), ("mnar30", 0.3)])
def test_masks_have_the_stated_rates(name: str, rate: float) -> None:
    x = mixed()
    missing = imputation.MECHANISMS[name](x, np.random.default_rng(1))
    # Five standard deviations of a mean of 4,000 coins.
    assert np.abs(missing.mean(0) - rate).max() < 5 * 0.5 / math.sqrt(len(x))


def test_mnar_depends_on_the_value_and_mcar_does_not() -> None:
    x = mixed()
    high = (x["x"] > x["x"].median()).to_numpy()
    hidden = imputation.mnar(x, np.random.default_rng(1))[:, 0]
    assert hidden[high].mean() == pytest.approx(0.5, abs=0.06)
    assert hidden[~high].mean() == pytest.approx(0.1, abs=0.04)
    by_level = pd.Series(imputation.mnar(x, np.random.default_rng(1))[:, 2]).groupby(x["word"]).mean()
    assert by_level.max() > 2.5 * by_level.min()
    plain = imputation.mcar(0.3, x, np.random.default_rng(1))[:, 0]
    assert abs(plain[high].mean() - plain[~high].mean()) < 0.08


@pytest.mark.parametrize("fraction", [0.01, 1 / 6, 0.5, 0.99])
def test_low_and_high_cells_make_the_rate_together(fraction: float) -> None:
    low, high = imputation.rates(fraction)
    assert fraction * high + (1 - fraction) * low == pytest.approx(0.3)
    assert 0 < low < high <= 0.9 + 1e-12
    assert high == pytest.approx(min(5 * low, 0.9))


def test_every_row_and_column_keeps_a_value() -> None:
    rng = np.random.default_rng(0)
    for shape in ((1, 5), (5, 1), (30, 4)):
        kept = imputation.keep_one(np.ones(shape, dtype=bool), rng)
        assert not kept.all(1).any()
        assert not kept.all(0).any()
    sparse = rng.random((50, 3)) < 0.3
    sparse[:, 0] = False
    np.testing.assert_array_equal(imputation.keep_one(sparse, rng), sparse)


def test_masks_are_a_function_of_table_mechanism_and_seed() -> None:
    a, b = (imputation.missing_cells("iris", "mcar30", 0) for _ in range(2))
    np.testing.assert_array_equal(a, b)
    assert (a != imputation.missing_cells("iris", "mcar30", 1)).any()
    assert (a != imputation.missing_cells("iris", "mcar50", 0)).any()


def test_encoding_there_and_back() -> None:
    x = mixed(200)
    encoder = imputation.Encoder.of(x)
    codes = encoder.encode(x)
    assert codes.shape == (200, 5)
    np.testing.assert_allclose(codes[:, :2].mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(codes[:, :2].std(0), 1)
    np.testing.assert_array_equal(codes[:, 2:].sum(1), 1)
    short = imputation.Encoder.of(x, left_out=1)
    np.testing.assert_array_equal(short.encode(x), codes[:, :4])
    for one in (encoder, short):
        pd.testing.assert_frame_equal(one.decode(one.encode(x))[list(x)].astype(x.dtypes), x)
    missing = np.random.default_rng(0).random(x.shape) < 0.3
    holes = imputation.Encoder.of(x.mask(missing)).encode(x.mask(missing))
    np.testing.assert_array_equal(np.isnan(holes), missing[:, [0, 1, 2, 2, 2]])


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
