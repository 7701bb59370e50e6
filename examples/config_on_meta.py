"""A Hugging Face config: planned before a single weight exists, then brought to life.

A plan needs shapes alone, so a model of any size can be planned on PyTorch's meta device, which allocates nothing.
Nothing is downloaded: the config is written here, and weights are random.

    pip install ".[zoo]"
    python examples/config_on_meta.py
"""

import tempfile
from pathlib import Path

import torch

import wellposed as wp
from wellposed import zoo

# As `import transformers`, and it copes with a torchvision beside it that was built for another torch.
transformers = zoo.import_library("transformers")

config = transformers.LlamaConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=176,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    use_cache=False,
)

# 1. The model without memory: every parameter has a shape and no values.
with torch.device("meta"):
    model = transformers.LlamaForCausalLM(config)
count = sum(parameter.numel() for parameter in model.parameters())
print(f"{count:,} parameters on {model.device}")

# 2. The plan. Integer inputs are taken as tokens, independent and equally likely; wp.Input.tokens says otherwise.
ids = torch.zeros(2, 32, dtype=torch.long)
plan = wp.plan(model, input_ids=ids, seed=0)
for name in ("model.embed_tokens", "model.layers.0.self_attn.q_proj", "model.layers.3.mlp.down_proj", "lm_head"):
    prescription = plan.prescriptions[f"{name}.weight"]
    print(f"{name:32} {prescription.how}")

# 3. A plan is plain JSON, keyed by parameter name: make it here, write it on another machine.
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "plan.json"
    plan.save(path)
    print(f"saved: {path.stat().st_size / 1024:.0f} KiB of JSON")
    plan = wp.Plan.load(path)

# 4. Bring the model to life. Parameters are drawn by the plan; buffers, such as the frequencies of rotary embeddings,
#    are restored by the modules' own means.
plan.apply_(model, materialize="cpu")
print(f"now on {model.device}")

# 5. The same seed gives the same bits, however the model came to be.
again = transformers.LlamaForCausalLM(config)
plan.apply_(again)
assert all(map(torch.equal, model.parameters(), again.parameters()))

# 6. What was planned on meta holds in the running model.
print(wp.check(model, input_ids=ids, plan=plan, draws=4).summary())
