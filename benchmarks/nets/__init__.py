"""Networks that benchmarks and experiments share: random weights, nothing downloaded, sizes that a laptop can run."""
