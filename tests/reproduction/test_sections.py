"""Every part of the page has its numbers."""

from __future__ import annotations

import json
from pathlib import Path

from reproduction import pairs
from reproduction.job import Job, Place, read_result
from reproduction.page import page
from reproduction.rows import OWN, ROWS
from reproduction.sweep import recipes


def test_every_part_of_the_page_has_its_numbers(made: Path, tmp_path: Path) -> None:
    """The result of a small model in the place of the paper's rows: what is found in the files is found on the page."""
    found = read_result(made / "results" / "digits-mem-vae.json")
    assert found is not None
    folder = tmp_path / "page"
    folder.mkdir()
    patterns = found["analyses"]["imputation"]["patterns"]
    patterns["half"]["batch_statistics"]["mse"] = 0.7654
    found["analyses"]["svm"]["accuracy"] = 0.5432
    found["analyses"]["memory"]["alike"][3]["trained"]["rank"] = 99
    legs = [{"epochs": 600, "seconds": 60.0, "recipe_sha256": ""}]
    for name in ("mnist-vae", "mnist-mem-vae", "mnist-vis-mem-vae", "ocr-vae", "frey-vae-b10"):
        figures = json.loads(json.dumps(found["analyses"]).replace("digits-mem-vae-", f"{name}-"))
        own = found | {
            "row": name,
            "analyses": figures,
            "paper": ROWS[name].paper,
            "compared": ROWS[name].quantity,
            "before": legs,
        }
        own["difference"] = own[own["compared"]] - own["paper"]
        by_paper = {OWN} if ROWS[name].paper_schedule else set()
        for schedule in {ROWS[name].schedule, ROWS[name].schedules[0]} | by_paper:  # of the row itself, and of its pair
            path = Job(ROWS[name], schedule).result(Place(folder, folder))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(own))
    counted = {"mean": -0.0123, "standard_error": 0.0045}
    named = [f"imputation {pattern} {kind}" for pattern in patterns for kind in ("exact", "batch")]
    entry = {"schedule": "fast", "seed": 0, "split": 0, "mean": 1.0, "standard_error": 0.1, "examples": 300}
    entry |= {
        "weights_sha256": [found["weights_sha256"]] * 2,
        "analyses": dict.fromkeys([*named, "svm right"], counted),
    }
    (folder / "differences").mkdir()
    pairs.file_of(folder, ("mnist-mem-vae", "mnist-vae")).write_text(json.dumps({"pairs": [entry]}))
    splits = {
        name: {"log_likelihood": value, "standard_error": 0.5, "minus_paper": 1.0, "minus_paper_standard_error": 0.1}
        for name, value in (("70-30", -90.0), ("50-50", -89.0))
    }
    swept = {
        "recipe": "r",
        "recipe_sha256": recipes(),
        "epochs": 20,
        "examples": 2000,
        "samples": 500,
        "splits": splits,
    }
    (folder / "slots.json").write_text(json.dumps(swept))
    text = page(folder)
    assert f"{found['log_likelihood']:.2f} ± {found['standard_error']:.2f}" in text
    assert "12 (+ 600 before)" in text
    for words in ("0.7654", "54.32%", "7, 9 prefer slots alike in layer 1", "| 120 | does not hold |"):
        assert words in text
    gain = found["more"]["50"]["gain"]
    assert f"{gain:+.3f}" in text
    raised = found["log_likelihood"] + gain
    assert f"| {raised:.2f} | {raised - ROWS['ocr-vae'].paper:+.2f} |" in text
    assert "| half | -0.0011 | -0.0123 ± 0.0045 | -0.0123 ± 0.0045 |" in text
    assert "(1 training of each): -1.23 ± 0.45 points; the paper has +0.13" in text
    for models in (
        "MEM-VAE | 0.0539",
        "MEM-VAE, the paper's schedule | 0.0539",
        "MEM-VAE, the paper's schedule | 98.03%",
    ):
        assert f"| {models} |" in text
    assert "| 1 seed | +1.00 | +1.26 | one training: open |" in text
    side = text.partition("### Samples")[2].partition("###")[0]
    assert "| VAE, `mnist-vae` | MEM-VAE, `mnist-mem-vae` |" in side
    assert side.count("nothing picked") == 1
    amiss = text.partition("## What does not match")[2].partition("## Figures")[0]
    for words in (
        "mnist-vae is +1.00 nats where the paper has +1.26",
        "where the paper has 0.0550",
        "SVM: 54.32%",
        "50-50 was best here",
        "Not done yet",
    ):
        assert words in amiss
    (folder / "remarks.json").write_text('{"slots": "One seed of short trainings."}')
    assert "not 70-30 (+1.00 ± 0.10, paired over images). One seed of short trainings." in page(folder)
    (folder / "remarks.json").write_text('{"nonsense": "Why?"}')  # of something that is not amiss any more
    assert "Why?" not in page(folder)
