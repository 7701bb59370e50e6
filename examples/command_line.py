"""The command line on a file of your own: is the start good, draw a better one, and is it good now?

Each command is printed before what it says. In a shell they are typed as they stand.

    pip install .
    python examples/command_line.py
"""

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

NET = """
from pathlib import Path

import torch
from torch import nn


def build():
    layers = [layer for _ in range(15) for layer in (nn.Linear(32, 32), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(32, 4))
    if Path("weights.pt").exists():
        model.load_state_dict(torch.load("weights.pt"))
    return model, (torch.randn(16, 32),)
"""

with tempfile.TemporaryDirectory() as folder:
    Path(folder, "net.py").write_text(NET, encoding="utf-8")
    for line in (
        "wellposed report net.py:build -o before.html",
        "wellposed plan net.py:build",
        "wellposed init net.py:build -o weights.pt",
        "wellposed report net.py:build -o after.html",
    ):
        print(f"$ {line}", flush=True)
        subprocess.run([sys.executable, "-m", *shlex.split(line)], cwd=folder, check=True)
        print(flush=True)
