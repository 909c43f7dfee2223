"""`memgen score`: scores of the user's own rows, beside those of training rows, as a table."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from memgen.cli.command import count, say
from memgen.cli.impute_input import as_modelled
from memgen.cli.reading import data_for, image_shape
from memgen.cli.score_rows import Scored, Scorer, Scoring, conditional, scored
from memgen.core.batch import Batch
from memgen.core.likelihoods import check_values
from memgen.data.incomplete import Images, Incomplete, read_incomplete
from memgen.data.output import write_atomically
from memgen.errors import MemgenError
from memgen.runs.modelfile import Saved
from memgen.tasks.scoring import RowScores, lacking, percentiles

HEADER = ("row", "log_p", "standard_error", "effective_sample_size", "samples", "percentile")
COMPARED = 200
"""Training rows, at most, to which single columns are compared."""
FEW = 10
"""Effective samples below which the user is told that the estimate is too low."""


def score_input(scorer: Scorer, source: Path, output: Path, header: str) -> dict[str, Any]:
    saved, how = scorer.saved, scorer.how
    given = read_incomplete(
        source, saved.model.likelihood.columns, image_shape(saved), saved.form.levels, True, header, saved.form.columns
    )
    if how.columns and saved.form.columns is None:
        raise MemgenError("--columns is for tables; this model was not trained on one")
    seen = as_modelled(saved, given, how.seed, grey=False)
    check_values(saved.model.likelihood, seen.x, str(source), missing=True)
    own = scorer(Batch.of(seen.x), source)
    if own is None:
        return scorer.sharding.record()
    reference = of_training(saved, how)
    places = None if reference is None else percentiles(own.scores.log_p, reference.scores.log_p)
    names_of_columns, columns = by_column(saved, own, reference, how) if how.columns else ([], [])
    write_atomically(output, table(names(given), own.scores, places, names_of_columns, columns).encode())
    if seen.grey:
        say("the grey levels were binarised once")
    return told(own.scores, places, how, output)


def of_training(saved: Saved, how: Scoring) -> Scored | None:
    """Training rows, evenly spaced in their order; None if they are not wanted or not there."""
    if not how.reference:
        return None
    try:
        batch = data_for(saved, None, "train").fixed(saved.recipe.data.train_on)
    except MemgenError as error:
        say(f"no percentiles: {error}")
        return None
    chosen = torch.linspace(0, len(batch) - 1, min(how.reference, len(batch))).round().long()
    return scored(saved, batch.rows(chosen), how, "scoring training rows", chosen.tolist())


def by_column(saved: Saved, own: Scored, reference: Scored | None, how: Scoring) -> tuple[list[str], list[list[str]]]:
    """The header and the texts of the columns about each column given the others."""
    assert saved.form.columns is not None
    assert own.columns is not None
    names, scores = saved.form.columns.names, own.columns
    header, texts = [f"log_p of {name}" for name in names], [cells(column) for column in scores.T]
    if reference is None:
        return header, texts
    few = torch.linspace(0, len(reference.rows) - 1, min(COMPARED, len(reference.rows))).round().long()
    part = Scored(reference.rows.rows(few), [reference.keys[i] for i in few.tolist()], reference.scores.rows(few))
    usual = conditional(saved, part, how, "scoring columns of training rows").nanmedian(0).values
    below, index = (usual - scores).nan_to_num(nan=-torch.inf).max(1)
    least = [names[i] if low > -math.inf else "" for low, i in zip(below.tolist(), index.tolist(), strict=True)]
    return ["least_expected", *header], [least, *texts]


def cells(values: Float64[Tensor, " N"]) -> list[str]:
    return ["" if math.isnan(value) else f"{value:.4f}" for value in values.tolist()]


def names(given: Incomplete) -> list[str]:
    """The number of each row from 1 on, or the name of the image."""
    return given.names if isinstance(given, Images) else [str(i + 1) for i in range(len(given.x))]


def table(
    rows: list[str],
    scores: RowScores,
    places: Float64[Tensor, " N"] | None,
    header: Sequence[str] = (),
    columns: Sequence[list[str]] = (),
) -> str:
    """The scores as a CSV file; `header` and `columns` come at its end."""
    numbers = [scores.log_p, scores.standard_error, scores.effective]
    texts = [rows, *([f"{value:.4f}" for value in column.tolist()] for column in numbers)]
    texts.append([str(n) for n in scores.samples.tolist()])
    texts.append([""] * len(rows) if places is None else [f"{value:.2f}" for value in places.tolist()])
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow([*HEADER, *header])
    writer.writerows(zip(*texts, *columns, strict=True))
    return content.getvalue()


def told(scores: RowScores, places: Float64[Tensor, " N"] | None, how: Scoring, output: Path) -> dict[str, Any]:
    """Say what was found, and return it as a record."""
    median, smallest = float(scores.effective.median()), float(scores.effective.min())
    say(f"{count(len(scores.log_p), 'row')} scored; mean log p(x) {float(scores.log_p.mean()):.3f} nats")
    say(f"effective sample size: median {median:.1f}, smallest {smallest:.1f}")
    short = int(lacking(scores, how.until or FEW).sum())
    if short and how.until is not None:
        say(f"{count(short, 'row')} below {how.until} effective samples after {how.most:,} samples: their log p(x) may")
        say("be higher; raise --most")
    elif short:
        say(f"{count(short, 'row')} with fewer than {FEW} effective samples: log p(x) may be higher; try --until {FEW}")
    if places is not None:
        say(f"less probable than 99% of the training rows: {count(int((places < 1).sum()), 'row')}")
    say(f"wrote {output}")
    return {
        "rows": len(scores.log_p),
        "log_likelihood": float(scores.log_p.mean()),
        "effective_sample_size": median,
        "effective_sample_size_smallest": smallest,
        "rows_below_target": short,
        "samples": int(scores.samples.max()),
        "seed": how.seed,
        "output": str(output),
    }
