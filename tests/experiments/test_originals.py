"""The papers' own data of the searches: what a hub or an address gives is read as it is there, or named."""

import gzip
import zipfile

import datasets
import numpy as np
import pytest
import torch
from benchmarks.nets.libraries import import_extras
from experiments.errors import ExperimentError
from experiments.search import tasks
from experiments.search.build import Form
from experiments.search.tasks import HUB, Task, load_task
from experiments.search.training import train
from experiments.settings import as_plain, load_settings
from PIL import Image
from torch import nn

SPLITS = {"train": 60, "validation": 20, "test": 30}


@pytest.fixture
def settings():
    """Each task's settings at the papers' scale."""
    tasks._load.cache_clear()
    return as_plain(load_settings("A8", "paper"))["tasks"]


@pytest.fixture
def hub(monkeypatch):
    """A hub of tables by name and split, in place of the one that cannot be reached."""
    tables = {}

    def load_dataset(name, configuration, split, cache_dir):
        if (name, split) not in tables:
            raise FileNotFoundError(f"no {name} with {split}")
        return tables[name, split]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return tables


@pytest.fixture(scope="module")
def timm():
    import_extras()
    import timm

    return timm


def pictures(count, side, seed):
    draw = np.random.default_rng(seed)
    return [Image.fromarray(draw.integers(0, 256, (side, side, 3), dtype=np.uint8)) for _ in range(count)]


def table(count, side=32, seed=0):
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    labels = [index % 3 for index in range(count)]
    return datasets.Dataset.from_dict({"image": pictures(count, side, seed), "label": labels}, features)


def test_every_tasks_own_data_is_named(settings):
    assert str(load_settings("A8", "paper").data.source) == HUB
    assert all(how["data"]["source"] for how in settings.values())


def test_digits_come_from_the_hub(settings, hub):
    hub["ylecun/mnist", "train"], hub["ylecun/mnist", "test"] = table(30, 28), table(10, 28, seed=1)
    settings["mnist"]["data"]["valid"] = 10
    task = load_task("mnist", HUB, settings["mnist"], "unused")
    assert (task.x.shape, len(task.valid_y), len(task.test_y)) == ((20, 1, 28, 28), 10, 10)
    assert task.test_y.tolist() == [index % 3 for index in range(10)]


def test_comments_are_as_many_as_the_paper_has_of_each_split(settings, hub):
    """Each text ends with a word of its split, by which it is known again; the vocabulary is of the training texts."""
    rare = {"train": "here", "validation": "there", "test": "elsewhere"}
    for split, count in SPLITS.items():
        texts = [f"{'Vile' if index % 2 else 'fine'} {index * 'so '} {rare[split]}!" for index in range(count)]
        hub["some/comments", split] = datasets.Dataset.from_dict(
            {"text": texts, "labels": [index % 2 for index in range(count)], "id": texts}
        )
    how = settings["text"]["data"]
    how |= {"source": "some/comments", "train": 40, "valid": 10, "test": 30, "length": 7, "vocabulary": 10}
    task = load_task("text", HUB, settings["text"], "unused")
    assert [len(part) for part in (task.y, task.valid_y, task.test_y)] == [40, 10, 30]
    assert (task.x.shape, task.form) == ((40, 7), Form((7,), (2,), 10, 64))
    known = int(task.x[0, -1])
    assert known > 1
    assert (task.x[:, -1] == known).all()
    assert task.y.tolist() != [index % 2 for index in range(40)]  # at random, not the first
    assert (task.valid_x[:, -1] == 1).all()  # "there" is in no training text
    for x, y in ((task.x, task.y), (task.test_x, task.test_y)):
        short = (x == 0).any(1)  # all words of it are there: the first tells the class
        first = x[short].gather(1, (x[short] == 0).sum(1, keepdim=True)).squeeze(1)
        assert len({(int(word), int(label)) for word, label in zip(first, y[short], strict=True)}) == 2
    how["train"] = 61
    with pytest.raises(ExperimentError, match="some/comments, train: 60 comments, where 61 are wanted"):
        load_task("text", HUB, settings["text"], "unused")


def test_comments_of_other_columns_and_none_are_named(settings, hub):
    how = settings["text"]["data"]
    with pytest.raises(ExperimentError, match=r"'pietrolesci/wikitoxic' cannot .* expected columns text and labels"):
        load_task("text", HUB, settings["text"], "unused")
    hub[how["source"], "train"] = datasets.Dataset.from_dict({"comment": ["a"], "toxic": [0]})
    with pytest.raises(ExperimentError, match=r"task text: .*, train: the columns are comment, toxic; expected"):
        load_task("text", HUB, settings["text"], "unused")


def test_census_is_14_numbers_as_pmlb_has_them(settings, tmp_path):
    draw = np.random.default_rng(0)
    rows = draw.integers(0, 90, (100, 4))
    rows[:, 3] = rows[:, 0] > 45
    path = tmp_path / "adult.tsv.gz"
    with gzip.open(path, "wt") as file:
        file.write("age\tworkclass\tfnlwgt\ttarget\n" + "".join("\t".join(map(str, row)) + "\n" for row in rows))
    settings["adult"]["data"] |= {"source": str(path), "valid": 20}
    task = load_task("adult", HUB, settings["adult"], "unused")
    assert (task.x.shape, len(task.valid_y), len(task.test_y)) == ((60, 3), 20, 20)
    assert torch.allclose(task.x.mean(0), torch.zeros(3), atol=1e-5)
    assert torch.allclose(task.x.square().mean(0), torch.ones(3), atol=1e-5)
    everything, labels = (
        torch.cat(parts) for parts in ((task.x, task.valid_x, task.test_x), (task.y, task.valid_y, task.test_y))
    )
    assert everything[labels == 1, 0].min() > everything[labels == 0, 0].max()  # a row keeps its class
    path.write_bytes(b"not gzip")
    tasks._load.cache_clear()
    with pytest.raises(
        ExperimentError, match=r"task adult: .* is no gzipped TSV file of numbers with a column 'target'"
    ):
        load_task("adult", HUB, settings["adult"], "unused")


def test_an_address_that_cannot_be_had_is_named(settings, monkeypatch):
    def download(*_):
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets.DownloadManager, "download", download)
    for name, end in (("adult", r"adult\.tsv\.gz"), ("omniglot", r"images_evaluation\.zip")):
        with pytest.raises(
            ExperimentError, match=rf"{end} cannot be had \(no route\); set tasks\.{name}\.data\.source"
        ):
            load_task(name, HUB, settings[name], "unused")


def test_drawings_come_from_both_archives(settings, tmp_path):
    paths = []
    for kind, alphabet in (("background", "Greek"), ("evaluation", "Tengwar")):
        paths.append(tmp_path / f"images_{kind}.zip")
        with zipfile.ZipFile(paths[-1], "w") as archive:
            for index, picture in enumerate(pictures(20, 105, seed=len(paths))):
                with archive.open(f"images_{kind}/{alphabet}/character01/{index:02}.png", "w") as file:
                    picture.convert("1").save(file, "png")
    settings["omniglot"]["data"] |= {"source": [str(path) for path in paths], "alphabets": 2}
    task = load_task("omniglot", HUB, settings["omniglot"], "unused")
    assert (task.form.heads, task.x.shape) == ((1, 1), (20, 1, 105, 105))


@pytest.mark.slow
def test_flowers_are_embedded_once_and_anew_for_each_epoch(settings, hub, timm, tmp_path, monkeypatch):
    from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
    from torchvision import transforms

    build = timm.create_model
    asked = []

    def create_model(name, pretrained, **options):
        asked.append((name, pretrained))
        torch.manual_seed(0)
        return build(name, pretrained=False, **options)

    monkeypatch.setattr(timm, "create_model", create_model)
    how = settings["transfer"]["data"]
    how |= {"side": 32, "copies": 3}
    for seed, (split, count) in enumerate((("train", 8), ("validation", 4), ("test", 5))):
        hub[how["source"], split] = table(count, seed=seed)
    folder = str(tmp_path / "kept")
    task = load_task("transfer", HUB, settings["transfer"], folder)
    assert asked == [("densenet121.tv_in1k", True)]
    assert (task.x.shape, len(task.y), task.form) == ((24, 1024), 8, Form((1024,), (3,)))
    assert torch.allclose(task.x.mean(0), torch.zeros(1024), atol=1e-3)
    copies = task.x.view(3, 8, 1024)
    assert all((copies[a] != copies[b]).any(1).all() for a, b in ((0, 1), (0, 2), (1, 2)))
    torch.manual_seed(0)
    net = build("densenet121.tv_in1k", num_classes=0).eval()
    prepare = transforms.Compose(
        [transforms.ToTensor(), transforms.Normalize(IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)]
    )
    with torch.no_grad():
        expected = net(torch.stack([prepare(row["image"]) for row in hub[how["source"], "test"]]))
    alive = expected.std(0) > 0.01
    assert alive.sum() > 100
    ours, theirs = ((part - part.mean(0)) / part.std(0) for part in (task.test_x[:, alive], expected[:, alive]))
    assert torch.allclose(ours, theirs, atol=1e-3)
    tasks._load.cache_clear()  # as another process would find it
    assert load_task("transfer", HUB, settings["transfer"], folder).x.equal(task.x)
    assert len(asked) == 1


def test_weights_that_cannot_be_had_are_named(settings, hub, timm, tmp_path, monkeypatch):
    def create_model(*_, **__):
        raise OSError("offline")

    monkeypatch.setattr(timm, "create_model", create_model)
    told = r"no weights for densenet121\.tv_in1k \(offline\); set tasks\.transfer\.data\.net"
    with pytest.raises(ExperimentError, match=told):
        load_task("transfer", HUB, settings["transfer"], str(tmp_path))


def test_each_epoch_takes_the_next_copy():
    """A net that notes what it sees: epoch after epoch copy after copy, and the first again when all are through."""
    x, y = torch.arange(12.0).view(12, 1), torch.arange(4) % 2
    seen = []

    class Noted(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 2)

        def forward(self, x):
            seen.append(x.flatten().tolist())
            return self.layer(x / 12)

        def penalty(self):
            return torch.zeros(())

    task = Task("transfer", Form((1,), (2,)), x, y, x[:4], y, x[:4], y)
    how = {"epochs": 4, "batch": 2, "optimizer": "sgd", "decay": 1.0, "scaled_penalty": False, "iterations": None}
    train(Noted(), task, how, 1e-3, seed=0)
    epochs = [sorted(seen[2 * epoch] + seen[2 * epoch + 1]) for epoch in range(4)]
    assert epochs == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [0, 1, 2, 3]]


def test_a_scale_says_where_its_data_are(settings, tmp_path):
    with pytest.raises(ExperimentError, match=r"papers' own \(ylecun/mnist\), not those of a folder"):
        load_task("mnist", str(tmp_path), settings["mnist"], "unused")
    with pytest.raises(ExperimentError, match="others stand in for the papers' data; give a folder"):
        load_task("text", HUB, as_plain(load_settings("A8", "laptop"))["tasks"]["text"], "unused")


def test_pictures_are_flipped_and_moved_as_the_paper_has_it(timm):
    """A dot in the centre stays within 20 % of the side; one beside it tells mirroring, angle and size."""
    from experiments.augment import moved

    side, away = 101, 20
    torch.manual_seed(0)
    pictures = torch.zeros(400, 3, side, side)
    pictures[:, 0, 50, 50] = pictures[:, 1, 50, 50 + away] = 1.0
    points = torch.arange(side) - 50.0
    seen = moved()(pictures)
    there = seen[:, :2].sum((2, 3)) > 0.3
    assert there.all(1).sum() > 300
    seen = seen[there.all(1)]
    mass = seen[:, :2] / seen[:, :2].sum((2, 3), keepdim=True)
    x, y = (mass.sum(2) * points).sum(2), (mass.sum(3) * points).sum(2)
    shift = torch.stack([x[:, 0], y[:, 0]])
    assert 18 < float(shift.abs().max()) < 21.5
    across, down = x[:, 1] - x[:, 0], y[:, 1] - y[:, 0]
    assert abs(float((across > 0).float().mean()) - 0.5) < 4 * 0.5 / len(seen) ** 0.5
    length, pixel = torch.hypot(across, down) / away, 1 / away
    assert abs(float(length.min()) - 0.8) < pixel
    assert abs(float(length.max()) - 1.2 * 1.02) < pixel  # a shear by 0.2 makes it at most 2 % longer
    angle = torch.atan2(down, across.abs()).rad2deg().abs()
    assert 35 < float(angle.max()) < 40 + 11.4 + 57.3 * pixel  # and turns it by up to 11.3°
