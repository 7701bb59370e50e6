"""A training with the Trainer of transformers whose weights, rate, schedule and clipping are prepared in one call.

The model is a small GPT-2 with random weights; what is asked of the training stands in its arguments as always.

    pip install ".[zoo]" accelerate
    python examples/trainer_run.py
"""

import tempfile

import torch
import transformers

from wellposed.integrations.transformers import prepare_


def sentences(count: int, length: int = 16, words: int = 32) -> list[dict[str, torch.Tensor]]:
    """Return rows in which a word decides most of the next one."""
    following = torch.randperm(words)
    rows = [torch.randint(0, words, (count,))]
    for _ in range(length - 1):
        noise = torch.randint(0, words, (count,))
        rows.append(torch.where(torch.rand(count) < 0.8, following[rows[-1]], noise))
    return [{"input_ids": ids, "labels": ids} for ids in torch.stack(rows, 1)]


def trainer(folder: str, data: list[dict[str, torch.Tensor]]) -> transformers.Trainer:
    transformers.set_seed(0)
    config = transformers.GPT2Config(
        vocab_size=32, n_positions=16, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    arguments = transformers.TrainingArguments(
        folder, max_steps=40, per_device_train_batch_size=16, report_to="none", save_strategy="no", disable_tqdm=True,
        logging_strategy="no", use_cpu=True,
    )  # fmt: skip
    return transformers.Trainer(transformers.GPT2LMHeadModel(config), arguments, train_dataset=data)


torch.manual_seed(0)
data = sentences(512)
with tempfile.TemporaryDirectory() as folder:
    usual = trainer(folder, data)
    print(f"as it comes, at the usual rate: loss {usual.train().training_loss:.2f}")
    prepared = trainer(folder, data)
    start = prepare_(prepared, page=None, progress=False)
    print(f"prepared, at rate {start.rate.value:.3g}: loss {prepared.train().training_loss:.2f}")
