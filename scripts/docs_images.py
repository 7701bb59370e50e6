"""Draw the pictures of the guide: ``python scripts/docs_images.py docs/images``.

With ``--report`` also the tops of reports as a browser shows them, and with ``--panels`` a watched training as
TensorBoard does, for which playwright and chromium must be there.
"""

import contextlib
import io
import math
import shutil
import subprocess
import sys
import tempfile
import time
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


class Skip(nn.Module):
    """Two layers beside an identity; with zeros in both, no gradient ever wakes them."""

    def __init__(self, width, zeros=False):
        super().__init__()
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)
        if zeros:
            for parameter in self.parameters():
                nn.init.zeros_(parameter)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def stack(depth, function, scale=1.0, bias=True, width=64):
    """Linear layers with a function after each, with PyTorch's own weights times ``scale``."""
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width, bias=bias), function())]
    model = nn.Sequential(*layers, nn.Linear(width, 10))
    with torch.no_grad():
        for layer in model[::2]:
            layer.weight.mul_(scale)
    return model


def five():
    """Return by name five nets that differ in their starts, and an example for all of them."""
    torch.manual_seed(0)
    example = torch.randn(32, 64)
    good = stack(12, nn.ReLU)
    wp.initialize_(good, example)
    branches = (Skip(64), Skip(64, zeros=True), Skip(64))
    return {
        "good": good,
        "exploding": stack(12, nn.ReLU, scale=6.0),
        "vanishing": stack(16, nn.Tanh, scale=0.5, bias=False),
        "alike": stack(15, nn.ReLU),
        "dead": nn.Sequential(nn.Linear(64, 64), *branches, nn.Linear(64, 10)),
    }, example


SCREENS = {"wide": (1280, 640), "phone": (390, 844)}


def reports(folder):
    """Write the first screens of the reports on `five`, on a desk and on a phone, as small WebP pictures."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    models, example = five()
    with tempfile.TemporaryDirectory() as files, sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=options)
        for name, model in models.items():
            file = wp.report(model, example).to_html(Path(files) / f"{name}.html")
            for screen, (width, height) in SCREENS.items():
                page = browser.new_page(viewport={"width": width, "height": height})
                page.goto(file.as_uri())
                page.wait_for_selector("#plot-backward .scatterlayer")
                shot = Image.open(io.BytesIO(page.screenshot()))
                shot.convert("RGB").save(folder / f"report-{name}-{screen}.webp", quality=60, method=6)
                page.close()
        browser.close()


def gone_wrong(folder):
    """Train a net at a rate that it bears for a while, watched, and write what a callback logs for TensorBoard."""
    from torch.utils.tensorboard import SummaryWriter

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    writer = SummaryWriter(folder)
    shown = [f"{kind}/{layer}{end}" for kind, end in (("signals", ""), ("updates", ".weight")) for layer in (0, 2, 4)]

    def log(figures, step):
        for name, value in figures.items():
            if name in shown:
                writer.add_scalar(name, value, step)

    watcher = wp.integrations.watch(model, optimizer, log, initialize="steady", every=2)
    for step in range(84):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * 1.05**step  # a schedule with its sign the wrong way round
        inputs = torch.randn(64, 20)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1))
        writer.add_scalar("loss", loss.item(), step)
        loss.backward()
        optimizer.step()
    watcher.remove()
    writer.close()


def panels(folder, port=6119):
    """Write what TensorBoard shows of `gone_wrong`, as a small WebP picture."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as runs, sync_playwright() as playwright:
        gone_wrong(runs)
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", runs, "--port", str(port)]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            options = ["--no-sandbox", "--disable-gpu"]
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=options)
            page = browser.new_page(viewport={"width": 1560, "height": 1130})
            for _ in range(120):
                time.sleep(0.5)
                with contextlib.suppress(Exception):  # it takes some seconds to answer
                    page.goto(f"http://localhost:{port}/?darkMode=false#scalars&_smoothingWeight=0")
                    break
            page.wait_for_timeout(4000)
            page.get_by_text("updates", exact=True).click()
            page.wait_for_timeout(4000)
            panel = {"x": 330, "y": 120, "width": 1230, "height": 1010}
            shot = Image.open(io.BytesIO(page.screenshot(clip=panel)))
            browser.close()
        finally:
            server.terminate()
            server.wait()
    shot.convert("RGB").save(folder / "panels.webp", quality=60, method=6)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for name, drawn in pictures().items():
        (target / name).write_text(drawn, encoding="utf-8")
    if "--report" in sys.argv[2:]:
        reports(target)
    if "--panels" in sys.argv[2:]:
        panels(target)
