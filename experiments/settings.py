"""Settings: one YAML for each experiment and scale, composed by Hydra, with overrides from the command line."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from experiments.errors import ExperimentError
from experiments.registry import SCALES, Settings

FOLDER = Path(__file__).parent / "conf"


def load_settings(name: str, scale: str, overrides: Sequence[str] = ()) -> Settings:
    """Return the settings of an experiment at a scale: ``conf/<name>/<scale>.yaml`` over the defaults it names.

    Args:
        name: the experiment's id.
        scale: smoke, laptop, overnight, gpu or paper.
        overrides: Hydra's, such as ``train.epochs=2``.

    Raises:
        ExperimentError: an unknown scale, one that the experiment has no file for, or an override of no setting.
    """
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException

    if scale not in SCALES:
        raise ExperimentError(f"no scale {scale!r}; known: {', '.join(SCALES)}")
    folder = FOLDER / name.lower()
    if not (folder / f"{scale}.yaml").exists():
        there = [known for known in SCALES if (folder / f"{known}.yaml").exists()]
        raise ExperimentError(f"{name} has no settings at scale {scale!r}; it has {', '.join(there) or 'none'}")
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(folder), version_base="1.3"):
        try:
            return compose(scale, overrides=list(overrides))
        except HydraException as error:
            raise ExperimentError(f"{name} at scale {scale}: {error}") from error


def describe_scale(name: str, scale: str) -> str:
    """Return what the comment at the head of a scale's settings says of it."""
    lines = (FOLDER / name.lower() / f"{scale}.yaml").read_text().splitlines()
    comment = [line.removeprefix("#").strip() for line in takewhile(lambda line: line.startswith("#"), lines)]
    return " ".join(comment)


def as_plain(settings: Settings) -> dict[str, Any]:
    """Return settings as plain JSON values."""
    from omegaconf import OmegaConf

    plain = OmegaConf.to_container(settings, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def from_plain(plain: dict[str, Any]) -> Settings:
    """Return the settings that `as_plain` was given."""
    from omegaconf import OmegaConf

    made = OmegaConf.create(plain)
    OmegaConf.set_struct(made, True)
    return made
