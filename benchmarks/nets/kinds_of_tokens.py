"""Small nets of tokens, times and places, each for one mechanism of `kinds.py`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from tests.signals.test_picks import Heads
from tests.signals.test_similarity import Attending
from torch import Tensor, nn

WIDTH = 64


class PaddedTexts(nn.Module):
    """Attention of embedded tokens, whose padding is a row of zeros and is not seen."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.heads, self.out = nn.Embedding(30, 32, padding_idx=0), Heads(), nn.Linear(32, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of every token."""
        logits: Tensor = self.out(self.heads(self.embedding(tokens), (tokens != 0)[:, None, None]))
        return logits


def padded_tokens() -> tuple[Tensor]:
    """Return eight texts of 4 to 18 tokens, padded to 24 with zeros."""
    tokens = torch.randint(1, 30, (8, 24), generator=torch.Generator().manual_seed(1))
    return (tokens * (torch.arange(24) < torch.arange(4, 20, 2)[:, None]),)


class Sharp(nn.Module):
    """The mean of attention whose scores are large, over tokens that have much in common."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out, self.scale = nn.Linear(WIDTH, 8), scale

    def forward(self, x: Tensor) -> Tensor:
        """Return what a readout makes of the mean over tokens."""
        x = x + 3.0 * x.mean(1, keepdim=True)
        weights = (self.scale * self.query(x) @ self.key(x).mT / WIDTH**0.5).softmax(-1)
        logits: Tensor = self.out((weights @ self.value(x)).mean(1))
        return logits


class LessTheirMean(Attending):
    """A readout of what samples differ by in their weights of attention."""

    def __init__(self, fall: float) -> None:
        super().__init__(fall)
        self.out = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the readout makes of weights less their mean over samples."""
        weights = super().forward(x)
        logits: Tensor = self.out(weights - weights.mean(0, keepdim=True))
        return logits


class TimesAttended(nn.Module):
    """The mean of attention over the times of a loop without a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.attention = nn.Linear(8, WIDTH), nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.out = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Return what a readout makes of the mean over times."""
        given = self.into(x)
        state, found = torch.zeros_like(given[:, 0]), []
        for time in range(x.shape[1]):
            state = 0.8 * state + 0.6 * given[:, time]
            found.append(state)
        times = torch.stack(found, 1)
        logits: Tensor = self.out(self.attention(times, times, times)[0].mean(1))
        return logits


class Patches(nn.Module):
    """Attention over the patches of a picture, to whose queries and keys sines of their places are added (DETR)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, 4)
        angles = torch.arange(64)[:, None] * torch.exp(-torch.arange(32) / 4)
        self.register_buffer("places", torch.cat([angles.sin(), angles.cos()], -1))
        self.attention, self.out = nn.MultiheadAttention(WIDTH, 4, batch_first=True), nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Return what a readout makes of the mean over patches."""
        values = self.patches(x).flatten(2).transpose(1, 2)
        keys = values + self.places
        logits: Tensor = self.out(self.attention(keys, keys, values)[0].mean(1))
        return logits


class Accumulated(nn.Module):
    """The mean over times of products that a loop adds up, or of a part of their values."""

    def __init__(self, part: bool) -> None:
        super().__init__()
        self.value, self.key, self.query = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.part, self.out = part, nn.Linear(WIDTH // 2 if part else WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Return what a readout makes of the mean."""
        values, keys = (layer(x + 5.0 * x.mean(1, keepdim=True)) for layer in (self.value, self.key))
        state, found = torch.zeros(len(x), WIDTH), []
        for time in range(x.shape[1]):
            state = 0.5 * state + values[:, time] * keys[:, time]
            found.append(values[:, time, : WIDTH // 2] if self.part else state)
        logits: Tensor = self.out(torch.stack(found, 1).mean(1))
        return logits


class BySpectra(nn.Module):
    """A causal convolution with a filter of 32 taps, as a product of spectra, and its first and last outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.Parameter(torch.randn(16, 32) / 6)
        self.into, self.out = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return a readout of all outputs, the mean of the last ones, and the first ones."""
        signal = self.into(x).transpose(1, 2)
        made = torch.fft.irfft(torch.fft.rfft(signal, 64) * torch.fft.rfft(self.filters, 64), 64)[..., :32]
        return self.out(made.transpose(1, 2)), made[..., -8:].mean(-1), made[..., :8]


class Lifted(nn.Module):
    """Even and odd places, each corrected by the other, put in their places again (lifting), and added to what was."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Conv1d(4, 16, 1), nn.Conv1d(16, 4, 1)
        self.predict, self.update = (nn.Conv1d(16, 16, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Return what a readout makes of the sum."""
        x = self.into(x)
        even, odd = x[..., ::2], x[..., 1::2]
        odd = odd - self.predict(even).tanh()
        even = even + self.update(odd).tanh()
        made = torch.zeros_like(x)
        made[..., ::2], made[..., 1::2] = even, odd
        sums: Tensor = self.out(x + made)
        return sums


class Neighbours(nn.Module):
    """Differences of neighbours behind a rectifier and a moving average."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Conv1d(3, 16, 9, padding=4), nn.Conv1d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return what a readout makes of even places less odd ones."""
        means = F.avg_pool1d(F.relu(self.into(x)), 5, 1)
        differences: Tensor = self.out(means[..., ::2] - means[..., 1::2])
        return differences
