"""Training: schedules, augmentation, divergence, and going on after a kill."""

import math

import pytest
import torch
from experiments.augment import augmentation, augmented, centred
from experiments.batches import Batches
from experiments.data import load_images
from experiments.recipe import Recipe
from experiments.training import train
from torch import nn

from experiments import training


def test_schedules_have_their_factors_by_epoch():
    steps = Recipe(10, 4, 0.1, schedule="steps", milestones=(4, 8), factor=0.1)
    assert [steps.factor_at(e) for e in (0, 3.9, 4, 8)] == pytest.approx([1, 1, 0.1, 0.01])
    cosine = Recipe(10, 4, 0.1, schedule="cosine", warmup=2)
    assert [cosine.factor_at(e) for e in (0, 1, 2, 6, 10)] == pytest.approx([0, 0.5, 1, 0.5, 0], abs=1e-12)
    assert Recipe(10, 4, 0.1, schedule="constant").factor_at(9) == 1
    linear = Recipe(25, 4, 0.1, schedule="linear", warmup=5, start=0.25)
    assert [linear.factor_at(e) for e in (0, 1, 5, 10, 25)] == pytest.approx([0.25, 0.4, 1, 0.75, 0])


def test_augmented_images_are_crops_of_the_padded_ones():
    torch.manual_seed(0)
    x = torch.arange(1, 65.0).view(1, 1, 8, 8).expand(40, 3, 8, 8)
    out = augmented(x, 1)
    padded = nn.functional.pad(x[:1], (1,) * 4)
    windows = [padded[0, :, i : i + 8, j : j + 8] for i in range(3) for j in range(3)]
    allowed = windows + [window.flip(2) for window in windows]
    which = [next(k for k, window in enumerate(allowed) if torch.equal(picture, window)) for picture in out]
    assert len(set(which)) > 9  # both halves are used


def test_strong_augmentation_keeps_sizes_and_scale_and_mixes_labels():
    images = load_images("synthetic", 64, 40, 16)
    torch.manual_seed(0)
    plain = augmentation(Recipe(1, 32, 0.1, augment="strong"), images)
    x, y = plain(images.x, images.y)
    assert x.shape == images.x.shape
    assert torch.equal(y, images.y)
    assert 0.3 < float(x.std()) < 2
    assert not torch.equal(x, images.x)
    for mixed in ({"mixup": 0.5}, {"cutmix": 1.0}, {"mixup": 0.5, "cutmix": 1.0}):
        x, y = augmentation(Recipe(1, 32, 0.1, **mixed), images)(images.x, images.y)
        assert (x.shape, y.shape) == (images.x.shape, (64, images.classes))
        assert torch.allclose(y.sum(1), torch.ones(64))
        assert bool((y.max(1).values < 1).any())


def test_padding_is_that_of_the_recipe():
    images = load_images("synthetic", 64, 40, 16)
    torch.manual_seed(0)
    x, _ = augmentation(Recipe(1, 32, 0.1, augment=True, pad=0), images)(images.x, images.y)
    assert all(torch.equal(mine, its) or torch.equal(mine, its.flip(2)) for mine, its in zip(x, images.x, strict=True))


def test_centres_are_enlarged():
    x = torch.zeros(1, 3, 20, 20)
    x[..., 1:19, 1:19] = 1
    assert centred(x, 1.0) is x
    assert torch.allclose(centred(x, 0.9), torch.ones(1, 3, 20, 20))


def test_each_epoch_holds_every_image_once_in_an_order_of_its_own():
    images = load_images("synthetic", 20, 10, 8)
    batches = Batches(images, 8, seed=3)
    epochs = []
    for epoch in range(2):
        batches.set_epoch(epoch)
        epochs.append(torch.cat([x for x, _ in batches]))
    assert len(batches) == 3
    for seen in epochs:
        assert torch.equal(seen.sum((1, 2, 3)).sort().values, images.x.sum((1, 2, 3)).sort().values)
    assert not torch.equal(*epochs)


def test_training_goes_through_the_orders_one_after_the_other():
    """Lightning has to tell the epoch to what it loads from; it calls no ``set_epoch`` but that of a sampler."""
    seen = []

    class Noted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net()

        def forward(self, x):
            if self.training:
                seen.append(x)
            return self.inner(x)

    images = load_images("synthetic", 20, 10, 8)
    train(Noted(), images, Recipe(2, 20, 0.01), 3)
    assert len(seen) == 2
    assert not torch.equal(*seen)
    batches = Batches(images, 20, 3)
    for epoch, x in enumerate(seen):
        batches.set_epoch(epoch)
        assert torch.equal(x, next(iter(batches))[0])


def net():
    torch.manual_seed(0)
    body = (nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Dropout(0.1), nn.AdaptiveAvgPool2d(2))
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(32, 10))


def test_training_learns_and_repeats_bit_for_bit():
    images = load_images("synthetic", 256, 100, 8)
    how = Recipe(12, 32, 0.05)
    models = [net(), net()]
    first, second = (train(model, images, how, 1) for model in models)
    assert first == second
    assert all(torch.equal(a, b) for a, b in zip(*(m.parameters() for m in models), strict=True))
    assert first.accuracy > 0.3  # chance is 0.1, and 0.03 its standard error
    assert first.loss < math.log(10)
    assert not first.diverged


def test_a_run_that_diverges_is_stopped_and_counts_as_chance():
    images = load_images("synthetic", 64, 32, 8)
    found = train(net(), images, Recipe(50, 32, 1e30), 0)
    assert found.diverged
    assert found.loss == math.inf
    assert found.accuracy == 0.1


def test_a_killed_run_goes_on_from_its_last_epoch(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "CHECKPOINTS", tmp_path)
    monkeypatch.setattr(training, "LONG", 3)
    images = load_images("synthetic", 64, 32, 8)
    how = Recipe(3, 32, 0.02, augment=True)
    whole = train(net(), images, how, 0)
    seen = []

    class Killed(nn.Module):
        def forward(self, x):
            seen.append(len(x))
            if self.training and len(seen) == 5:
                raise RuntimeError("killed")
            return self.inner(x)

    def kept(model):
        killed = Killed()
        killed.inner = model
        return killed

    with pytest.raises(RuntimeError, match="killed"):
        train(kept(net()), images, how, 0, checkpoint="run")
    before = len(seen)
    resumed = train(kept(net()), images, how, 0, checkpoint="run")
    assert len(seen) - before == 2 + 1  # the third epoch and the test
    assert resumed == whole
    assert not list(tmp_path.iterdir())  # nothing is left of it


def test_a_net_that_nothing_can_train_counts_as_chance():
    """Random activation functions can be constant: no parameter has a part in the loss then."""

    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(x), 10)

    model = Constant()
    found = train(model, load_images("synthetic", 64, 40, 8), Recipe(2, 16, 0.1), 0)
    assert found.accuracy == pytest.approx(0.1)
    assert found.loss == pytest.approx(math.log(10))
    assert not found.diverged
    assert model.weight.item() == 1
