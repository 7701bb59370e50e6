"""Headless Chromium, and how long a report takes to open in it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
READY = "document.documentElement.dataset.ready === 'true'"


def seconds_to_open(context: Any, path: Path) -> float:
    """Return what the browser's thread computes until all is drawn; a clock would see the machine's other work too."""
    page = context.new_page()
    session = context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(path.as_uri())
    while not page.evaluate(READY):  # the page forbids the evaluation that `wait_for_function` needs
        page.wait_for_timeout(5)
    metrics = {item["name"]: item["value"] for item in session.send("Performance.getMetrics")["metrics"]}
    page.close()
    return float(metrics["TaskDuration"])
