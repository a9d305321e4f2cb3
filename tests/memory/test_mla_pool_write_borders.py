"""Every write that a pool refuses, in its words; then the buffer is as it was."""

from typing import Any

import numpy as np
import pytest
import torch

from kvlab.errors import IndexSpaceError, KvlabError, PoolError
from kvlab.index import DcpLayout, WidenedSlots, localize

from .support import KINDS, ids, refused_by_all

LAYOUT = DcpLayout(dcp_size=2, page_size=2, num_pages=4)  # slots 4..19, rows 2..9
N = torch.ones(2, 2)
R = torch.ones(2, 1)
TWO = ids([4, 5])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("layer", "loc", "k_nope", "k_rope", "error", "text"),
    [
        # Slots.
        (
            0,
            ids([4, 20]),
            N,
            R,
            IndexSpaceError,
            r"^write slot must lie in \[-1, 20\): got 20 at index 1; 1 of 2 ids are outside; write "
            r"ids are widened slots, -1 is a hole; 10 is the bound of a row of a sharded pool, not "
            r"of a slot$",
        ),
        (0, ids([-2, 4]), N, R, IndexSpaceError, r"\[-1, 20\): got -2 at index 0"),
        (0, ids([4, 2**62]), N, R, IndexSpaceError, r"got 4611686018427387904 at index 1"),
        (0, ids([4, -(2**63)]), N, R, IndexSpaceError, r"got -9223372036854775808 at index 1"),
        (
            0,
            TWO.float(),
            N,
            R,
            IndexSpaceError,
            r"loc must be int64 or int32, got torch\.float32: ",
        ),
        (0, TWO.bool(), N, R, IndexSpaceError, r"loc must be int64 or int32, got torch\.bool"),
        (0, TWO.to(torch.int16), N, R, IndexSpaceError, r"int64 or int32, got torch\.int16"),
        (0, TWO.to(torch.uint8), N, R, IndexSpaceError, r"int64 or int32, got torch\.uint8"),
        (0, TWO[None], N, R, IndexSpaceError, r"loc must have shape \(n,\), got \(1, 2\)"),
        (0, TWO[0], N, R, IndexSpaceError, r"loc must have shape \(n,\), got \(\)"),
        (
            0,
            [4, 5],
            N,
            R,
            IndexSpaceError,
            r"loc must be an int64 tensor of shape \(n,\), got list",
        ),
        (0, np.array([4, 5]), N, R, IndexSpaceError, r"of shape \(n,\), got ndarray"),
        (0, 4, N, R, IndexSpaceError, r"of shape \(n,\), got int"),
        (0, None, N, R, IndexSpaceError, r"of shape \(n,\), got NoneType"),
        (
            0,
            localize(WidenedSlots(ids([4, 5, 6])), LAYOUT, 0),
            N,
            R,
            IndexSpaceError,
            r"loc must be raw ids, got PhysicalRows of rank 0: they are localized already; a",
        ),
        # Values.
        (
            0,
            TWO,
            N[:1],
            R,
            PoolError,
            r"^k_nope must have shape \(2, 2\), one row a slot: got \(1, 2\)$",
        ),
        (0, TWO, N[:, :1], R, PoolError, r"k_nope must have shape \(2, 2\), .* got \(2, 1\)"),
        (0, TWO, N[:, None], R, PoolError, r"k_nope must have shape \(2, 2\), .* got \(2, 1, 2\)"),
        (0, TWO, N, R[:, 0], PoolError, r"k_rope must have shape \(2, 1\), .* got \(2,\)"),
        (0, TWO, N, N, PoolError, r"k_rope must have shape \(2, 1\), .* got \(2, 2\)"),
        (0, TWO, R, N, PoolError, r"k_nope must have shape \(2, 2\), .* got \(2, 1\)"),
        (0, ids([]), N, R, PoolError, r"k_nope must have shape \(0, 2\), .* got \(2, 2\)"),
        (
            0,
            TWO,
            N.long(),
            R,
            PoolError,
            r"^k_nope must be a tensor of a float dtype: got torch\.int64$",
        ),
        (
            0,
            TWO,
            N,
            R.bool(),
            PoolError,
            r"k_rope must be a tensor of a float dtype: got torch\.bool",
        ),
        (
            0,
            TWO,
            N.to(torch.complex64),
            R,
            PoolError,
            r"k_nope must be .* a float dtype: got torch\.complex64",
        ),
        (0, TWO, N.tolist(), R, PoolError, r"k_nope must be a tensor of a float dtype: got list"),
        (0, TWO, N, R.numpy(), PoolError, r"k_rope must be a tensor of a float dtype: got ndarray"),
        (0, TWO, N, None, PoolError, r"k_rope must be a tensor of a float dtype: got NoneType"),
        # Layers.
        (2, TWO, N, R, PoolError, r"^layer must lie in \[0, 2\): got 2$"),
        (-1, TWO, N, R, PoolError, r"layer must lie in \[0, 2\): got -1"),
        (True, TWO, N, R, IndexSpaceError, r"layer must be an int: got True \(bool\)"),
        (0.0, TWO, N, R, IndexSpaceError, r"layer must be an int: got 0\.0 \(float\)"),
        (slice(0, 1), TWO, N, R, IndexSpaceError, r"layer must be an int: got slice"),
        (None, TWO, N, R, IndexSpaceError, r"layer must be an int: got None"),
    ],
)
def test_a_write_that_is_refused(
    kind: str, layer: Any, loc: Any, k_nope: Any, k_rope: Any, error: type[KvlabError], text: str
) -> None:
    refused_by_all(
        LAYOUT, kind, error, text, lambda pool: pool.set_mla_kv_buffer(layer, loc, k_nope, k_rope)
    )
