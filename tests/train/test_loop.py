"""The loop: honest when it fails, and what it computes is what is asked."""

import copy
import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from same_run import rows, weights

from covprop import data, methods, models, noise
from covprop.errors import CovpropError, InvalidInput
from covprop.run import Run
from covprop.train import Recipe, checkpoint, train
from covprop.train.diverge import diverged
from covprop.train.loop import Trainer
from covprop.train.optimize import optimizer
from covprop.train.schedule import lr_at
from covprop.train.update import Update

Make = Callable[..., Recipe]


def test_a_run_is_the_textbook_loop(tmp_path: Path, tiny: Make) -> None:
    """The same weights from a loop written out here, with none of the trainer's code."""
    recipe = tiny(epochs=2, weight_decay=0.01, clip_norm=0.05, ema=0.6, max_loss=50.0)
    recipe = replace(recipe, data=replace(recipe.data, augment="crop-flip"))
    train(recipe, tmp_path / "run")
    images = data.load("digits", "train")
    torch.manual_seed(noise.seed_of(0, "weights"))
    net = models.build(
        "lenet", num_classes=10, image_shape=(1, 8, 8), mean=images.mean, std=images.std, width=2
    )
    adam, average = optimizer(net, recipe.train), copy.deepcopy(net.state_dict())
    losses, right, rates = [], [], []
    for epoch in range(2):
        for step, (_, x, y) in enumerate(
            data.batches(
                images, 200, epoch=epoch, seed=0, device="cpu", augment="crop-flip", drop_last=True
            )
        ):
            rates.append(lr_at(recipe.train, epoch * 7 + step, 7))
            adam.param_groups[0]["lr"] = rates[-1]
            generator = torch.Generator().manual_seed(noise.seed_of(0, "noise", epoch, step))
            noisy = x + 0.25 * torch.randn(x.shape, generator=generator)
            logits = net(noisy)
            loss = F.cross_entropy(logits, y)
            adam.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05)
            adam.step()
            losses.append(loss.item())
            right.append((logits.argmax(1) == y).double().mean().item())
            decay = min(0.6, (1 + len(losses)) / (10 + len(losses)))
            for name, value in net.state_dict().items():
                average[name] = decay * average[name] + (1 - decay) * value
    last = checkpoint.load_state(tmp_path / "run" / "state.pt")["model"]
    trained = weights(tmp_path / "run")
    for name, value in net.state_dict().items():
        torch.testing.assert_close(last[name], value)
        torch.testing.assert_close(trained[name], average[name])
    for key, each in (("loss", losses), ("train_accuracy", right)):
        expected = [sum(each[:7]) / 7, sum(each[7:]) / 7]
        assert [row[key] for row in rows(tmp_path / "run")] == pytest.approx(expected, rel=1e-5)
    assert [row["lr"] for row in rows(tmp_path / "run")] == [rates[6], rates[13]]


def test_a_finished_run_stays_as_it_is(tmp_path: Path, tiny: Make) -> None:
    train(tiny(), tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").unlink()
    train(tiny(), tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert len(rows(tmp_path)) == 2


def test_another_recipe_is_refused_and_restart_keeps_the_old_run(
    tmp_path: Path, tiny: Make
) -> None:
    out = tmp_path / "run"
    train(tiny(), out)
    with pytest.raises(InvalidInput, match=r"train\.lr is 0\.01, and now it is 0\.02"):
        train(tiny(lr=0.02), out)
    train(tiny(checkpoint_minutes=1), out)
    before = (out / "model.safetensors").read_bytes()
    train(tiny(lr=0.02), out, restart=True)
    assert (tmp_path / "run.old-1" / "model.safetensors").read_bytes() == before
    assert (out / "model.safetensors").read_bytes() != before
    train(tiny(lr=0.03), out, restart=True)
    assert (tmp_path / "run.old-2").is_dir()


@pytest.mark.parametrize(
    "options",
    [{"lr": 1e30, "optimizer": "sgd"}, {"max_loss": 1e-3}],
    ids=["not a number", "too large"],
)
def test_divergence_keeps_the_last_good_checkpoint(
    tmp_path: Path, tiny: Make, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    recipe = tiny(**options)
    with pytest.raises(CovpropError, match="no checkpoint yet"):
        train(recipe, tmp_path / "fresh")
    assert not (tmp_path / "fresh" / "state.pt").exists()

    def good_until_epoch_two(self: Trainer) -> None:
        if self.epoch == 1 and self.step == 3:
            raise diverged(self.out, self.epoch, self.step, None)

    recipe = tiny(checkpoint_minutes=0)
    monkeypatch.setattr(Trainer, "_check_weights", good_until_epoch_two)
    with pytest.raises(CovpropError, match=r"epoch 2 at step 3 .* last good checkpoint"):
        train(recipe, tmp_path / "run")
    state = checkpoint.load_state(tmp_path / "run" / "state.pt")
    assert (state["epoch"], state["step"]) == (1, 2)
    assert all(v.isfinite().all() for v in state["model"].values())


def test_what_measures_noise_on_the_way_does_not_hide_a_divergence(
    tmp_path: Path, tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`calibrated` meets weights that are no numbers before the loss does."""
    recipe = tiny(method={"name": "radius", "estimator": "calibrated", "weight": 0.5})
    step = Trainer._train_step

    def spoiled(self: Trainer, batch: data.Batch) -> None:
        if self.step == 2:
            next(self.core.parameters()).data.fill_(torch.nan)
        step(self, batch)

    monkeypatch.setattr(Trainer, "_train_step", spoiled)
    with pytest.raises(CovpropError, match="Training diverged in epoch 1 at step 2") as caught:
        train(recipe, tmp_path / "run")
    assert "is not finite" in str(caught.value.__cause__)


def test_the_estimated_radius_is_the_mean_of_those_there_are(tmp_path: Path, tiny: Make) -> None:
    """With a share of 1/2 the other half of each batch has none, and does not count as 0."""
    seen: list[torch.Tensor] = []
    call = methods.Radius.__call__

    def note(self: methods.Radius, *given: Any, **more: Any) -> methods.Losses:
        losses = call(self, *given, **more)
        seen.append(losses.radius)  # type: ignore[arg-type]
        return losses

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(methods.Radius, "__call__", note)
        train(tiny({"name": "radius", "share": 0.5}, epochs=1), tmp_path)
    radii = torch.cat(seen)
    assert radii.isnan().double().mean().item() == 0.5
    assert rows(tmp_path)[0]["estimated_radius"] == pytest.approx(radii.nanmean().item(), rel=1e-5)


def test_weights_that_are_no_numbers_write_no_row(
    tmp_path: Path, tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last step of an epoch may spoil them while every loss was still fine."""
    step, done = Update.__call__, itertools.count(1)

    def spoil(self: Update, batch: data.Batch, epoch: int) -> None:
        step(self, batch, epoch)
        if next(done) == self.steps:
            list(self.core.parameters())[-1].data.fill_(torch.nan)

    monkeypatch.setattr(Update, "__call__", spoil)
    with pytest.raises(CovpropError, match=r"epoch 1 at step 7 \(weights are no longer numbers"):
        train(tiny(), tmp_path)
    rows = tmp_path / "metrics.jsonl"
    assert not rows.exists() or not rows.read_text()


def test_the_average_is_what_is_saved(tmp_path: Path, tiny: Make) -> None:
    train(tiny(ema=0.9), tmp_path)
    state = checkpoint.load_state(tmp_path / "state.pt")
    saved = weights(tmp_path)
    assert all(torch.equal(saved[k], v) for k, v in state["average"].items())
    assert any(not torch.equal(saved[k], v) for k, v in state["model"].items())


def test_weights_multiply_the_loss_of_each_image(
    tmp_path: Path, tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all weights 0 nothing is learned; the weights get every image's radius and place."""
    seen: list[torch.Tensor] = []

    def of(self: methods.RadiusWeights, index: torch.Tensor, epoch: int) -> torch.Tensor:
        assert self.radius[index].isfinite().all()
        seen.append(index)
        return torch.zeros(len(index))

    monkeypatch.setattr(methods.RadiusWeights, "of", of)
    train(tiny(weighting={"name": "radius"}, epochs=1, weight_decay=0), tmp_path)
    assert len(torch.cat(seen).unique()) == 1400
    assert rows(tmp_path)[0]["loss"] == 0
    torch.manual_seed(noise.seed_of(0, "weights"))
    fresh = models.build("lenet", num_classes=10, image_shape=(1, 8, 8), width=2)
    assert torch.equal(weights(tmp_path)["1.linear2.weight"], fresh.linear2.weight)


def test_images_are_drawn_as_the_weights_say(
    tmp_path: Path, sampled: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many steps as ever; the first epoch as it was, then strong images more often."""
    seen: list[torch.Tensor] = []
    step = Trainer._train_step

    def spy(self: Trainer, batch: data.Batch) -> None:
        seen.append(batch.index)
        step(self, batch)

    monkeypatch.setattr(Trainer, "_train_step", spy)
    train(sampled, tmp_path)
    first, second, third = (torch.cat(seen[7 * e : 7 * e + 7]) for e in range(3))
    assert len(first) == len(second) == len(first.unique()) == 1400
    assert len(second.unique()) < 1400
    # The last epoch began with the radii that the checkpoint holds.
    start = checkpoint.load_state(tmp_path / "state.pt")["weights"]["start"]
    share = (start / start.clamp(min=0).nanmean()).clamp(0.1, 2.0).nan_to_num(1.0)
    share *= len(share) / share.sum()
    counts = third.bincount(minlength=len(share))
    assert (counts <= share.ceil()).all()
    left_out = len(share) - 1400  # the part of a batch that remains at the end
    assert (share.floor() - counts).clamp(min=0).sum() <= left_out
    assert counts[share == share.max()].float().mean() > 5 * counts[share < 1].float().mean()


def test_evaluation_only_when_asked_and_at_the_end(tmp_path: Path, tiny: Make) -> None:
    train(tiny(epochs=3, eval_every=2, ema=0.99), tmp_path / "two")  # of the average
    assert ["test_accuracy_clean" in row for row in rows(tmp_path / "two")] == [False, True, True]
    train(tiny(epochs=2, eval_every=0), tmp_path / "none")
    assert ["test_accuracy_clean" in row for row in rows(tmp_path / "none")] == [False, True]
    model, test = Run(tmp_path / "two").load_model(), data.load("digits", "test")
    batch = next(data.batches(test, len(test), epoch=0, seed=0, device="cpu", shuffle=False))
    right = (model(batch.x).argmax(1) == batch.y).double().mean().item()
    assert rows(tmp_path / "two")[-1]["test_accuracy_clean"] == pytest.approx(right)


def test_held_out_images_are_measured_on_and_not_trained_on(
    tmp_path: Path, tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[data.Batch] = []
    step = Trainer._train_step

    def noted(self: Trainer, batch: data.Batch) -> None:
        seen.append(batch)
        step(self, batch)

    monkeypatch.setattr(Trainer, "_train_step", noted)
    recipe = tiny(epochs=1)
    recipe = replace(recipe, data=replace(recipe.data, holdout=237))
    train(recipe, tmp_path)
    run = Run(tmp_path)
    held, kept = (run.load_data(split) for split in ("holdout", "train"))
    assert (run.config["data"]["holdout"], len(held), len(kept)) == (237, 237, 1200)
    assert isinstance(kept, data.Images)
    assert sorted(torch.cat([batch.index for batch in seen]).tolist()) == list(range(1200))
    for batch in seen:
        assert torch.equal((batch.x * 255).round().byte(), kept.images[batch.index])
    batch = next(data.batches(held, 237, epoch=0, seed=0, device="cpu", shuffle=False))
    right = (run.load_model()(batch.x).argmax(1) == batch.y).double().mean().item()
    row = rows(tmp_path)[-1]
    assert row["holdout_accuracy_clean"] == pytest.approx(right)
    assert "test_accuracy_clean" not in row
    with pytest.raises(InvalidInput, match=r"data\.holdout is 237, and now it is 100"):
        train(replace(recipe, data=replace(recipe.data, holdout=100)), tmp_path)


def test_batches_that_do_not_fit(tmp_path: Path, tiny: Make) -> None:
    with pytest.raises(InvalidInput, match="more than the 1437 training images"):
        train(tiny(batch_size=2000), tmp_path)
    assert not (tmp_path / "config.toml").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own parts
def test_compiled_is_the_same_up_to_rounding(tmp_path: Path, tiny: Make) -> None:
    pytest.importorskip("torch._inductor")
    if os.environ.get("COVPROP_COMPILE") != "1":
        pytest.skip("compiling takes half a minute; set COVPROP_COMPILE=1")
    train(tiny(epochs=1), tmp_path / "plain")
    train(tiny(epochs=1, compile=True), tmp_path / "compiled")
    one, two = weights(tmp_path / "plain"), weights(tmp_path / "compiled")
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-3, atol=1e-4)
