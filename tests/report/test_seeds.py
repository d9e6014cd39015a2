import json
import statistics
import tomllib
from pathlib import Path

import pytest
from certifications import make_planned_run, make_run

from covprop.data import DATASETS
from covprop.report.grouped import overview_columns
from covprop.report.read import read
from covprop.report.seeds import LATER, by_recipe
from covprop.report.summary import summarize
from covprop.report.tables import tables
from covprop.train.recipe import find, resolve
from covprop.train.toml import dumps


def seeded(folder: Path, seed: int, text: str = "lr = 0.1") -> Path:
    log = make_run(folder, seed)
    with (folder / "config.toml").open("a") as file:
        file.write(f"\n[train]\n{text}\nseed = {seed}\n")
    return log


def test_runs_that_differ_in_the_seed_alone_are_one_recipe(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        seeded(tmp_path / f"a-seed{seed}", seed)
    seeded(tmp_path / "b-seed5", 5, "lr = 0.2")
    longer = seeded(tmp_path / "c-seed6", 6)
    longer.with_suffix(".json").write_text('{"sigma": 0.25, "n": 5000, "alpha": 0.001}')
    seeded(tmp_path / "elsewhere" / "a-seed4", 4)
    radii, summaries = summarize(read([tmp_path])[0])
    groups = {group.name: group for group in by_recipe(summaries) if len(group.members) > 1}
    assert list(groups) == ["a"]
    assert len(by_recipe(summaries)) == 4
    group = groups["a"]
    values = [
        s.acr.value for s in summaries if s.certification.name in ("a-seed1", "a-seed2", "a-seed3")
    ]
    assert len(values) == len(group.members) == 3
    assert group.acr == (
        pytest.approx(statistics.mean(values)),
        pytest.approx(statistics.stdev(values)),
    )
    assert group.train_seconds == 4.5
    table, note = tables(radii, summaries)[1]
    assert [c.cells[0].text for c in table[:2]] == ["a", "3"]
    assert table[2].cells[0].text == f"{statistics.mean(values):.3f}"
    assert table[2].cells[0].plus_minus == f"±{statistics.stdev(values):.3f}"
    assert "standard deviation" in note


def grouped(tmp_path: Path) -> list[list[str]]:
    _, summaries = summarize(read([tmp_path])[0])
    groups = by_recipe(summaries)
    return [[m.certification.path.parent.name for m in group.members] for group in groups]


def test_the_means_of_a_group_are_over_all_its_runs(tmp_path: Path) -> None:
    for seed in (1, 12):
        log = seeded(tmp_path / f"a-seed{seed}", seed)
        log.with_name("metrics.jsonl").write_text(f'{{"epoch": 1, "seconds": {seed}}}\n')
    radii, summaries = summarize(read([tmp_path])[0])
    (group,) = by_recipe(summaries)
    assert group.name == "a"
    assert group.train_seconds == 6.5
    for k in range(len(radii)):
        values = [summary.certified[k].value for summary in summaries]
        assert group.certified(k) == (statistics.fmean(values), statistics.stdev(values))
    assert len({group.certified(k)[0] for k in range(3)}) == 3


def test_runs_side_by_side_are_together_however_they_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in (1, 2, 3):
        seeded(tmp_path / f"a-seed{seed}", seed)
    monkeypatch.chdir(tmp_path / "a-seed1")
    _, summaries = summarize(read([".", "../a-seed2", tmp_path / "a-seed3"])[0])
    (group,) = by_recipe(summaries)
    assert (group.name, len(group.members)) == ("a", 3)


def test_a_run_below_another_is_not_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeded(tmp_path / "a-seed1", 1)
    seeded(tmp_path / "a-seed1" / "a-seed2", 2)
    monkeypatch.chdir(tmp_path / "a-seed1")
    _, summaries = summarize(read(["."])[0])
    assert [len(group.members) for group in by_recipe(summaries)] == [1, 1]


def test_seeds_that_are_certified_at_two_noise_levels_have_a_common_name(tmp_path: Path) -> None:
    for seed in (1, 2):
        seeded(tmp_path / f"a-seed{seed}", seed)
        make_run(tmp_path / "other", seed, 0.5)
        for file in (tmp_path / "other").glob("certify_*"):
            file.rename(tmp_path / f"a-seed{seed}" / file.name)
        (tmp_path / "other/config.toml").unlink()
    _, summaries = summarize(read([tmp_path])[0])
    groups = by_recipe(summaries)
    assert [(group.name, len(group.members)) for group in groups] == [
        ("a (σ = 0.25)", 2),
        ("a (σ = 0.5)", 2),
    ]
    names, *settings = overview_columns(groups)
    assert [cell.text for cell in names.cells] == ["a"]
    assert [column.title for column in settings] == ["digits, σ=0.25", "digits, σ=0.5"]


def test_a_group_of_unlike_names_has_the_first_one(tmp_path: Path) -> None:
    for name, seed in (("first-seed1", 1), ("second", 2)):
        seeded(tmp_path / name, seed)
    _, summaries = summarize(read([tmp_path])[0])
    assert [group.name for group in by_recipe(summaries)] == ["first-seed1"]


@pytest.mark.parametrize(
    ("key", "value", "together"),
    [
        ("seed", 1, True),
        ("weights", "cafe", True),
        ("n", 5000, False),
        ("n0", 10, False),
        ("alpha", 0.01, False),
        ("mode", "soft", False),
        ("precision", "bfloat16", False),
        ("images", "beef", False),
    ],
)
def test_how_runs_were_certified_tells_them_apart(
    tmp_path: Path, key: str, value: object, together: bool
) -> None:
    """All but the draws of the noise, and the weights, of which each seed has its own."""
    for name, seed, other in (("a", 1, {}), ("b", 2, {key: value})):
        meta = seeded(tmp_path / name, seed).with_suffix(".json")
        enough = json.loads(meta.read_text()) | {"n": 1_000_000}  # for the radii, in every mode
        meta.write_text(json.dumps(enough | other))
    assert grouped(tmp_path) == ([["a", "b"]] if together else [["a"], ["b"]])


def test_only_the_seed_of_training_is_one(tmp_path: Path) -> None:
    """Other wrong labels are another experiment."""
    for seed in (1, 2):
        log = seeded(tmp_path / f"a{seed}", seed)
        with log.with_name("config.toml").open("a") as file:
            file.write(f'[labels]\nname = "pair"\nseed = {seed}\n')
    assert grouped(tmp_path) == [["a1"], ["a2"]]


def test_a_log_of_another_name_is_another_row(tmp_path: Path) -> None:
    seeded(tmp_path / "a", 1)
    log = seeded(tmp_path / "b", 2)
    for file in log.parent.glob("certify*"):
        file.rename(file.with_name(file.name.replace("certify_sigma_0.25", "certify_other")))
    assert grouped(tmp_path) == [["a"], ["b"]]


def test_an_option_that_came_later_at_its_default_makes_no_other_recipe(tmp_path: Path) -> None:
    whole = resolve(tomllib.loads(find("digits/gaussian-0.25").read_text())).as_dict()
    for seed in (1, 2, 3):
        whole["train"]["seed"] = seed
        whole["noise"] = {"sigma": 0.25} | ({"share": 0.5} if seed == 3 else {})
        if seed == 2:
            whole["noise"]["share"] = 1.0
        log = make_run(tmp_path / f"a-seed{seed}", seed)
        (log.parent / "config.toml").write_text(dumps(whole))
    _, summaries = summarize(read([tmp_path])[0])
    assert [len(group.members) for group in by_recipe(summaries)] == [2, 1]


def test_recorded_runs_lack_no_other_option_than_the_table_of_later_ones_has() -> None:
    """A new option fails here until it stands there, with its default."""
    seen = 0
    for path in (Path(__file__).parents[2] / "results").rglob("config.toml"):
        old = tomllib.loads(path.read_text())
        if old["data"]["name"] not in DATASETS:  # an own set, which is elsewhere
            continue
        seen += 1
        for section, values in resolve(old).as_dict().items():
            whose = f"{section} {values['name']}" if "name" in values else section
            lacking = {key: value for key, value in values.items() if key not in old[section]}
            assert lacking.items() <= LATER.get(whose, {}).items(), path
    assert seen > 100


def test_no_code_that_a_config_names_is_run(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("raise SystemExit('was run')\n")
    for seed in (1, 2):
        log = make_run(tmp_path / f"a-seed{seed}", seed)
        (log.parent / "config.toml").write_text(
            f'[data]\nname = "digits"\n[model]\nname = "{tmp_path}/net.py:build"\n'
            f'[noise]\nsigma = 0.25\n[method]\nname = "gaussian"\n'
            f"[train]\nepochs = 3\nseed = {seed}\n" + "fast = true\n" * (seed == 2)
        )
    _, summaries = summarize(read([tmp_path])[0])
    assert [len(group.members) for group in by_recipe(summaries)] == [2]


def test_other_images_are_another_table_row(tmp_path: Path) -> None:
    logs = [seeded(tmp_path / f"a-seed{seed}", seed) for seed in (1, 2, 3)]
    lines = logs[2].read_text().splitlines(keepends=True)
    logs[2].write_text("".join([*lines[:-1], lines[-1].replace("780\t", "781\t", 1)]))
    _, summaries = summarize(read([tmp_path])[0])
    assert [len(group.members) for group in by_recipe(summaries)] == [2, 1]


def test_a_seed_counts_once(tmp_path: Path) -> None:
    """A copy of a run would make the spread over seeds too small, two runs of one seed zero."""
    for name, seed in (("a-seed1", 1), ("a-seed2", 2), ("b", 1), ("c", 2), ("d", 1)):
        seeded(tmp_path / name, seed)
    seeded(tmp_path / "other" / "a", 1)
    assert grouped(tmp_path) == [["a-seed1", "a-seed2"], ["b", "c"], ["d"], ["a"]]
    for name in ("x", "y"):
        log = make_run(tmp_path / "unknown" / name, 1)  # whose seed nothing says
        assert "seed" not in (log.parent / "config.toml").read_text()
    assert grouped(tmp_path / "unknown") == [["x"], ["y"]]


def test_bare_logs_stay_alone(tmp_path: Path) -> None:
    for name in ("a", "b"):
        log = make_run(tmp_path / name, 1)
        (log.parent / "config.toml").unlink()
    _, summaries = summarize(read([tmp_path])[0])
    assert [len(group.members) for group in by_recipe(summaries)] == [1, 1]


def test_unfinished_runs_are_not_taken_together_with_others(tmp_path: Path) -> None:
    for seed in (1, 2, 3, 4):
        log = make_planned_run(tmp_path / f"a-seed{seed}", 3, seed)
    log.with_name("metrics.jsonl").write_text('{"epoch": 1, "seconds": 1}\n')
    make_planned_run(tmp_path / "elsewhere" / "a-seed1", 3, 1, 0.5)
    radii, summaries = summarize(read([tmp_path])[0])
    groups = {group.name.split("/")[-1]: len(group.members) for group in by_recipe(summaries)[:2]}
    assert groups == {"a": 3, "a (1 of 3 epochs)": 1}
    over_seeds, _, over_sigmas = (table for table, _ in tables(radii, summaries)[1:4])
    assert [cell.text for cell in over_seeds[1].cells] == ["3"]
    mean = sum(s.acr.value for s in summaries[:3]) / 3
    assert over_seeds[2].cells[0].text == f"{mean:.3f}"
    assert [cell.text for cell in over_sigmas[1].cells] == [f"{mean:.3f}"]
