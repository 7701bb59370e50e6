"""Draw the pictures of the guide: ``python scripts/docs_images.py docs/images``.

With ``--report`` also the top of a report as a browser shows it, for which playwright and chromium must be there.
"""

import io
import math
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import wellposed as wp

METHODS = {
    "default": ("model's own", "#d1642a"),
    "kaiming": ("Kaiming", "#7b61c4"),
    "autoinit": ("autoinit", "#1a8f80"),
}
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 400, 230, 46, 44, 36
GREY = "#767676"


class Residual(nn.Module):
    """Pre-activation residual blocks without normalisation."""

    def __init__(self, width=32, blocks=10):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.branches = nn.ModuleList(
            nn.Sequential(
                nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)
            )
            for _ in range(blocks)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, images):
        x = self.stem(images)
        for branch in self.branches:
            x = x + branch(x)
        return self.head(torch.relu(x).mean(dim=(2, 3)))


def plain(further, width=32):
    layers = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU()]
    for _ in range(further):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def curves(model, images, draws):
    """Return by method the predicted and measured log10 second moments of what every weight puts out, in order."""
    graph = wp.trace(model, images)
    found = {}
    for method in METHODS:
        plan = wp.plan(graph, method=method)
        predicted = wp.propagate(graph, weights=plan)
        measured = wp.measure(graph, plan=plan, draws=draws)
        names = [signal.name for signal in predicted if signal.op in ("conv2d.default", "linear.default")]
        found[method] = [
            (math.log10(predicted[name].second_moment), math.log10(measured[name].second_moment)) for name in names
        ]
    return found


def picture(title, found, draws):
    """Return one plot as SVG: lines for predictions, dots for measurements, over the number of the weight."""
    values = [predicted for points in found.values() for predicted, _ in points]
    low, high = math.floor(min(values) - 0.5), math.ceil(max(values) + 0.5)  # room for measurements beside them
    count = len(next(iter(found.values())))
    right, floor = WIDTH - 12, HEIGHT - BOTTOM

    def x(index):
        return LEFT + index * (right - LEFT) / (count - 1)

    def y(value):
        return floor - (value - low) / (high - low) * (floor - TOP)

    what = f"Second moment of what every weight puts out: lines predicted, dots measured over {draws} weight draws."
    style = (
        f"text {{ font: 11px sans-serif; fill: {GREY} }} .title {{ font-weight: bold; font-size: 12px }} "
        f".grid {{ stroke: {GREY}; stroke-opacity: .25 }} .line {{ fill: none; stroke-width: 1.6 }}"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img">',
        f"<title>{title}. {what}</title>",
        f"<style>{style}</style>",
        f'<text x="{LEFT}" y="18" class="title">{title}</text>',
    ]
    for n, (label, colour) in enumerate(METHODS.values()):
        left = LEFT + 110 * n
        parts.append(f'<line x1="{left}" x2="{left + 24}" y1="33" y2="33" stroke="{colour}" class="line"/>')
        parts.append(f'<text x="{left + 30}" y="37">{label}</text>')
    for decade in range(low, high + 1, max(1, (high - low) // 5)):
        height = f"{y(decade):.1f}"
        parts.append(f'<line x1="{LEFT}" x2="{right}" y1="{height}" y2="{height}" class="grid"/>')
        power = f'10<tspan dy="-5" font-size="8">{decade}</tspan>'
        parts.append(f'<text x="{LEFT - 6}" y="{y(decade) + 4:.1f}" text-anchor="end">{power}</text>')
    centre = (LEFT + right) // 2
    label = "weights, from the input to the output"
    parts.append(f'<text x="{centre}" y="{HEIGHT - 10}" text-anchor="middle">{label}</text>')
    for method, points in found.items():
        colour = METHODS[method][1]
        line = " ".join(f"{x(index):.1f},{y(predicted):.1f}" for index, (predicted, _) in enumerate(points))
        parts.append(f'<polyline points="{line}" stroke="{colour}" class="line"/>')
        parts += [
            f'<circle cx="{x(index):.1f}" cy="{y(measured):.1f}" r="2.6" fill="{colour}"/>'
            for index, (_, measured) in enumerate(points)
        ]
    return "\n".join([*parts, "</svg>\n"])


def pictures(draws=16):
    """Return, by file name, second moments over depth of two nets under three methods."""
    torch.manual_seed(0)  # of the models' own weights
    images = torch.zeros(8, 3, 16, 16)
    nets = {
        "plain.svg": ("20 convolutions and ReLUs", plain(19)),
        "residual.svg": ("10 residual blocks, no normalisation", Residual()),
    }
    return {name: picture(title, curves(model, images, draws), draws) for name, (title, model) in nets.items()}


def report(to, width=960, height=1080):
    """Write the first screen of the plain net's report as a small PNG."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    torch.manual_seed(0)
    model, images = plain(9), torch.zeros(8, 3, 16, 16)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder) / "report.html"
        wp.report(model, images, plan=wp.plan(model, images, method="autoinit")).to_html(page_file)
        options = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=options)
        page = browser.new_page(viewport={"width": width, "height": height})
        page.goto(page_file.as_uri())
        page.wait_for_selector("svg")
        shot = Image.open(io.BytesIO(page.screenshot()))
        browser.close()
    shot.convert("P", palette=Image.Palette.ADAPTIVE, colors=64).save(to, optimize=True)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for name, drawn in pictures().items():
        (target / name).write_text(drawn, encoding="utf-8")
    if "--report" in sys.argv[2:]:
        report(target / "report.png")
