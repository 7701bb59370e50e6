"""What a valid genome is: written for the tests, which hold what evolution makes against it."""

from experiments.errors import ExperimentError
from experiments.search.genomes import INPUT, OUTPUT
from experiments.search.space import Choice


def problem(genome, space):
    """Return why a genome is not valid in a space, in a few words; nothing where it is."""
    marks = [node.mark for node in genome.nodes]
    if len(set(marks)) < len(marks) or len(set(genome.edges)) < len(genome.edges):
        return "a node or an edge comes twice"
    if len(marks) > space.largest:
        return "too many nodes"
    if not {end for edge in genome.edges for end in edge} <= {INPUT, OUTPUT, *marks}:
        return "an edge leads to no node"
    try:
        genome.order()
    except ExperimentError:
        return "the edges form a circle"
    if not all(mark in behind(genome, INPUT) and OUTPUT in behind(genome, mark) for mark in (INPUT, *marks)):
        return "a node lies on no way from input to output"
    for node in genome.nodes:
        if node.kind not in space.kinds or not fits(node.genes, space.kinds[node.kind]):
            return f"hyperparameters of {node.kind} out of range"
    return "" if fits(genome.genes, space.own) else "hyperparameters out of range"


def behind(genome, mark):
    """Return all that can be reached from a node along the edges, itself included."""
    found, waiting = {mark}, [mark]
    while waiting:
        here = waiting.pop()
        fresh = {target for source, target in genome.edges if source == here} - found
        found |= fresh
        waiting += fresh
    return found


def fits(values, genes):
    """Return whether hyperparameters are those of a kind, each one of its values."""
    return values.keys() == genes.keys() and all(holds(gene, values[name]) for name, gene in genes.items())


def holds(gene, value):
    """Return whether a value is one of a hyperparameter's."""
    if isinstance(gene, Choice):
        return value in gene.values
    return not isinstance(value, str) and gene.low <= value <= gene.high
