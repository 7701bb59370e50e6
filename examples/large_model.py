"""A Llama of 70 billion parameters: planned before a weight exists, and written into shards by several processes.

A plan needs shapes alone, so the largest model is planned on the meta device in seconds. Under FSDP2 every process
then draws the rows that it holds, straight into their memory and dtype; the numbers are those of a single process,
whatever the number of ranks. Here a smaller model is written, saved as a distributed checkpoint, compared with one
process bit for bit, and trained for a step.

    pip install ".[zoo]"
    python examples/large_model.py
    torchrun --nproc-per-node 4 examples/large_model.py --size tenth --checkpoint FOLDER
"""

import argparse
import os
import resource
import tempfile
import time
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed import run
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard

import wellposed as wp
from wellposed import zoo
from wellposed.plans import draw

transformers = zoo.import_library("transformers")

SIZES = {  # width, inside the MLP, layers, heads, heads of keys and values, vocabulary
    "70b": (8192, 28672, 80, 64, 8, 128256),
    "tenth": (4096, 14336, 28, 32, 8, 128256),
    "small": (64, 224, 2, 4, 2, 512),
}


def on_meta(size):
    """Return the model without memory, in bfloat16, and its plan."""
    width, inside, layers, heads, shared, vocabulary = SIZES[size]
    config = transformers.LlamaConfig(
        hidden_size=width, intermediate_size=inside, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=shared, vocab_size=vocabulary, rope_theta=5e5, use_cache=False, dtype=torch.bfloat16,
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    return model, wp.plan(model, input_ids=torch.zeros(1, 128, dtype=torch.long))


def write(size, folder):
    """Shard a model over the ranks, write its plan, save it, compare it, and take a step."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model, plan = on_meta(size)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)

    # Allocates the shards on this rank's device, restores buffers, and draws what the rank holds.
    start = time.process_time()
    plan.apply_(model, materialize="cpu")
    spent = time.process_time() - start
    held = sum(p.to_local().nbytes for p in model.parameters())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    for turn in range(ranks):
        dist.barrier()
        if turn == rank:
            print(f"rank {rank} of {ranks}: drew {held / 1e9:.3g} GB in {spent:.2g} s, {peak / 1e9:.3g} GB at most")

    # The ranks save together; any number of them can load it.
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=folder)

    # What was saved is what one process draws: of the large model, a few parameters.
    if rank == 0:
        names = [n for n, p in plan.prescriptions.items() if p.action == "write"][:: 1 if size == "small" else 40]
        saved = {name: torch.empty(plan.prescriptions[name].shape, dtype=torch.bfloat16) for name in names}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that one process loads alone, as it is meant to
            dcp.load({"model": saved}, checkpoint_id=folder, no_dist=True)
        for name, tensor in saved.items():
            alone = plan.model_copy(update={"prescriptions": {name: plan.prescriptions[name]}})
            assert torch.equal(tensor, draw(alone)[name].bfloat16()), name
        print(f"{len(saved)} parameters of the checkpoint are those of one process, bit for bit")

    if size == "small":
        groups = plan.param_groups(model, lr=3e-4, optimizer="adamw", weight_decay=0.1)
        optimizer = torch.optim.AdamW(groups)
        ids = torch.randint(0, SIZES[size][-1], (2, 32), generator=torch.Generator().manual_seed(rank))
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"one step of AdamW in {len(groups)} groups, from a loss of {loss.item():.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="small", help="what is written under torchrun")
    parser.add_argument("--checkpoint", help="where it is saved; by default in a folder that is removed")
    options = parser.parse_args()
    if "RANK" in os.environ:  # one of torchrun's processes, which share a folder
        with tempfile.TemporaryDirectory() as own:
            dist.init_process_group("gloo")
            shared = [options.checkpoint or own]
            dist.broadcast_object_list(shared, src=0)
            write(options.size, shared[0])
            dist.barrier()  # the folder of rank 0 is removed behind this
            dist.destroy_process_group()
        return

    start = time.process_time()
    model, plan = on_meta("70b")
    count = sum(parameter.numel() for parameter in model.parameters())
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{count:,} parameters planned in {time.process_time() - start:.1f} s, with {gigabytes:.1f} GB of memory")
    print(plan)

    # torchrun, in this process, which has torch already
    folder = ["--checkpoint", options.checkpoint] if options.checkpoint else []
    run.main(["--standalone", "--nproc-per-node", "2", __file__, "--size", options.size, *folder])


if __name__ == "__main__":
    main()
