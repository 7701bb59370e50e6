"""The same plan on Ray Train: two workers write their shards of a model and train it for a few steps.

The plan is made once, by the driver, on the meta device, and travels as a file. Ray starts the workers and their
process group; what they do with the model is plain PyTorch.

    pip install ".[zoo]" "ray[train]"
    python examples/large_ray.py
"""

import tempfile
from pathlib import Path

import ray
import torch
import torch.distributed.checkpoint as dcp
from ray import train
from ray.train.torch import TorchTrainer
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard

import wellposed as wp
from wellposed import zoo


def build():
    """Return a small Llama without memory."""
    transformers = zoo.import_library("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=224, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=512, use_cache=False,
    )  # fmt: skip
    with torch.device("meta"):
        return transformers.LlamaForCausalLM(config)


def work(config):
    """Train on one worker."""
    model = build()
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    plan = wp.Plan.load(config["plan"])
    plan.apply_(model, materialize="cpu")
    optimizer = torch.optim.AdamW(plan.param_groups(model, lr=config["lr"], optimizer="adamw"))
    generator = torch.Generator().manual_seed(train.get_context().get_world_rank())
    ids = torch.randint(0, 512, (4, 32), generator=generator)
    for _ in range(config["steps"]):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with tempfile.TemporaryDirectory() as folder:  # every worker saves its part; Ray puts them together
        dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=folder)
        train.report({"loss": loss.item()}, checkpoint=train.Checkpoint.from_directory(folder))


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        wp.plan(build(), input_ids=torch.zeros(1, 32, dtype=torch.long)).save(path)
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        trainer = TorchTrainer(
            work,
            train_loop_config={"plan": str(path), "lr": 3e-3, "steps": 5},
            scaling_config=train.ScalingConfig(num_workers=2, use_gpu=False),
            run_config=train.RunConfig(storage_path=folder, name="llama"),
        )
        result = trainer.fit()
        ray.shutdown()
        size = sum(file.stat().st_size for file in Path(result.checkpoint.path).iterdir())
        print(f"after 5 steps on 2 workers: loss {result.metrics['loss']:.2f}, a checkpoint of {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
