"""The trainings, in two halves: those that a start may be chosen on, and those set aside for judging it."""

from __future__ import annotations

from starts import attention, fields, recurrent, tables, values, vision

TASKS = {task.name: task for task in (*tables.TASKS, *vision.TASKS, *attention.TASKS, *recurrent.TASKS, *fields.TASKS)}
ASIDE = (
    "adult_silu_24", "adult_tanh_24", "adult_resnet", "policy_value", "point_net", "gnn_mean", "cnn_gelu", "convnext",
    "autoencoder", "metric", "mixer", "llama", "mixture", "translator", "rnn_recall", "text_cnn", "pinn_burgers",
    "fourier", "vae", "diffusion",
)  # fmt: skip
"""Tasks that nothing is tuned on; each use for a candidate is noted in ``aside.md``."""
CHOSEN = tuple(name for name in TASKS if name not in ASIDE)
VALUES = {task.name: task for task in values.TASKS}
"""Regressions, beside the halves: what arguments of functions are to have was chosen on them too."""
