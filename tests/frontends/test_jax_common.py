"""Models as common code for JAX writes them: run as JAX runs them, planned, and as predicted."""

import pytest
from tests.frontends.jax_common import COMMON, RANDOM, function, jax, jnp, nnx, on_mesh
from tests.frontends.test_jax import close, tensors

import wellposed.jax as wj
from wellposed.errors import UnsupportedError


def own(model, args):
    """What JAX gives."""
    if isinstance(model, wj.Function):
        return jax.jit(model.apply)(model.params, *args)
    still = nnx.view(model, deterministic=True, use_running_average=True, raise_if_not_found=False)
    return nnx.jit(lambda model, args: model(*args))(still, args)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMON)
def test_common_models_are_run_planned_and_as_predicted(name):
    build, args = COMMON[name]
    model = build()
    if name not in RANDOM:
        assert close(wj.module(model).eval()(*tensors(*args)), own(model, args))
    plan = wj.plan(model, *args, method="autoinit", deliberate="write")
    verdict = wj.check(model, *args, plan=plan)
    assert verdict.ok, verdict.summary()


def test_a_program_for_several_devices_is_refused():
    mesh = jax.sharding.AbstractMesh((4, 1), ("data", "model"))
    model = function(on_mesh(mesh))()
    with pytest.raises(UnsupportedError, match=r"shard_map \(.*jax_common.py.*mesh axes \('data' of 4\).*lengths of 1"):
        wj.plan(model, jnp.zeros((16, 24)), method="autoinit")


def test_the_line_of_a_primitive_within_jax_is_that_of_its_call():
    model = function(lambda params, x: jax.scipy.linalg.schur(x[:8] @ params["first"])[0])()
    with pytest.raises(UnsupportedError, match=r"'schur' of JAX \(.*test_jax_common.py:\d+"):
        wj.plan(model, jnp.zeros((16, 24)), method="autoinit")
