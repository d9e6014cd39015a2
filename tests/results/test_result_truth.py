"""How true the estimates are in short: medians and ranks by estimator, over networks."""

from pathlib import Path
from types import ModuleType

from certifications import add_estimates, draw_rows
from wave_runs import add_run, lines


def test_the_summary_goes_from_the_lowest_to_the_highest_network(
    make: ModuleType, tmp_path: Path
) -> None:
    """Estimates of known size and order; a network trained for its estimate is not among them."""
    for name, factor in (("a", 0.5), ("b", 2.0), ("radius-a", 600.0)):
        log = add_run(tmp_path / "one", name, 0)
        radii = {row["idx"]: row["radius"] for row in draw_rows(1, 0.25)}
        falling = {idx: 9.0 - radius for idx, radius in radii.items()}
        scaled = {idx: factor * radius for idx, radius in radii.items()}
        add_estimates(log, {"linearized": scaled, "shared": falling if name == "b" else scaled})
    add_run(tmp_path / "not-estimated", "a", 0)
    text = make.truths("one", "not-estimated", "not-run")
    (row,) = lines(text, "one`")
    assert row[1:3] == ["–"] * 2  # linearized:4
    assert row[3:5] == ["0.50 to 2.00 (2)", "1.00"]  # linearized
    assert row[5:7] == ["–"] * 2  # calibrated
    assert row[7].startswith("0.50 to ")
    assert row[8] == "-1.00 to 1.00"
    assert "not-" not in text
