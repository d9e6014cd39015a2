import json
import os
from pathlib import Path

import numpy as np
import pytest
from certifications import (
    HEADER,
    ROWS,
    add_estimates,
    draw_rows,
    make_planned_run,
    make_run,
    phi,
    tsv,
)

from covprop.errors import InvalidInput
from covprop.report import summarize, write
from covprop.report.read import INVERTED, RECORDED, read


def test_a_run_folder_brings_all_it_holds(tmp_path: Path) -> None:
    log = make_run(tmp_path / "digits-a")
    rows = draw_rows(1, 0.25)
    (found,), warnings = read([tmp_path / "digits-a"])
    assert not warnings
    assert (found.name, found.path, found.sigma) == ("digits-a", log, 0.25)
    assert (found.data, found.method) == ("digits", "gaussian")
    assert (found.train_seconds, found.epochs) == (4.5, 3)
    assert found.samples == 1000
    assert found.meta["alpha"] == 0.001
    assert 'name = "digits"' in found.config_text
    assert found.rows.radius.tolist() == [r["radius"] for r in rows]  # not rounded
    assert found.p_source == RECORDED
    assert found.p_lower is not None
    assert found.p_lower.tolist() == [r["p_lower"] for r in rows]


def test_a_bare_log_takes_sigma_from_its_name_and_inverts_the_radius(tmp_path: Path) -> None:
    rows = draw_rows(3, 0.5)
    for name in ("cifar10_noise_0.25_sigma_0.50.tsv", "sigma_0.5"):
        log = tmp_path / name
        log.write_text(tsv(rows))
        (found,), _ = read([log])
        assert found.name == name.removesuffix(".tsv")
        assert found.sigma == 0.5
        assert found.p_source == INVERTED
        assert found.p_lower is not None
        for row, radius, p in zip(rows, found.rows.radius, found.p_lower, strict=True):
            assert np.isnan(p) if row["predict"] == -1 else p == pytest.approx(phi(radius / 0.5))


def test_without_sigma_there_is_no_p(tmp_path: Path) -> None:
    log = tmp_path / "log.tsv"
    log.write_text(tsv(draw_rows(1, 0.25)))
    (found,), _ = read([log])
    assert found.sigma is None
    assert found.p_lower is None


def test_a_folder_is_searched_to_its_depth(tmp_path: Path) -> None:
    make_run(tmp_path / "x" / "a")
    make_run(tmp_path / "x" / "y" / "b")
    (tmp_path / "published.tsv").write_text(tsv(draw_rows(1, 0.25)))
    (tmp_path / "other.tsv").write_text("something\telse\n")
    certifications, _ = read([tmp_path])
    assert sorted(c.name for c in certifications) == ["a", "b", "published"]


def test_runs_come_in_the_order_people_count(tmp_path: Path) -> None:
    for number in (1, 2, 10):
        make_run(tmp_path / f"run-{number}")
    assert [c.name for c in read([tmp_path])[0]] == ["run-1", "run-2", "run-10"]


def test_the_same_log_is_read_once(tmp_path: Path) -> None:
    log = make_run(tmp_path / "a")
    assert len(read([log, tmp_path / "a", tmp_path])[0]) == 1


def test_several_sigmas_in_a_run_have_names_of_their_own(tmp_path: Path) -> None:
    log = make_run(tmp_path / "a")
    log.with_name("certify_sigma_0.5.tsv").write_text(tsv(draw_rows(2, 0.5)))
    certifications, _ = read([tmp_path / "a"])
    assert [c.name for c in certifications] == ["a (σ = 0.25)", "a (σ = 0.5)"]


def test_a_log_with_a_name_of_its_own_keeps_it(tmp_path: Path) -> None:
    log = make_run(tmp_path / "a")
    log.with_name("certify_more.tsv").write_text(tsv(draw_rows(2, 0.25)))
    assert [c.name for c in read([tmp_path / "a"])[0]] == ["a (more)", "a"]


def test_equal_names_are_told_apart(tmp_path: Path) -> None:
    for folder in ("one/run", "two/run", "one/deep/two/run"):
        make_run(tmp_path / folder)
    names = [c.name for c in read([tmp_path])[0]]
    assert len(set(names)) == 3
    assert {"one/run", "two/run"} < set(names)


def test_estimates_are_for_the_sigma_of_training_only(tmp_path: Path) -> None:
    log = make_run(tmp_path / "a")
    log.with_name("certify_sigma_0.5.tsv").write_text(tsv(draw_rows(2, 0.5)))
    add_estimates(log, {"shared": {0: 0.1}})
    certifications, warnings = read([tmp_path / "a"])
    assert [list(c.estimates) for c in certifications] == [["shared"], []]
    assert len(warnings) == 1
    assert "σ = 0.25" in warnings[0]


def test_estimates_of_another_code_are_not_compared(tmp_path: Path) -> None:
    log = make_run(tmp_path / "a")
    add_estimates(log, {"shared": {0: 0.1}})
    made = log.with_name("estimated.json")
    for code, expected in (("1", ["shared"]), ("2", [])):
        log.with_suffix(".json").write_text('{"sigma": 0.25, "model_code": "1"}')
        made.write_text(f'{{"sigma": 0.25, "model_code": "{code}"}}')
        certifications, warnings = read([tmp_path / "a"])
        assert list(certifications[0].estimates) == expected
    assert "is for other code of its model and was not compared" in warnings[0]


def test_nan_outcomes_are_mentioned(tmp_path: Path) -> None:
    log = make_run(tmp_path / "a")
    journal = log.with_suffix(".rows.jsonl")
    journal.write_text(journal.read_text().replace('"nan": 0', '"nan": 12', 2))
    assert "NaN under noise on 2 images" in read([log])[1][0]


def test_a_log_that_only_asked_for_a_radius_says_so(tmp_path: Path) -> None:
    log = make_run(tmp_path / "a")
    for asked in ("0.5", "0.25, 0.5, 0.75"):
        mode = f"hard, sequential, at least {asked}"
        log.with_suffix(".json").write_text(json.dumps({"sigma": 0.25, "mode": mode}))
        assert f"whether radii are at least {asked}, so" in read([log])[1][0]


def test_a_checkpoint_without_a_run_names_its_data_beside_the_log(tmp_path: Path) -> None:
    log = make_run(tmp_path / "a")
    log.with_name("config.toml").unlink()
    log.with_suffix(".json").write_text('{"sigma": 0.25, "data": "cifar10"}')
    assert read([log])[0][0].data == "cifar10"


def test_a_log_is_of_what_it_was_certified_on(tmp_path: Path) -> None:
    """`covprop certify RUN --dataset OTHER` tries a run on images that it was not trained on."""
    log = make_run(tmp_path / "run")
    meta = log.with_suffix(".json")
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"data": "other"}))
    assert read([log])[0][0].data == "other"


def test_a_cut_row_is_left_out_and_mentioned(tmp_path: Path) -> None:
    log = make_run(tmp_path / "a")
    log.write_text(log.read_text()[:-25])
    (found,), warnings = read([log])
    assert len(found.rows) == ROWS - 1
    assert found.p_source == RECORDED
    assert "cut off" in warnings[0]


def test_runs_without_rows_do_not_stand_in_the_way(tmp_path: Path) -> None:
    make_run(tmp_path / "done")
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "certify_sigma_0.25.tsv").write_text(HEADER)
    (tmp_path / "trained").mkdir()
    (tmp_path / "trained" / "config.toml").write_text("")
    (found,), warnings = read([tmp_path])
    assert found.name == "done"
    assert len(warnings) == 2
    assert "trained is not certified yet" in warnings[0]
    for name in ("trained-2", "trained-3"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").write_text("[noise]\nsigma = 0.25\n")
    assert "holds no row yet" in warnings[1]
    warnings = read([tmp_path])[1]
    assert len(warnings) == 2
    assert "trained and 2 more are not certified yet" in warnings[0]


def test_nothing_to_report(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(InvalidInput, match="does not exist"):
        read([run])
    run.mkdir()
    (run / "config.toml").write_text("")
    with pytest.raises(InvalidInput, match=r"holds no certification log; .*covprop certify .*run"):
        read([run])
    with pytest.raises(InvalidInput, match="nothing to report"):
        read([])
    (run / "certify_sigma_0.25.tsv").write_text(HEADER)
    with pytest.raises(InvalidInput, match="no complete row"):
        read([run])


def test_control_characters_in_names_are_shown_as_such(tmp_path: Path) -> None:
    make_run(tmp_path / "a\x1b[31mb")
    assert read([tmp_path])[0][0].name == "a\N{REPLACEMENT CHARACTER}[31mb"


def test_runs_with_noisy_labels_are_not_asked_for_certificates(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    for name, text in (("b", "[labels]\nname = 'pair'\n"), ("c", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").write_text(text)
    _, warnings = read([tmp_path])
    assert len(warnings) == 1
    assert str(tmp_path / "c") in warnings[0]


def test_only_files_are_logs_and_the_remedy_names_a_run(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a"
    make_run(run)
    (tmp_path / "runs" / "certify_folder.tsv").mkdir()
    os.mkfifo(tmp_path / "runs" / "certify_pipe.tsv")  # reading it would wait for ever
    assert [c.name for c in read([tmp_path / "runs"])[0]] == ["a"]
    (run / "certify_sigma_0.25.tsv").unlink()
    with pytest.raises(InvalidInput, match=f"make one with `covprop certify {run}`"):
        read([tmp_path / "runs"])


def test_a_name_that_is_no_utf8_is_reported_all_the_same(tmp_path: Path) -> None:
    log = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9_sigma_0.25.tsv"))
    log.write_text(tsv(draw_rows(1, 0.25)))
    radii, summaries = summarize(read([log])[0])
    write(radii, summaries, tmp_path / "out")
    assert "caf\\udce9" in (tmp_path / "out" / "table.csv").read_text(encoding="utf-8")
    (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("mode", ["hard", "soft", "hard, sequential to within 0.05"])
def test_a_radius_that_its_samples_cannot_certify_is_refused(tmp_path: Path, mode: str) -> None:
    log = make_run(tmp_path / "a")
    meta = {"sigma": 0.25, "n0": 100, "n": 1_000_000, "alpha": 0.001, "mode": mode}
    log.with_suffix(".json").write_text(json.dumps(meta))
    assert not read([log])[1]
    lines = log.read_text().splitlines(keepends=True)
    idx, label, _, _, _, time = lines[6].split("\t")
    lines[6] = "\t".join([idx, label, label, "9.5", "1", time])
    log.write_text("".join(lines))
    with pytest.raises(InvalidInput, match=r"line 7: radius 9\.5 is above"):
        read([log])
    log.with_suffix(".json").unlink()  # a published log
    assert "contradicts" in read([log])[1][0]


def test_the_linearised_estimate_of_earlier_versions_is_named_so(tmp_path: Path) -> None:
    log = make_run(tmp_path / "a")
    add_estimates(log, {"linearized": {0: 0.1}, "linearized:4": {0: 0.2}})
    assert sorted(read([log])[0][0].estimates) == ["linearized", "linearized:4 (earlier)"]
    log.with_name("estimated.json").write_text('{"sigma": 0.25, "estimators": 2}')
    assert sorted(read([log])[0][0].estimates) == ["linearized", "linearized:4"]


@pytest.mark.parametrize(
    ("epochs", "mark"),
    [(400, "3 of 400 epochs"), (4, "3 of 4 epochs"), (3, ""), (2, ""), ("'many'", "")],
)
def test_recipe_and_metrics_say_whether_a_run_is_unfinished(
    tmp_path: Path, epochs: object, mark: str
) -> None:
    log = make_planned_run(tmp_path / "a", epochs)
    assert read([log])[0][0].unfinished == mark
    log.with_name("metrics.jsonl").unlink()
    assert read([log])[0][0].unfinished == ""


def test_what_was_noted_with_the_log_holds_though_training_went_on(tmp_path: Path) -> None:
    log = make_planned_run(tmp_path / "a", 3)
    meta = log.with_suffix(".json")
    noted = {"epochs": 2, "epochs_planned": 3}
    meta.write_text(json.dumps(json.loads(meta.read_text()) | noted))
    assert read([log])[0][0].unfinished == "2 of 3 epochs"
