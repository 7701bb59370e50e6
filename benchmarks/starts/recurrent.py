"""Trainings of recurrent nets, causal convolutions and bags of words."""

from __future__ import annotations

from functools import partial

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from starts.data import BYTES, WORDS, characters, reviews
from starts.task import Batch, Data, Task, classify, next_token, windows


class Remember(nn.Module):
    """A recurrent net whose last state tells what was asked."""

    def __init__(self, body: nn.Module, width: int, outputs: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the state after the last step says, [batch, outputs], of [batch, steps, features]."""
        return self.head(self.body(x)[0][:, -1])


def recall(length: int = 24) -> Data:
    """Return sequences with a symbol at the first step, noise after it, and the symbol."""

    def make(generator: Generator) -> Batch:
        symbol = torch.randint(8, (32,), generator=generator)
        x = 0.1 * torch.randn(32, length, 8, generator=generator)
        x[:, 0] += functional.one_hot(symbol, 8)
        return x, symbol

    return Data.made(make)


def adding(length: int = 24) -> Data:
    """Return sequences of numbers of which two are marked, and the sum of these."""

    def make(generator: Generator) -> Batch:
        numbers = torch.rand(32, length, generator=generator) * 2 - 1
        marks = torch.zeros(32, length)
        half = length // 2
        first = torch.randint(half, (32,), generator=generator)
        second = half + torch.randint(half, (32,), generator=generator)
        rows = torch.arange(32)
        marks[rows, first] = marks[rows, second] = 1
        return torch.stack([numbers, marks], -1), (numbers * marks).sum(1, keepdim=True)

    return Data.made(make)


def squared(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean squared error."""
    return functional.mse_loss(model(batch[0]), batch[1])


class Characters(nn.Module):
    """A recurrent language model of bytes."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU], width: int = 64, layers: int = 1) -> None:
        super().__init__()
        self.tokens, self.body = nn.Embedding(BYTES, 32), kind(32, width, layers, batch_first=True)
        self.head = nn.Linear(width, BYTES)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits, [batch, positions, bytes]."""
        return self.head(self.body(self.tokens(ids))[0])


class GatedLayer(nn.Module):
    """A causal dilated convolution with a gate, a way on and a way out."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.reach = dilation
        self.mix, self.on = nn.Conv1d(width, 2 * width, 2, dilation=dilation), nn.Conv1d(width, width, 1)
        self.out = nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the next x, [batch, width, positions], and what goes out."""
        signal, gate = self.mix(functional.pad(x, (self.reach, 0))).chunk(2, 1)
        inside = signal.tanh() * gate.sigmoid()
        return x + self.on(inside), self.out(inside)


class WaveNet(nn.Module):
    """WaveNet on bytes: the sum of what goes out of all layers is read."""

    def __init__(self, width: int = 32, layers: int = 6) -> None:
        super().__init__()
        self.tokens = nn.Embedding(BYTES, width)
        self.layers = nn.ModuleList(GatedLayer(width, 2 ** (layer % 5)) for layer in range(layers))
        self.hidden, self.head = nn.Conv1d(width, width, 1), nn.Conv1d(width, BYTES, 1)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits, [batch, positions, bytes]."""
        x = self.tokens(ids).transpose(1, 2)
        total = torch.zeros_like(x)
        for layer in self.layers:
            x, out = layer(x)
            total = total + out
        return self.head(self.hidden(total.relu()).relu()).transpose(1, 2)


class Bag(nn.Module):
    """The mean of the words' vectors, and a perceptron."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width, padding_idx=0)
        self.hidden, self.head = nn.Linear(width, width), nn.Linear(width, 2)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits, [batch, 2], of words, [batch, positions]."""
        return self.head(self.hidden(self.words(ids).mean(1)).relu())


class TextCNN(nn.Module):
    """Convolutions of three lengths over the words' vectors, the largest of each, dropout."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width, padding_idx=0)
        self.convs = nn.ModuleList(nn.Conv1d(width, 24, length) for length in (3, 4, 5))
        self.dropout, self.head = nn.Dropout(0.3), nn.Linear(72, 2)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits, [batch, 2], of words, [batch, positions]."""
        x = self.words(ids).transpose(1, 2)
        return self.head(self.dropout(torch.cat([conv(x).relu().amax(2) for conv in self.convs], 1)))


TASKS = (
    Task(
        "rnn_recall", "memory", "tanh RNN, recall",
        lambda: Remember(nn.RNN(8, 64, batch_first=True), 64, 8), recall, classify, -6, steps=400, clip=1.0,
    ),
    Task(
        "gru_adding", "memory", "GRU, adding problem",
        lambda: Remember(nn.GRU(2, 48, batch_first=True), 48, 1), adding, squared, -6, steps=400, clip=1.0,
    ),
    Task(
        "lstm", "recurrent language", "LSTM, characters", partial(Characters, nn.LSTM), partial(characters, 16),
        next_token, -5, steps=300, clip=1.0, inputs=windows,
    ),
    Task(
        "gru", "recurrent language", "GRU, two layers, characters", partial(Characters, nn.GRU, 48, 2),
        partial(characters, 16), next_token, -5, steps=200, clip=1.0, inputs=windows,
    ),
    Task("wavenet", "sequences", "WaveNet, characters", WaveNet, characters, next_token, -6, steps=250, inputs=windows),
    Task("bag", "text classification", "reviews, bag of words", Bag, reviews, classify, -5, steps=200),
    Task("text_cnn", "text classification", "reviews, convolutions", TextCNN, reviews, classify, -7, steps=120),
)  # fmt: skip
