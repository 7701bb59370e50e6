"""Data: Parquet folders are read as they are; what is missing or of another form is named."""

import io

import numpy as np
import pyarrow
import pytest
import torch
from experiments.batches import Batches
from experiments.data import load_images, name_of
from experiments.errors import ExperimentError
from PIL import Image
from pyarrow import parquet


def write(folder, split, pixels, labels, image="img", label="label"):
    """Write pictures ``[count, side, side, 3]`` as PNG, which loses nothing."""
    cells = []
    for picture in pixels:
        buffer = io.BytesIO()
        Image.fromarray(picture).save(buffer, "PNG")
        cells.append({"bytes": buffer.getvalue(), "path": None})
    parquet.write_table(pyarrow.table({image: cells, label: labels}), folder / f"{split}.parquet")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.data.CACHE", tmp_path / "cache")
    made = tmp_path / "pictures"
    made.mkdir()
    return made


def test_images_are_read_and_standardised(folder):
    rng = np.random.default_rng(0)
    train = rng.integers(0, 256, (6, 4, 4, 3), dtype=np.uint8)
    test = rng.integers(0, 256, (5, 4, 4, 3), dtype=np.uint8)
    write(folder, "train", train, [0, 1, 2, 0, 1, 2])
    write(folder, "test", test, [0, 1, 2, 0, 1])
    images = load_images(str(folder), 6, 3, 4)
    mean, std = train.mean((0, 1, 2)), train.reshape(-1, 3).std(0, ddof=1)
    assert torch.allclose(images.x, torch.tensor((train - mean) / std).permute(0, 3, 1, 2).float(), atol=1e-5)
    assert torch.allclose(images.test_x, torch.tensor((test[:3] - mean) / std).permute(0, 3, 1, 2).float(), atol=1e-5)
    assert images.y.tolist() == [0, 1, 2, 0, 1, 2]
    assert images.test_y.tolist() == [0, 1, 2]
    assert images.classes == 3
    pooled = load_images(str(folder), 4, 3, 2)
    raw = train[:4].astype(float).reshape(4, 2, 2, 2, 2, 3).mean((2, 4))
    expected = (raw - raw.mean((0, 1, 2))) / raw.reshape(-1, 3).std(0, ddof=1)
    assert torch.allclose(pooled.x, torch.tensor(expected).permute(0, 3, 1, 2).float(), atol=1e-5)


def test_images_that_would_fill_the_memory_are_decoded_when_asked_for(folder, monkeypatch):
    rng = np.random.default_rng(0)
    write(folder, "train", rng.integers(0, 256, (6, 4, 4, 3), dtype=np.uint8), [0, 1, 2, 0, 1, 2])
    write(folder, "test", rng.integers(0, 256, (5, 4, 4, 3), dtype=np.uint8), [0, 1, 2, 0, 1])
    held = load_images(str(folder), None, None, 4)
    monkeypatch.setattr("experiments.data.IN_MEMORY", 0)
    load_images.cache_clear()
    lazy = load_images(str(folder), None, None, 4)
    load_images.cache_clear()
    assert not isinstance(lazy.x, torch.Tensor)
    assert (lazy.x.shape, lazy.side, len(lazy.x)) == (held.x.shape, 4, 6)
    assert torch.equal(lazy.x[:2], held.x[:2])
    chosen = torch.tensor([4, 0, 4])
    assert torch.equal(lazy.x[chosen], held.x[chosen])
    assert torch.equal(torch.cat(list(lazy.test_x.split(2))), held.test_x)
    batches = [Batches(images, 4, seed=1) for images in (held, lazy)]
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(*batches, strict=True))


def test_pictures_of_several_sizes_are_cropped_at_their_centres(folder):
    """Imagenette's are so, and its test is called validation."""
    grey = np.full((4, 8, 3), 100, dtype=np.uint8)
    grey[:, 2:6] = 200  # the centre, a square
    write(folder, "train", [grey, np.zeros((4, 4, 3), dtype=np.uint8)], [0, 1])
    write(folder, "validation", [np.full((6, 6, 3), 200, dtype=np.uint8)], [1])
    images = load_images(str(folder), None, None, 4)
    assert images.x.shape == (2, 3, 4, 4)
    assert torch.allclose(images.x[0], images.test_x[0])  # only the centre is left
    assert images.test_y.tolist() == [1]


def test_drawn_images_need_no_data():
    images = load_images("synthetic", 20, 10, 8)
    assert images.x.shape == (20, 3, 8, 8)
    assert images.test_y.shape == (10,)


def test_a_missing_folder_is_named_with_what_to_do():
    with pytest.raises(ExperimentError, match=r"no folder \./nowhere; expected the layout .* to get it: datasets"):
        load_images("./nowhere", 1, 1, 8)


def test_a_missing_split_is_named(folder):
    write(folder, "train", np.zeros((1, 4, 4, 3), np.uint8), [0])
    with pytest.raises(ExperimentError, match=r"holds no test\*\.parquet"):
        load_images(str(folder), 1, 1, 4)


def test_another_schema_is_named(folder):
    for split in ("train", "test"):
        write(folder, split, np.zeros((1, 4, 4, 3), np.uint8), [0], image="photo")
    with pytest.raises(ExperimentError, match="the columns are photo, label; expected"):
        load_images(str(folder), 1, 1, 4)


def test_columns_of_another_kind_are_named(folder):
    for split in ("train", "test"):
        write(folder, split, np.zeros((1, 4, 4, 3), np.uint8), ["cat"])
    with pytest.raises(ExperimentError, match="'img' and 'label' cannot be read"):
        load_images(str(folder), 1, 1, 4)


def test_a_place_is_told_by_its_name_alone():
    assert name_of("some/where/cifar10") == "cifar10"
    assert name_of("uoft-cs/cifar10") == "cifar10"


def test_files_that_hold_no_parquet_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.data.CACHE", tmp_path / "cache")
    for split in ("train", "test"):
        (tmp_path / f"{split}.parquet").write_bytes(b"no parquet")
    with pytest.raises(ExperimentError, match="no Parquet file can be read"):
        load_images(str(tmp_path), 4, 4, 8)
