"""One node of the forward pass: from the states of its operands to those of its results.

Results whose values are known have their state. Those of other nodes come from numbers that are computed of parameters
alone, from draws, from the operator's rule, or from samples of its operands, whichever tells them best.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from wellposed.errors import RuleError, WellposedError
from wellposed.graphs import Node
from wellposed.operators.norms import NORMS
from wellposed.operators.spectral import holds_for_complex, is_complex
from wellposed.signals.context.arguments import given_state, known_state, resolve, state_of
from wellposed.signals.context.call import FAILED, Call, Pass, PostponedState, Unknown
from wellposed.signals.distributions.attention import Softmax
from wellposed.signals.distributions.blocks import concatenate
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.spread import STEADY
from wellposed.signals.distributions.state import Standardised, State, weakest
from wellposed.signals.passes.validation import checked
from wellposed.signals.registry import RULES, Rule
from wellposed.signals.sampling.constant_folding import held
from wellposed.signals.sampling.drawn_nodes import is_drawn
from wellposed.signals.sampling.joint_draws import draw_together
from wellposed.signals.sampling.joint_sources import can_run, meets_in_loop
from wellposed.signals.sampling.samples import sample_operator
from wellposed.signals.sampling.states_of_draws import states_of_draws
from wellposed.signals.signal import Tag
from wellposed.signals.weights.shared_weights import remember
from wellposed.structure.meetings import fed_back

FALLS_BACK = True
"""Whether what a rule of this package fails at is run on samples; the tests set it to False, and see the errors."""
_OWN = "wellposed.signals.rules."
_ERRORS = (RuleError, ArithmeticError, AssertionError, IndexError, KeyError, TypeError, ValueError)

Results = tuple[list[State | None], Tag, str]
"""States of a node's results, the tag of their source, and a note on it."""


def apply_rule(run: Pass, node: Node) -> Results:
    """Return the states of a node's results, given those of its operands in ``run``."""
    graph = run.graph
    shapes = [graph.values[out].shape for out in node.outputs if graph.values[out].is_followed]
    if all(out in graph.known for out in node.outputs) or all(0 in shape for shape in shapes):
        return [_given(run, out) for out in node.outputs], "exact", ""
    known = held(run, node) if node.outputs and node.outputs[0] in run.weights.fixed else None
    return _followed(run, node) if known is None else (*known, "")


def _followed(run: Pass, node: Node) -> Results:
    """Return the states of results that signals are made into: of draws, or by the node's rule."""
    ruled = _by_rule(run, node) if meets_in_loop(run, node) else None  # which chooses the weight's scale
    if is_drawn(run, node) and draw_together(run, node):
        drawn = states_of_draws(run, node)
        # of a signal that does not depend on the weight the rule tells more than draws
        return (drawn, "sampled", "") if ruled is None or node.index in fed_back(run.graph) else ruled
    return ruled or _by_rule(run, node)


def _given(run: Pass, out: int) -> State | None:
    """Return the state of an output whose values are known or which has no elements; None for indices, masks and
    postponed states, which it records in ``run.postponed``.
    """
    info = run.graph.values[out]
    if not info.is_followed:
        return None
    if out not in run.graph.known:
        return make_state(info.shape, 0.0, 0.0)
    make = partial(given_state, run, out, run.root())
    if not run.postpones:
        return make()
    run.postponed[out] = PostponedState("exact", 0, STEADY, make)
    return None


def _by_rule(run: Pass, node: Node) -> Results:
    """Return the states that the operator's rule makes of its operands' states, or else those that samples show."""
    call, rule = Call(run, node), _rule_of(run, node)
    pairs = rule is None or rule.pairs or rule.elementwise
    args = tuple(resolve(run, a, pairs=pairs) for a in node.args)
    kwargs = {key: resolve(run, a, pairs=pairs) for key, a in node.kwargs.items()}
    try:
        results = None if rule is None else _checked_results(call, rule, args, kwargs)
    except _ERRORS as error:
        if rule is None or run.strict or not _is_ours(rule, error):
            raise
        return _by_samples(call, args, kwargs, f"{FAILED} ({error}): run on samples")
    if rule is None or results is None:
        return _by_samples(call, args, kwargs)
    if run.weights.repeated:
        remember(call, rule, args, kwargs, results)
    return results, rule.tag, ""


def _is_ours(rule: Rule, error: Exception) -> bool:
    """Whether an error is the fault of a rule of this package, and not of a user's model or options."""
    told = isinstance(error, WellposedError) and not isinstance(error, RuleError)
    return FALLS_BACK and not told and rule.function.__module__.startswith(_OWN)


def _checked_results(
    call: Call, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[State | None] | None:
    """Return what a rule makes of its arguments, once it has been checked; None where it covers no such case."""
    results = _call_rule(call, rule, args, kwargs)
    if results is None:
        return None
    if not call.independent:  # AutoInit's own assumptions follow no spectrum
        results = [None if result is None else call.run.weights.led_back(call.node, result) for result in results]
    return _valid(call, rule, rule.tag, _states_in((args, kwargs)), results)


def _by_samples(
    call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], note: str = "no rule: run on samples"
) -> Results:
    """Return what an operator makes of draws of its operands: of joint ones, else of each operand's own.

    Where it cannot be run, its results are assumed to have the moments of its first operand.
    """
    run, node = call.run, call.node
    if can_run(run, node) and draw_together(run, node):
        return states_of_draws(run, node), "sampled", note
    incoming, results = _states_in((args, kwargs)), sample_operator(run.graph, node, args, kwargs, run.root)
    if results is None:
        said = note.removesuffix(": run on samples")
        note = f"{said}, and it cannot be run on samples: assumed to pass on its input's signal"
        return _assumed(call, incoming), "assumed", note
    return _valid(call, None, "sampled", incoming, results), "sampled", note


def _valid(
    call: Call, rule: Rule | None, tag: Tag, incoming: Sequence[State], results: Sequence[State | None]
) -> list[State | None]:
    """Return results with the weakest tag of their source and of the states that enter, once they are `checked`."""
    weak = weakest(tag, *(s.tag for s in incoming))
    tailed = [_with_tails(call.node, rule, weak, result) for result in results]
    weak = "assumed" if weak == "heavy" else weak
    return [checked(call, rule, i, result, weak) for i, result in enumerate(tailed)]


def _with_tails(node: Node, rule: Rule | None, weak: Tag, result: State | None) -> State | None:
    """Return a result, tagged heavy where an operand is (``weak``): heavy tails end at bounded functions, norms and
    softmax.
    """
    if result is None or weak != "heavy" or (rule is not None and rule.elementwise):
        return result
    ends = node.op in NORMS or isinstance(result.origin, Standardised) or isinstance(result.attention, Softmax)
    if rule is not None and result.tag != "heavy" and (ends or result.function is not None):
        return result
    return result.amended(tag="assumed" if ends else "heavy")


def _rule_of(run: Pass, node: Node) -> Rule | None:
    """Return the operator's rule; None for complex operands where the rule does not hold for these, or one has no
    state.
    """
    rule = RULES.get(node.op)
    if rule is None or not is_complex(run.graph, node):
        return rule
    told = all(state_of(run, v) is not None for v in node.inputs if run.graph.values[v].dtype.is_complex)
    return rule if told and holds_for_complex(run.graph, node) else None


def follow_condition(run: Pass, node: Node) -> None:
    """Record in the pass the state of a condition on signals, for `where` and masks; other conditions stay unknown."""
    if is_drawn(run, node) and draw_together(run, node):
        run.states.update(zip(node.outputs, states_of_draws(run, node), strict=True))
        return
    rule = RULES.get(node.op)
    if rule is None or len(node.outputs) != 1 or node.outputs[0] in run.graph.known:
        return
    state = _condition(Call(run, node), rule)
    if state is not None:
        run.states[node.outputs[0]] = state


def _condition(call: Call, rule: Rule) -> State | None:
    """Return the state of a condition by its rule; None where it depends on no signal that is followed."""
    args = tuple(map(partial(resolve, call.run), call.node.args))
    if not rule.conditions:  # views of a condition: its state stands for it
        args = tuple(a.state if _is_condition(a) else a for a in args)
        if not (args and isinstance(args[0], State)):
            return None
    followed = any(isinstance(a, State | Unknown) if rule.conditions else isinstance(a, State) for a in args)
    if call.node.inputs and not followed:
        return None
    result = rule.function(call, *args, **{key: resolve(call.run, a) for key, a in call.node.kwargs.items()})
    if not isinstance(result, State):
        return None
    tag = weakest(rule.tag, result.tag)
    return checked(call, rule, 0, result, "assumed" if tag == "heavy" else tag)


def _is_condition(argument: Any) -> bool:
    return isinstance(argument, Unknown) and argument.state is not None


def _states_in(tree: Any) -> list[State]:
    """Return the states among arguments, lists and keyword arguments included."""
    found: list[State] = []
    for item in tree.values() if isinstance(tree, dict) else tree:
        if isinstance(item, State):
            found.append(item)
        elif isinstance(item, (dict, list, tuple)):
            found += _states_in(item)
    return found


def _call_rule(call: Call, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[State | None] | None:
    """Return what a rule makes of its arguments, one entry for each result; None where it covers no such case."""
    given = args[0] if args else None
    if isinstance(given, Unknown) and given.state is None and not _states_in((args, kwargs)):
        return None  # integers whose values the inputs decide: there is no signal to follow
    if not rule.tensors and isinstance(given, Unknown | torch.Tensor):
        args = (_as_state(call, given), *args[1:])
    first = next((a for a in args if isinstance(a, State) and a.blocks), None)
    if rule.blockwise and first is not None and not call.independent:
        result: Any = _blockwise(call, rule, args, kwargs, first)
        if result is not None:
            return [result]
    return _one_for_each(rule.function(call, *args, **kwargs), len(call.node.outputs))


def _one_for_each(result: Any, count: int) -> list[State | None] | None:
    """Return what a rule has given as one entry for each of ``count`` results; None where it has given nothing."""
    if result is None:
        return None
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    return [*results, *[None] * (count - len(results))][:count]


def _as_state(call: Call, given: Unknown | torch.Tensor) -> Unknown | State:
    """Return the state of a known tensor, or of a condition that has one."""
    if isinstance(given, torch.Tensor):
        return known_state(given.to(torch.float64), call.root())
    return given if given.state is None else given.state


def _blockwise(call: Call, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any], first: State) -> State | None:
    """Return the concatenation of a rule's results for each block of its arguments; None where other varying arguments
    have no such blocks, or the rule covers no such case. Results are cached by operator and block.

    ``first`` is the first argument that is a concatenation.
    """
    parts = _by_blocks(args, first)
    if parts is None:
        return None
    results, memo = [], call.run.memo
    # a block that meets the same operator again (dense blocks) has been worked out before
    varying = [i for i, a in enumerate(args) if isinstance(a, State) and a.blocks]
    shared = tuple([None if i in varying else _memo_key(a) for i, a in enumerate(args)])
    common = (call.node.op, shared, tuple([(k, _memo_key(v)) for k, v in kwargs.items()]))
    for part in parts:
        key = (common, *[_memo_key(part[i]) for i in varying])
        if key not in memo:
            memo[key] = (rule.function(call, *part, **kwargs), part)
        result = memo[key][0]
        if not isinstance(result, State):
            return None
        results.append(result)
    return concatenate(results, first.blocks.axis)


def _by_blocks(args: tuple[Any, ...], first: State) -> list[tuple[Any, ...]] | None:
    """Return the arguments for each block of ``first``; None where another one varies, and not by such blocks."""
    axis, widths = first.blocks.axis, [block.shape[first.blocks.axis] for block in first.blocks]
    columns: list[Sequence[Any]] = []
    for a in args:
        if isinstance(a, State) and a.blocks:
            if a.blocks.axis != axis or [block.shape[axis] for block in a.blocks] != widths:
                return None
            columns.append(a.blocks)
        elif isinstance(a, State) and not a.is_constant:
            return None
        else:
            columns.append([a] * len(widths))
    return list(zip(*columns, strict=True))


def _memo_key(argument: Any) -> Any:
    """Return a cache key of an argument: the number of a constant state, the serial of another state, else its repr."""
    if isinstance(argument, State):
        return ("constant", float(argument.mean.ravel()[0])) if argument.is_constant else argument.serial
    return repr(argument)


def _assumed(call: Call, incoming: list[State]) -> list[State | None]:
    """Return results with the moments of the first of the ``incoming`` states, or of N(0, 1)."""
    source = next(iter(incoming), None)
    results: list[State | None] = []
    for index, out in enumerate(call.node.outputs):
        if not call.graph.values[out].is_followed:
            results.append(None)
            continue
        mean, var = (source.pooled_mean, source.pooled_var) if source is not None else (0.0, 1.0)
        results.append(make_state(call.shape(index), mean, var, tag="assumed", roots=call.root()))
    return results
