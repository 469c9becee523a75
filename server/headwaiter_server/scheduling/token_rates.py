"""Hold each tenant to its tokens per second."""

from headwaiter_proto.rules.errors import Overloaded
from headwaiter_server.settings.tenants import NO_LIMIT, Tenant

# A tenant may queue the tokens of this many seconds at once.
_BURST_S = 1.0


class TokenRates:
    """Holds each tenant to its tokens per second.

    A request of any size may enter the queue while the tenant owes at most the tokens of one second. The tokens of the
    request then add to the debt, which shrinks by the rate of the tenant in each second.
    """

    def __init__(self) -> None:
        """Start without debts."""
        # The tokens that a tenant owes, and since when, by name. Names come from a file, so there are few.
        self._debts: dict[str, tuple[float, float]] = {}

    def check(self, tenant: Tenant, now_s: float) -> None:
        """Check that a tenant may queue a request.

        Raises:
            Overloaded: the tenant has queued too many tokens; the error holds the delay after which to try again.
        """
        wait_s = self._owed(tenant, now_s) / tenant.tokens_per_s - _BURST_S
        if wait_s > 0:
            raise Overloaded(
                f"tenant {tenant.name} has queued more than its {tenant.tokens_per_s:g} tokens per second: try again "
                f"in {wait_s:.2f} s",
                retry_after_s=wait_s,
                limit=round(tenant.tokens_per_s),
            )

    def spend(self, tenant: Tenant, tokens: int, now_s: float) -> None:
        """Add the tokens of a request that entered the queue to the debt of its tenant."""
        if tenant.tokens_per_s < NO_LIMIT:
            self._debts[tenant.name] = self._owed(tenant, now_s) + tokens, now_s

    def _owed(self, tenant: Tenant, now_s: float) -> float:
        owed, since_s = self._debts.get(tenant.name, (0.0, now_s))
        # The rate may have changed since, to no limit too.
        return max(0.0, owed - tenant.tokens_per_s * (now_s - since_s)) if owed else 0.0
