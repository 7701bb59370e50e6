"""Context: what a rule may ask while a pass runs: the node, its arguments, the weights, samples."""
