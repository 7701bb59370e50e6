"""Seeds that are given as keys of `jax.random`."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from wellposed.errors import OptionError


def seed_of(seed: Any) -> Any:
    """Return the integer that stands for a key, always the same; what is no key comes back as it is.

    Raises:
        OptionError: several keys.
    """
    if not isinstance(seed, jax.Array):
        return seed
    if jax.dtypes.issubdtype(seed.dtype, jax.dtypes.prng_key):
        keys, words = seed.shape, jax.random.key_data(seed)
    elif seed.dtype == np.uint32 and seed.ndim:  # as jax.random.PRNGKey makes them
        keys, words = seed.shape[:-1], seed
    else:
        return int(seed) if not seed.shape and np.issubdtype(seed.dtype, np.integer) else seed
    if keys:
        raise OptionError(f"seed is one key or one integer, received keys of shape {keys}: take one of them, keys[0]")
    return int(np.random.SeedSequence(np.asarray(words).tolist()).generate_state(1, np.uint64)[0] >> np.uint64(1))
