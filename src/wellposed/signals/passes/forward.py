"""The forward pass over a graph: from the states of inputs and parameters to those of every tensor."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from wellposed.errors import InputError, OptionError, RuleError, UnsupportedError
from wellposed.graphs import Graph, Node, Ref
from wellposed.graphs.operators import traits
from wellposed.graphs.restore import paused_collection
from wellposed.limit import go_on
from wellposed.operators.norms import NORMS
from wellposed.operators.spectral import holds_for_complex, is_complex
from wellposed.signals.algebra.local_scales import average_of_sizes
from wellposed.signals.context.arguments import given_state, known_state, resolve, state_of, unmade
from wellposed.signals.context.call import OVERFLOW, Call, Drawn, Outcome, Pass, Unknown
from wellposed.signals.context.parameters import Weights
from wellposed.signals.distributions.agreement import disagreement
from wellposed.signals.distributions.blocks import concatenate
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.spread import STEADY
from wellposed.signals.distributions.state import State, weakest
from wellposed.signals.inputs import Input
from wellposed.signals.integration import kernels
from wellposed.signals.registry import RULES, Rule
from wellposed.signals.sampling.constant_folding import held
from wellposed.signals.sampling.joint_sampling import (
    can_run,
    draw_together,
    forget_read,
    is_drawn,
    last_needed,
    states_of_draws,
)
from wellposed.signals.sampling.samples import sample_operator
from wellposed.signals.signal import Signal, Signals, Tag
from wellposed.signals.weights.shared_weights import remember
from wellposed.threads import one_thread

Assumptions = Literal["full", "independent"]


@np.errstate(all="ignore")  # the states show what is not finite
@paused_collection()
@one_thread()
def run_pass(
    graph: Graph,
    weights: Weights,
    *,
    inputs: Input | torch.Tensor | Mapping[str, Input | torch.Tensor] | None = None,
    state: Assumptions = "full",
    strict: bool = False,
    visit: Callable[[Pass, Node], None] | None = None,
    keep: bool = False,
    moments: bool = True,
) -> tuple[Signals, Pass]:
    """`wellposed.propagate` with a given source of weights; also returns the pass, for what it recorded.

    ``visit`` is called before each node whose signals are followed, and may change the states that enter it. With
    ``keep`` the pass holds every state to its end, in place of letting each go after its last use. Without ``moments``
    the signals tell their tags and spreads alone; what was drawn then has a state only where a rule reads it.
    """
    if state not in ("full", "independent"):
        raise OptionError(f"state is 'full' or 'independent', not {state!r}")
    if strict:
        _require_rules(graph)
    run = Pass(graph, weights, describe_inputs(graph, inputs), independent=state == "independent")
    run.postpones = not (keep or moments)
    gone = last_needed(run)
    signals: list[Signal] = []
    # constants together: between the rules' arrays, PyTorch's kernels would be out of the processor's cache each time
    for value in (*graph.inputs, *(value for value in graph.buffers.values() if value in graph.known)):
        entering = state_of(run, value)
        run.dependent[value] = 0 if entering is None else entering.roots
    for node in graph.nodes:
        go_on()
        if any(graph.values[out].is_followed for out in node.outputs):
            if visit is not None:
                visit(run, node)
            _follow(run, node)
            signals.extend(_signals(run, node, moments))
        else:
            _follow_condition(run, node)
        _note_sources(run, node)
        forget_read(run, node)
        for value in gone.get(node.index, ()):
            run.draws.pop(value, None)
            if not keep and value not in graph.inputs:
                run.forget(value)
    return Signals(tuple(signals), "predicted"), run


def _with_scale_parameter(run: Pass, node: Node, out: int, result: State) -> State:
    """Return the state with the parameter that scales it linearly, as long as that scale is still to be chosen."""
    scale_parameter = run.weights.scale_parameters.get(out)
    name = None if scale_parameter is None else scale_parameter.parameter
    composite = None if name is None else run.weights.composites.get(name)
    if name is not None and composite is not None and composite.value == out:
        return run.weights.meet(name, partial(_at_scale, run), result)
    if name is not None:
        entering = (run.state(value) for value in node.inputs)
        open_ = run.weights.is_open(name) or any(s is not None and s.scale_parameter == name for s in entering)
        name = name if open_ and run.weights.known_scale(name) is None else None
    return result if result.scale_parameter == name else result.amended(scale_parameter=name)


def _at_scale(run: Pass, value: int) -> State | None:
    """Return the state of an operand, at the scale that it has been given."""
    found = resolve(run, Ref(value))
    return found if isinstance(found, State) else state_of(run, value)


def _follow(run: Pass, node: Node) -> None:
    """Keep the states of a node's outputs."""
    try:
        results, tag, note = apply_rule(run, node)
    except ArithmeticError as error:
        raise RuleError(
            f"{node.name} ({node.op_name}): the rule failed with {error}; {_entering(run, node)}"
        ) from error
    lost = unmade(run.graph)
    if lost and (unknown := {lost[value]: "any mask or index" for value in node.inputs if value in lost}):
        run.weights.assumed.update(unknown)
        results, tag = [None if result is None else result.amended(tag="assumed") for result in results], "assumed"
    if note or tag != "exact":
        run.outcomes.append(Outcome(node.index, tag, note))
    for out, result in zip(node.outputs, results, strict=True):
        if out not in run.postponed:
            run.states[out] = None if result is None else _with_scale_parameter(run, node, out, result)


def _note_sources(run: Pass, node: Node) -> None:
    """Note what a node's results depend on: behind a weight its draw, of random numbers what their rule says."""
    entering, effects = 0, traits(node.op)
    if not (node.index in run.weights.weight_at or effects.random or effects.fills):
        for value in node.inputs:
            entering |= run.dependent.get(value, 0)
    for out in node.outputs:
        state = run.outline(out)
        run.dependent[out] = 0 if out in run.graph.known else entering | (0 if state is None else state.roots)


def _require_rules(graph: Graph) -> None:
    without = [
        node
        for node in graph.nodes
        if RULES.get(node.op) is None
        and any(graph.values[out].is_followed for out in node.outputs)
        and not all(out in graph.known for out in node.outputs)
    ]
    require_none(graph, without, "rule", "wellposed.rule")


def require_none(graph: Graph, without: Iterable[Node], what: str, register: str) -> None:
    """Raise `UnsupportedError` with the list of operators of the nodes ``without`` rules, unless there are none."""
    missing: Counter[str] = Counter()
    where: dict[str, str] = {}
    for node in without:
        missing[node.op_name] += 1
        where.setdefault(node.op_name, node.name)
    if missing:
        lines = [f"  {op} ({count} times, first at {where[op]})" for op, count in missing.most_common()]
        raise UnsupportedError(
            f"{len(missing)} operators of {graph.model} have no {what}:\n"
            + "\n".join(lines)
            + f"\nRegister a rule for each with {register}, or leave strict off to have them sampled."
        )


def describe_inputs(
    graph: Graph, inputs: Input | torch.Tensor | Mapping[str, Input | torch.Tensor] | None
) -> dict[int, Input]:
    """Return one descriptor per model input; raises `InputError` for a name that is no input."""
    given: dict[int, Input] = {}
    if isinstance(inputs, Mapping):
        names = {graph.values[value].name: value for value in graph.inputs}
        for name, descriptor in inputs.items():
            if name not in names:
                raise InputError(f"{graph.model} has no input {name!r}; its inputs are {', '.join(map(repr, names))}")
            given[names[name]] = _descriptor(descriptor)
    elif inputs is not None:
        for value in graph.inputs:
            if graph.values[value].is_followed:
                given[value] = _descriptor(inputs)
    for value in graph.inputs:
        info = graph.values[value]
        given.setdefault(value, Input.default(info.shape, info.dtype))
    return given


def _descriptor(given: Input | torch.Tensor) -> Input:
    if isinstance(given, Input):
        return given
    if isinstance(given, torch.Tensor):
        return Input.from_batch(given)
    raise InputError(f"an input is described by wellposed.Input or a batch, not {type(given).__name__}")


def _signals(run: Pass, node: Node, moments: bool) -> Iterator[Signal]:
    """Yield the signals of a node's outputs."""
    for out in node.outputs:
        known, value = run.outline(out), run.graph.values[out]
        if known is None:
            continue
        mean, var, spread = math.nan, math.nan, 0.0
        if (moments or isinstance(known, State)) and (state := run.state(out)) is not None:
            second = state.second_moment
            if moments:
                mean = state.pooled_mean
                var = max(0.0, second - mean * mean)
            if second > 0.0:  # zeros stay zeros
                spread = state.spread.variance + average_of_sizes(state)
        elif known.spread is not STEADY and any(map(torch.Tensor.any, run.draws[out])):  # draws tell no sizes
            spread = known.spread.variance
        yield Signal(
            value.name, node.module, node.op_name, value.shape, mean, var, known.tag, math.sqrt(spread) / math.log(2.0)
        )


def _entering(run: Pass, node: Node) -> str:
    entering = []
    for value in node.inputs:
        state = run.state(value)
        if state is not None:
            entering.append(
                f"{run.graph.values[value].name}: mean {state.pooled_mean:.4g}, variance {state.pooled_var:.4g}"
            )
    return "entering signals: " + ("; ".join(entering) or "none")


def apply_rule(run: Pass, node: Node) -> tuple[list[State | None], Tag, str]:
    """Return what leaves a node given the states that enter it in ``run``, with the tag of its source and a note."""
    graph = run.graph
    shapes = [graph.values[out].shape for out in node.outputs if graph.values[out].is_followed]
    if all(out in graph.known for out in node.outputs) or all(0 in shape for shape in shapes):
        return [_given(run, out) for out in node.outputs], "exact", ""
    known = held(run, node) if node.outputs and node.outputs[0] in run.weights.fixed else None
    if known is not None:
        return *known, ""
    if is_drawn(run, node) and draw_together(run, node):
        return states_of_draws(run, node), "sampled", ""
    return _by_rule(run, node)


def _given(run: Pass, out: int) -> State | None:
    """Return the state of an output whose values are known or that has no elements; None of indices and masks, and of
    values that nothing has asked for yet.
    """
    info = run.graph.values[out]
    if not info.is_followed:
        return None
    if out not in run.graph.known:
        return make_state(info.shape, 0.0, 0.0)
    make = partial(given_state, run, out, run.root())
    if not run.postpones:
        return make()
    run.postponed[out] = Drawn("exact", 0, STEADY, make)
    return None


def _by_rule(run: Pass, node: Node) -> tuple[list[State | None], Tag, str]:
    """Return what the operator's rule makes of the states that enter it, or what samples of them show."""
    call, rule = Call(run, node), _rule_of(run, node)
    pairs = rule is None or rule.pairs or rule.elementwise
    args = tuple(resolve(run, a, pairs=pairs) for a in node.args)
    kwargs = {key: resolve(run, a, pairs=pairs) for key, a in node.kwargs.items()}
    incoming = _states_in((args, kwargs))
    results = None if rule is None else _call_rule(call, rule, args, kwargs)
    tag, note = (rule.tag, "") if rule is not None else ("sampled", "")
    if results is None:
        rule, tag, note = None, "sampled", "no rule: run on samples"
        if can_run(run, node) and draw_together(run, node):
            return states_of_draws(run, node), tag, note
        results = sample_operator(run.graph, node, args, kwargs, run.root)
    if results is None:
        note = "no rule, and it cannot be run on samples: assumed to pass on its input's signal"
        return _assumed(call, incoming), "assumed", note
    weak = weakest(tag, *(s.tag for s in incoming))
    results = [_with_tails(node, rule, weak, result) for result in results]
    weak = "assumed" if weak == "heavy" else weak
    results = [_checked(call, rule, i, result, weak) for i, result in enumerate(results)]
    if rule is not None and run.weights.repeated:
        remember(call, rule, args, kwargs, results)
    return results, tag, note


def _with_tails(node: Node, rule: Rule | None, weak: Tag, result: State | None) -> State | None:
    """Return a result of what may have heavy tails: these end where a rule says so, at norms, and at a softmax."""
    if result is None or weak != "heavy" or (rule is not None and rule.elementwise):
        return result
    ends = node.op in NORMS or result.standardised is not None or result.softmax is not None
    if rule is not None and result.tag != "heavy" and (ends or result.fn is not None):
        return result
    return result.amended(tag="assumed" if ends else "heavy")


def _rule_of(run: Pass, node: Node) -> Rule | None:
    """Return the operator's rule, None where it says nothing of complex numbers and there are some."""
    rule = RULES.get(node.op)
    if rule is None or not is_complex(run.graph, node) or holds_for_complex(run.graph, node):
        return rule
    return None


def _follow_condition(run: Pass, node: Node) -> None:
    """Compute the state of a condition on signals, for `where` and masks; others are left unknown."""
    rule = RULES.get(node.op)
    if is_drawn(run, node) and draw_together(run, node):
        run.states.update(zip(node.outputs, states_of_draws(run, node), strict=True))
        return
    if rule is None or len(node.outputs) != 1 or node.outputs[0] in run.graph.known:
        return
    args = tuple(map(partial(resolve, run), node.args))
    if not rule.conditions:  # views of a condition: its state stands for it
        args = tuple(a.state if _is_condition(a) else a for a in args)
        if not (args and isinstance(args[0], State)):
            return
    if not node.inputs or any(isinstance(a, State) or _is_condition(a) for a in args):
        result = rule.function(Call(run, node), *args, **{key: resolve(run, a) for key, a in node.kwargs.items()})
        if isinstance(result, State):
            tag = weakest(rule.tag, result.tag)
            tag = "assumed" if tag == "heavy" else tag
            run.states[node.outputs[0]] = _checked(Call(run, node), rule, 0, result, tag)


def _is_condition(argument: Any) -> bool:
    return isinstance(argument, Unknown) and argument.state is not None


def _states_in(tree: Any) -> list[State]:
    found: list[State] = []
    for item in tree.values() if isinstance(tree, dict) else tree:
        if isinstance(item, State):
            found.append(item)
        elif isinstance(item, (dict, list, tuple)):
            found += _states_in(item)
    return found


def _call_rule(call: Call, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[State | None] | None:
    given = args[0] if args else None
    if isinstance(given, Unknown) and given.state is not None and not rule.tensors:
        args = (given.state, *args[1:])
    elif isinstance(given, Unknown) and given.state is None and not _states_in((args, kwargs)):
        return None  # integers whose values the inputs decide: there is no signal to follow
    if isinstance(given, torch.Tensor) and not rule.tensors:
        args = (known_state(given.to(torch.float64), call.root()), *args[1:])
    first = next((a for a in args if isinstance(a, State) and a.blocks), None)
    if rule.blockwise and first is not None and not call.independent:
        result: Any = _blockwise(call, rule, args, kwargs, first)
        if result is not None:
            return [result]
    result = rule.function(call, *args, **kwargs)
    if result is None:
        return None
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    count = len(call.node.outputs)
    return [*results, *[None] * (count - len(results))][:count]


def _blockwise(call: Call, rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any], first: State) -> State | None:
    parts = _by_blocks(args, first)
    if parts is None:
        return None
    results = []
    for part in parts:
        # a block that meets the same operator again (dense blocks) has been worked out before
        key = (call.node.op, tuple(_memo_key(a) for a in part), tuple((k, _memo_key(v)) for k, v in kwargs.items()))
        if key not in call.run.memo:
            call.run.memo[key] = (rule.function(call, *part, **kwargs), part)
        result = call.run.memo[key][0]
        if not isinstance(result, State):
            return None
        results.append(result)
    return concatenate(results, first.block_axis)


def _by_blocks(args: tuple[Any, ...], first: State) -> list[tuple[Any, ...]] | None:
    """Return the arguments for each block; None where one that varies has other blocks than ``first``, or none."""
    axis, widths = first.block_axis, [block.shape[first.block_axis] for block in first.blocks]
    columns: list[Sequence[Any]] = []
    for a in args:
        if isinstance(a, State) and a.blocks:
            if a.block_axis != axis or [block.shape[axis] for block in a.blocks] != widths:
                return None
            columns.append(a.blocks)
        elif isinstance(a, State) and not a.is_constant:
            return None
        else:
            columns.append([a] * len(widths))
    return list(zip(*columns, strict=True))


def _memo_key(argument: Any) -> Any:
    if isinstance(argument, State):
        return ("constant", float(argument.mean.ravel()[0])) if argument.is_constant else argument.serial
    return repr(argument)


def _checked(call: Call, rule: Rule | None, index: int, result: State | None, tag: Tag) -> State | None:
    node = call.node
    value = call.graph.values[node.outputs[index]]
    if result is None:
        return make_state(value.shape, 0.0, 0.0, tag="assumed") if value.is_followed else None
    shape = result.shape
    if shape != value.shape:
        raise RuleError(f"{_who(node, rule)} gave a signal of shape {shape}, the operator {value.shape}")
    least, most = kernels.extent(result.var)
    if not (least >= 0.0 and most <= OVERFLOW and math.isfinite(sum(kernels.extent(result.mean)))):
        result, tag = _repaired(call, _who(node, rule), result, tag)
    wrong = disagreement(result)
    if wrong is not None:
        raise RuleError(f"{_who(node, rule)} gave a signal whose parts disagree: it does not hold that {wrong}")
    tag = weakest(tag, result.tag)
    return result if result.tag == tag else result.amended(tag=tag)


def _who(node: Node, rule: Rule | None) -> str:
    return f"{node.name} ({node.op_name})" + (f": rule {rule.function.__name__!r}" if rule else "")


def _repaired(call: Call, who: str, result: State, tag: Tag) -> tuple[State, Tag]:
    """Return a result whose moments later rules can take, where the model itself overflows or a variance is -0 but for
    rounding; raises `RuleError` where it is the rule that is wrong.
    """
    mean, var = result.mean, result.var
    if not (np.isfinite(mean).all() and np.isfinite(var).all()) or (var.size and float(var.max()) > OVERFLOW):
        if (np.isnan(mean).any() or np.isnan(var).any()) and not _overflowing(call.run, call.node):
            raise RuleError(f"{who} gave NaN; {_entering(call.run, call.node)}")
        # the figure says that the model overflows here, and stays a number
        root = OVERFLOW**0.5
        mean = np.nan_to_num(mean, nan=0.0, posinf=root, neginf=-root).clip(-root, root)
        var = np.nan_to_num(var, nan=OVERFLOW, posinf=OVERFLOW).clip(None, OVERFLOW)
        corr = np.nan_to_num(result.corr, nan=0.0)
        result = result.with_moments(mean=mean, var=var, corr=corr)
        tag = weakest(tag, "approximate")
    least = float(var.min(initial=0.0))
    if least < 0.0:
        if least < -1e-9 * max(float(np.abs(var).max()), float(np.square(mean).max()), 1e-300):
            raise RuleError(f"{who} gave a negative variance ({least:.4g}); {_entering(call.run, call.node)}")
        result = result.amended(var=np.maximum(var, 0.0))
    return result, tag


def _overflowing(run: Pass, node: Node) -> bool:
    states = [run.state(value) for value in node.inputs]
    return any(s is not None and not s.second_moment < OVERFLOW**0.5 for s in states)


def _assumed(call: Call, incoming: list[State]) -> list[State | None]:
    source = next(iter(incoming), None)
    results: list[State | None] = []
    for index, out in enumerate(call.node.outputs):
        if not call.graph.values[out].is_followed:
            results.append(None)
            continue
        mean, var = (source.pooled_mean, source.pooled_var) if source is not None else (0.0, 1.0)
        results.append(make_state(call.shape(index), mean, var, tag="assumed", roots=call.root()))
    return results
