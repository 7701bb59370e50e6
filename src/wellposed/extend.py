"""What authors of rules, backward rules, views, methods and front ends build on; stable where the rooms inside are not.

| to write | take |
|---|---|
| a rule | `rule`, `Call`, `State`, and the arithmetic that keeps correlations, dependence and spread right: `apply_pointwise`, `linear`, `combine`, `multiply`, `averaged`, `normalise`, `reshape`, `permute`, `expand`, `select`, `concatenate`, `make_state` |
| a backward rule | `adjoint`, `Adjoint`, `Term`, `settled`, `times`, `reduced` |
| a view | `view` with the steps `Regroup`, `Permute`, `Expand`, `Cut`, `Reorder` |
| a method | `method`, `Draft`, `Request`, `Drawn`, `Constant` and the other kinds of `Prescription`, `keep`, `contractions`, `scale_parameters`, `widths`, `residual_streams` |
| a front end | a module that `wellposed.trace` can run, and `Graph`, `Node`, `Value`, `Parameter`, `Ref` |

``docs/extending.md`` shows each of them at work.
"""  # noqa: E501 - rows of a table

from __future__ import annotations

from collections.abc import Callable

from wellposed.graphs import Graph, Node, Parameter, Ref, Value, trace
from wellposed.methods import Draft, Request, method
from wellposed.operators.contraction import Contraction, contractions
from wellposed.operators.scale_parameters import scale_parameters
from wellposed.operators.scale_reading import ScaleParameter
from wellposed.operators.steps import Cut, Expand, Permute, Regroup, Reorder, Steps
from wellposed.operators.views import Describe, describe_view
from wellposed.plans import Centering, Constant, Default, Drawn, Kept, Prescription, Rescaled, Tied, keep
from wellposed.signals.algebra.affine import linear
from wellposed.signals.algebra.elementwise_products import multiply
from wellposed.signals.algebra.gradient_terms import Adjoint, Term, reduced, settled, times
from wellposed.signals.algebra.normalisation import normalise
from wellposed.signals.algebra.pointwise import apply_pointwise
from wellposed.signals.algebra.reduction import averaged
from wellposed.signals.algebra.sums import combine
from wellposed.signals.context.call import Call
from wellposed.signals.distributions.blocks import concatenate
from wellposed.signals.distributions.functions import Pointwise
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.parts import select
from wellposed.signals.distributions.state import State
from wellposed.signals.distributions.views import expand, permute, reshape
from wellposed.signals.registry import Overload, Rule, adjoint, operators, overloads, rule, unregister
from wellposed.signals.rules.shape import backward, forward
from wellposed.structure.residual_branches import ResidualBranch
from wellposed.structure.streams import Stream, residual_streams
from wellposed.structure.widths import Widths, widths

__all__ = [
    "Adjoint",
    "Call",
    "Centering",
    "Constant",
    "Contraction",
    "Cut",
    "Default",
    "Draft",
    "Drawn",
    "Expand",
    "Graph",
    "Kept",
    "Node",
    "Parameter",
    "Permute",
    "Pointwise",
    "Prescription",
    "Ref",
    "Regroup",
    "Reorder",
    "Request",
    "Rescaled",
    "ResidualBranch",
    "Rule",
    "ScaleParameter",
    "State",
    "Steps",
    "Stream",
    "Term",
    "Tied",
    "Value",
    "Widths",
    "adjoint",
    "apply_pointwise",
    "averaged",
    "combine",
    "concatenate",
    "contractions",
    "expand",
    "keep",
    "linear",
    "make_state",
    "method",
    "multiply",
    "normalise",
    "operators",
    "overloads",
    "permute",
    "reduced",
    "reshape",
    "residual_streams",
    "rule",
    "scale_parameters",
    "select",
    "settled",
    "times",
    "trace",
    "unregister",
    "view",
    "widths",
]


def view(*ops: Overload, source: str = "definition") -> Callable[[Describe], Describe]:
    """Register operators whose results hold elements of their first argument, under other indices.

    From the one description follow the rule, the backward rule, and that weights are planned through the operator.

    ```python
    @wellposed.extend.view(torch.ops.my.mirror.default)
    def mirror(before, after, *, dim, **_):
        return [(Reorder(dim, np.arange(before[dim])[::-1]),)]
    ```

    Args:
        ops: overloads.
        source: for the table of operators.

    The function takes the shape of the first argument, the shapes of the results and all arguments by the names of the
    operator's schema; it returns the steps to each result, or None for a case that is no view.

    Raises:
        OptionError: an overload has a rule already, or is none.
    """

    def register(describe: Describe) -> Describe:
        """Give the overloads the forward and backward rule of views, by their description."""
        rule(*ops, source=source, family="shape", tensors=True)(forward.viewed)
        adjoint(*ops, source=source, family="shape")(backward.viewed)
        for op in ops:
            describe_view(op, describe)
        return describe

    return register
