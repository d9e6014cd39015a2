"""Recipes: found, overridden, checked, written back."""

import tomllib
from pathlib import Path

import pytest
from nets import own_net

from covprop.errors import InvalidInput
from covprop.train import find, load, resolve, shipped
from covprop.train.toml import dumps

TEXT = """
[data]
name = "digits"
[model]
name = "lenet"
width = 4
[noise]
sigma = 0.5
[method]
name = "consistency"
weight = 3
[train]
epochs = 4
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(TEXT)
    return path


def test_a_file_is_read_and_completed(file: Path) -> None:
    recipe = load(str(file))
    assert recipe.model == {"name": "lenet", "width": 4}
    filled_in = {"samples": 2, "entropy": 0.5, "from_epoch": 0, "reach": 0.0}
    assert recipe.method == {"name": "consistency", "weight": 3.0, **filled_in}
    assert recipe.weighting is None
    assert recipe.train.optimizer == "sgd"


def test_what_is_written_is_the_same_recipe(file: Path) -> None:
    recipe = load(str(file), ["weighting=radius", "train.milestones=[1, 3]", "train.lr=1e-5"])
    text = dumps(recipe.as_dict())
    assert resolve(tomllib.loads(text)) == recipe


def test_strings_are_escaped() -> None:
    odd = {"data": {"name": 'C:\\new "set"\n\té', "flag": True, "list": [1.5, 2]}}
    assert tomllib.loads(dumps(odd)) == odd


def test_overrides(file: Path) -> None:
    recipe = load(
        str(file),
        ["train.epochs=7", "noise.sigma=1", "train.optimizer=adamw", 'train.schedule="cosine"'],
    )
    assert recipe.train.epochs == 7
    assert recipe.noise.sigma == 1.0
    assert recipe.train.optimizer == "adamw"
    assert recipe.train.schedule == "cosine"


def test_a_plain_value_names_another_thing_and_drops_its_options(file: Path) -> None:
    recipe = load(str(file), ["method=gaussian", "model=cnn9"])
    assert recipe.method == {"name": "gaussian", "samples": 1}
    assert recipe.model["name"] == "cnn9"
    kept = load(str(file), ["method=consistency", "data=mnist"])
    assert kept.method["weight"] == 3
    assert kept.data.name == "mnist"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.epocs=3", r'there is no option train\.epocs \(did you mean "epochs"\?\)'),
        ("method.wieght=3", r'method\.wieght \(did you mean "weight"\?\)'),
        ("model.widht=3", r'model\.widht \(did you mean "width"\?\)'),
        ("method.sigma=3", r"there is no option method\.sigma"),
        ("model=lenett", r'no model "lenett" \(did you mean "lenet"\?\)'),
        ("method=macerr", r'no method "macerr" \(did you mean "macer"\?\)'),
        ("data=cifar01", r'no data set or file "cifar01" \(did you mean "cifar10"\?\)'),
        ("weighting=loss", r'must be "none", "radius" or "probability"'),
        ("noise.sigma=0", r"noise\.sigma must be at least 1e-06 and at most 1e\+06, not"),
        ("noise.sigma=-1", r"noise\.sigma must be at least 1e-06 and at most 1e\+06, not"),
        ("noise.share=0", r"noise\.share must be above 0"),
        ("train.epochs=0", r"train\.epochs must be at least 1"),
        ("method.weight=much", r"method\.weight must be a number, not 'much'"),
        ("trian.epochs=3", r'no section "trian" \(did you mean "train"\?\)'),
        ("epochs=3", r'did you mean "train\.epochs"\?'),
        ("sigma=3", r'did you mean "noise\.sigma"\?'),
        ("train=3", r"say which key, as train\.KEY=3"),
        ("train.epochs", r"key=value such as"),
        ("train.=1", r"key=value such as"),
        ("model=gone.py:build", r"there is no file"),
    ],
)
def test_a_slip_is_one_sentence(file: Path, override: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        load(str(file), [override])
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("--set")
    assert "mine.toml" not in str(caught.value)


def test_one_override_without_a_list(file: Path) -> None:
    with pytest.raises(InvalidInput, match=r'string "train.epochs=3"; give a list, \["train.ep'):
        load(str(file), "train.epochs=3")


def test_the_one_override_that_is_wrong_is_named_and_the_file_for_its_own_faults(
    file: Path,
) -> None:
    with pytest.raises(InvalidInput, match=r"^--set train\.lr=-1: train\.lr must be"):
        load(str(file), ["train.epochs=30", "train.lr=-1", "model=lenet"])
    with pytest.raises(
        InvalidInput, match=r"^--set train\.milestones=\[9\] --set train\.epochs=5: "
    ):
        load(str(file), ["train.milestones=[9]", "train.epochs=5", "train.seed=1"])
    file.write_text(TEXT.replace("sigma", "sgima"))
    with pytest.raises(
        InvalidInput, match=r"^Recipe .*mine\.toml: there is no option noise\.sgima"
    ):
        load(str(file), ["train.epochs=30"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXT + '[weighting]\nname = "radius"\nby = "losses"\n', r"weighting\.by must be one of"),
        (
            TEXT.replace('name = "digits"', 'name = "digits"\nholdout = 9')
            + '[labels]\nname = "pair"\nrate = 0.4\n',
            r"data\.holdout does not go with \[labels\]",
        ),
        ("[train\n", r"mine\.toml is not valid TOML"),
        (TEXT.replace("[noise]", "[niose]"), r'\[niose\] \(did you mean "noise"\?\)'),
        (TEXT.replace("sigma = 0.5", ""), r"noise\.sigma has no value"),
        (TEXT.replace('name = "lenet"', ""), r"lacks model\.name"),
        ("train = 3\n" + TEXT.replace("[train]\nepochs = 4", ""), r"\[train\] must be a section"),
        (TEXT.replace("epochs = 4", "epochs = 4\nepoch = 5"), r"train\.epoch \(did you mean"),
    ],
)
def test_a_wrong_file_is_one_sentence_naming_it(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(InvalidInput, match=message) as caught:
        load(str(file))
    assert "mine.toml" in str(caught.value)


def test_a_file_that_is_not_text(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match="not valid TOML"):
        load(str(file))


def test_own_files_are_found_beside_the_recipe_and_made_absolute(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_net(tmp_path, "nn.Flatten()", "num_classes: int, image_shape, depth: int = 2")
    (tmp_path / "set").mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    recipe = load(str(file), ["model=net.py:build", "data=set", "model.depth=5"])
    assert recipe.model == {"name": f"{tmp_path / 'net.py'}:build", "depth": 5}
    assert recipe.data.name == str(tmp_path / "set")
    with pytest.raises(InvalidInput, match=r"model\.dpeth \(did you mean"):
        load(str(file), ["model=net.py:build", "model.dpeth=5"])


def test_a_weighted_linearised_radius_is_not_compiled(file: Path) -> None:
    options = ["method=radius", "method.estimator=linearized", "train.compile=true"]
    assert load(str(file), options).train.compile
    with pytest.raises(InvalidInput, match=r"set train\.compile = false"):
        load(str(file), [*options, "weighting=radius"])


def test_shipped_recipes_are_found_by_name() -> None:
    assert find("digits/radius-0.25") == shipped()["digits/radius-0.25"]
    with pytest.raises(InvalidInput, match=r'did you mean "digits/radius-0\.25"\?'):
        find("digits/raduis-0.25")


def test_a_name_without_its_data_set_is_told_them_all() -> None:
    with pytest.raises(InvalidInput, match="did you mean one of") as refused:
        find("late-0.50")
    names = [f'"{name}/minutes/late-0.50"' for name in ("cifar10", "mnist", "svhn")]
    assert f"({', '.join(names)}?)" in str(refused.value).replace("did you mean one of ", "")


def test_a_run_folder_is_told_where_its_recipe_is(file: Path) -> None:
    file.rename(file.parent / "config.toml")
    with pytest.raises(InvalidInput, match=r"is a run folder; its recipe is .*/config\.toml, with"):
        find(str(file.parent))
