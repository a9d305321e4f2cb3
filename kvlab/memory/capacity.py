"""How many pages a memory budget buys on one rank, and so how many tokens the node holds.

Worked example, Kimi-Linear in bf16 (8,064 bytes a token), P=64, c=8, 1 GiB a rank:

    a page            64 * 8,064                     =   516,096 bytes
    pages             floor(1,073,741,824 / 516,096) =     2,080, of which one is the padding page
    N                                                =     2,079
    tokens a rank     2,079 * 64                     =   133,056
    tokens            133,056 * 8                    = 1,064,448

Budgets are per rank, as an engine measures them. The order matters: whole pages first, then the
factor c, so a rank never promises the part of a page that it cannot hold.
"""

from dataclasses import dataclass

from kvlab.errors import CapacityError
from kvlab.index import DcpLayout
from kvlab.memory.geometry import GIB, ModelGeometry, require_count


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """The pool that fits a budget. N = ``num_pages`` excludes the padding page, as in a layout."""

    model: str
    dtype: str
    budget_bytes: int
    dcp_size: int
    page_size: int
    num_pages: int
    page_bytes: int
    state_bytes: int

    @property
    def tokens_per_rank(self) -> int:
        """N * P: rows that one rank can hand out."""
        return self.num_pages * self.page_size

    @property
    def capacity_tokens(self) -> int:
        """N * P * c: tokens that the node can hold."""
        return self.tokens_per_rank * self.dcp_size

    @property
    def kv_bytes(self) -> int:
        """Bytes of one rank's KV buffer, the padding page included."""
        return (self.num_pages + 1) * self.page_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes that one rank spends: KV buffer and recurrent state. At most the budget."""
        return self.kv_bytes + self.state_bytes

    @property
    def layout(self) -> DcpLayout:
        """The two index spaces of this pool."""
        return DcpLayout(self.dcp_size, self.page_size, self.num_pages)

    def fits(self, tokens: int) -> bool:
        """Whether one request of ``tokens`` tokens fits an empty pool, in whole widened pages."""
        return self.layout.pages_for(tokens) <= self.layout.num_pages


def plan_pool(
    model: ModelGeometry,
    budget_bytes: int,
    dcp_size: int,
    page_size: int = 64,
    dtype: str = "bf16",
    *,
    state_requests: int = 0,
    tp_size: int | None = None,
) -> PoolPlan:
    """Return the largest pool that one rank's ``budget_bytes`` pays for. Errors: CapacityError.

    ``state_requests`` > 0 first sets aside the KDA state of that many requests and of the reserved
    slot 0, with the heads shared by ``tp_size`` ranks (None: by the DCP ranks alone).
    """
    require_count("budget_bytes", budget_bytes, 0, "bytes of one rank; gib(x) converts GiB")
    require_count("dcp_size", dcp_size, 1, "the ranks that share a request's KV")
    require_count("page_size", page_size, 1, "tokens of a page on one rank")
    require_count("state_requests", state_requests, 0, "requests whose state is kept")
    state = 0
    if state_requests:
        state = (state_requests + 1) * model.state_bytes(_tp_size(tp_size, dcp_size))
    page_bytes = page_size * model.bytes_per_token(dtype)
    if page_bytes == 0:
        raise CapacityError(
            f"a pool needs MLA layers with a row: got {model.mla_layers} MLA layers of "
            f"{model.row_elements} elements for {model.name}; a model without MLA has no such pool"
        )
    pages = (budget_bytes - state) // page_bytes
    if pages < 2:
        raise CapacityError(
            f"a pool needs 2 pages a rank, one of them the padding page: got a budget of "
            f"{budget_bytes} bytes for {model.name} in {dtype}, bound {state + 2 * page_bytes} "
            f"({state} of state and 2 pages of {page_size} tokens, {page_bytes} bytes each); raise "
            f"the budget or lower page_size"
        )
    return PoolPlan(
        model=model.name,
        dtype=dtype,
        budget_bytes=budget_bytes,
        dcp_size=dcp_size,
        page_size=page_size,
        num_pages=pages - 1,
        page_bytes=page_bytes,
        state_bytes=state,
    )


def _tp_size(tp_size: int | None, dcp_size: int) -> int:
    if tp_size is None:
        return dcp_size
    require_count("tp_size", tp_size, 1, "the ranks that share the heads")
    if tp_size % dcp_size:
        raise CapacityError(
            f"dcp_size divides tp_size, since DCP groups are cut from the tensor-parallel ranks: "
            f"got tp_size={tp_size} with dcp_size={dcp_size}; use a multiple of {dcp_size}"
        )
    return tp_size


def gib(amount: float) -> int:
    """Return ``amount`` GiB in whole bytes, rounded down. Errors: CapacityError."""
    if not 0 <= amount < 2**33:
        raise CapacityError(
            f"a budget in GiB lies in [0, {2**33}): got {amount!r}; pass GiB of one rank, not bytes"
        )
    return int(amount * GIB)
