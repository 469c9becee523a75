"""Tenants run tokens in proportion to their shares, and keep to their limits."""

from collections import Counter
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwaiter_proto.rules.errors import InvalidInput, Overloaded
from headwaiter_server.scheduling.admission import Backlog, QueueLimits, WaitEstimate, admit
from headwaiter_server.scheduling.cost import BatchLimits, CostModel, Shape
from headwaiter_server.scheduling.fair_start import Priority
from headwaiter_server.scheduling.pending import Pending
from headwaiter_server.scheduling.planner import plan
from headwaiter_server.scheduling.queued_request import Sequence
from headwaiter_server.scheduling.token_rates import TokenRates
from headwaiter_server.settings.tenants import UNNAMED, Tenant
from tests.support.server.sequences import pending_of, waiting

THREE, ONE, OTHER = Tenant("three", share=3), Tenant("one"), Tenant("other")
COST = CostModel(launch_s=0.001, token_s=0.0001, padded_s=0.0, cell_s=0.0)
LIMITS = BatchLimits(tokens=64, cells=1 << 20)


def _tokens(sequences: list[Sequence]) -> Counter[str]:
    counted = Counter[str]()
    for each in sequences:
        counted[each.tenant.name] += each.length_tokens
    return counted


@given(
    st.lists(st.tuples(st.sampled_from([THREE, ONE, OTHER, UNNAMED]), st.integers(1, 50), st.floats(0, 9)), min_size=1)
)
def test_each_tenant_has_run_its_share_at_any_time_within_one_sequence(
    given_sequences: list[tuple[Tenant, int, float]],
) -> None:
    queued = [
        waiting(length, index, tenant=tenant, arrived_s=arrived_s)
        for index, (tenant, length, arrived_s) in enumerate(given_sequences)
    ]
    (in_turn,) = pending_of(queued).in_turn()
    order = list(in_turn)
    assert sorted(each.index for each in order) == list(range(len(queued)))
    left, run = _tokens(queued), Counter[str]()
    share = {tenant.name: tenant.share for tenant in (THREE, ONE, OTHER, UNNAMED)}
    for place, sequence in enumerate(order):
        name = sequence.tenant.name
        # No tenant that still waits has run less of its share than the tenant whose turn it is.
        for other in (other for other in left if left[other]):
            assert run[name] / share[name] <= run[other] / share[other] + 1e-9
        own = [each.fair_start_s for each in order[place:] if each.tenant.name == name]
        assert sequence.fair_start_s == min(own)
        run[name] += sequence.length_tokens
        left[name] -= sequence.length_tokens


def _serve(pending: Pending, batches: int, refill: bool = True) -> Counter[str]:
    """Run batches at once; each sequence that has run is followed by one of the same tenant and length."""
    ran, indices = Counter[str](), count(10_000)
    for number in range(batches):
        batch = plan(pending, float(number), COST, LIMITS).batch
        pending.take(batch)
        ran += _tokens(list(batch))
        for each in batch if refill else ():
            pending.add(waiting(each.length_tokens, next(indices), tenant=each.tenant, arrived_s=float(number)))
    return ran


@pytest.mark.parametrize("lengths", [(8, 8), (5, 17), (30, 4)])
def test_two_tenants_that_always_wait_run_tokens_in_the_ratio_of_their_shares(lengths: tuple[int, int]) -> None:
    queued = [
        waiting(length, index, tenant=tenant)
        for tenant, length in zip((THREE, ONE), lengths, strict=True)
        for index in range(32)
    ]
    ran = _serve(pending_of(queued), 300)
    assert ran["three"] / ran["one"] == pytest.approx(3, rel=0.1)


def test_a_flood_delays_another_tenant_by_its_share_and_not_by_the_length_of_the_flood() -> None:
    pending = pending_of([waiting(8, index, tenant=OTHER) for index in range(5000)])
    _serve(pending, 20, refill=False)
    # 256 tokens arrive behind 38,720: half of each batch is theirs.
    for index in range(32):
        pending.add(waiting(8, index, tenant=ONE, arrived_s=20.0))
    ran = _serve(pending, 9, refill=False)
    assert ran["one"] == 256


def test_a_tenant_gets_no_credit_for_the_time_in_which_it_had_no_work() -> None:
    pending = pending_of([waiting(8, index, tenant=tenant) for index in range(32) for tenant in (THREE, OTHER)])
    _serve(pending, 100)
    for index in range(500):
        pending.add(waiting(8, index, tenant=ONE))
    ran = _serve(pending, 50)
    assert ran["one"] / ran["other"] == pytest.approx(1, rel=0.15)


def test_a_tenant_that_fills_the_batches_of_others_gets_its_share_when_a_new_tenant_starts() -> None:
    pending = pending_of([waiting(8, 10_000 + index, tenant=THREE) for index in range(2000)])
    for number in range(100):
        # A tenant with little work leads each batch, and the other one fills the rest.
        pending.add(waiting(8, number, tenant=ONE, arrived_s=float(number)))
        _serve(pending, 1, refill=False)
    for index in range(500):
        pending.add(waiting(8, 5000 + index, tenant=OTHER, arrived_s=100.0))
    ran = _serve(pending, 20, refill=False)
    assert ran["three"] / ran["other"] == pytest.approx(3, rel=0.2)


def test_bulk_work_of_one_tenant_waits_behind_interactive_work_of_another() -> None:
    pending = pending_of([
        waiting(8, 0, tenant=THREE, priority=Priority.BULK),
        waiting(8, 1, tenant=ONE),
    ])  # fmt: skip
    assert [each.tenant for each in plan(pending, 0.0, COST, BatchLimits(tokens=8, cells=64)).batch] == [ONE]


@pytest.mark.parametrize(
    ("tenant", "tokens"),
    [
        # Of 100 + 300 tokens before: its own 100, and of the other tenant three times, or a third, as many.
        (ONE, 100 + 300),
        (THREE, 300 + 100),
        (OTHER, 0),
        (None, 400),
    ],
)
def test_the_tokens_before_a_tenant_are_its_own_and_those_that_others_may_run_meanwhile(
    tenant: Tenant | None, tokens: int
) -> None:
    queued = [waiting(100, 0, tenant=ONE), *(waiting(100, 1 + index, tenant=THREE) for index in range(3))]
    assert pending_of(queued).tokens_before(float("inf"), tenant) == tokens


def test_a_rate_lets_through_its_tokens_per_second_and_says_when_to_come_back() -> None:
    rates, tenant = TokenRates(), Tenant("a", tokens_per_s=100)
    rates.check(tenant, 5.0)
    rates.spend(tenant, 250, 5.0)  # a request of any size
    rates.check(Tenant("b", tokens_per_s=100), 5.0)
    rates.check(UNNAMED, 5.0)
    with pytest.raises(Overloaded) as raised:
        rates.check(tenant, 5.5)
    assert raised.value.retry_after_s == pytest.approx(1.0)
    assert raised.value.limit == 100
    rates.check(tenant, 6.5)
    rates.spend(tenant, 1, 6.5)
    with pytest.raises(Overloaded):
        rates.check(tenant, 6.5)


def test_a_debt_shrinks_at_the_new_rate_once_the_rate_has_changed() -> None:
    rates = TokenRates()
    rates.spend(Tenant("a", tokens_per_s=10), 10_000, 0.0)
    with pytest.raises(Overloaded):
        rates.check(Tenant("a", tokens_per_s=10), 1.0)
    rates.check(Tenant("a", tokens_per_s=1e6), 1.0)
    rates.check(Tenant("a"), 0.0)
    with pytest.raises(Overloaded) as raised:
        rates.check(Tenant("a", tokens_per_s=100), 9.0)
    assert raised.value.retry_after_s == pytest.approx(90)


@given(st.lists(st.tuples(st.floats(0, 0.2), st.integers(1, 40)), min_size=1, max_size=200))
def test_over_any_time_a_tenant_queues_at_most_its_rate_one_second_of_it_and_one_request(
    arrivals: list[tuple[float, int]],
) -> None:
    rates, tenant, now_s, queued = TokenRates(), Tenant("a", tokens_per_s=50), 0.0, 0
    for pause_s, tokens in arrivals:
        now_s += pause_s
        try:
            rates.check(tenant, now_s)
        except Overloaded:
            continue
        rates.spend(tenant, tokens, now_s)
        queued += tokens
    assert queued <= 50 * (now_s + 1) + 40


def _estimate(tenant: Tenant, *queued: tuple[Tenant, int]) -> WaitEstimate:
    pending = pending_of([waiting(length, index, tenant=each) for index, (each, length) in enumerate(queued)])
    return WaitEstimate(Backlog(pending, COST, LIMITS, tenant), pending.tokens, (1.0,))


@pytest.mark.parametrize(
    ("estimate", "tokens", "error", "limit"),
    [
        (_estimate(ONE, (ONE, 400)), 101, Overloaded, 1000),  # 499 would be free, and ONE would have 501
        (_estimate(ONE, (THREE, 400), (ONE, 100)), 201, Overloaded, 1000),
        (_estimate(Tenant("a", queue_tokens=150), (Tenant("a"), 100)), 51, Overloaded, 150),
        (_estimate(ONE, (THREE, 400)), 301, Overloaded, 1000),  # 299 would be free
        (_estimate(Tenant("a", queue_tokens=150)), 151, InvalidInput, 150),
    ],
)
def test_a_tenant_that_would_hold_too_much_of_the_queue_is_refused(
    estimate: WaitEstimate, tokens: int, error: type[Exception], limit: int
) -> None:
    with pytest.raises(error) as raised:
        admit(estimate, QueueLimits(1000, 100.0), Shape.of([tokens]), 0.0, float("inf"))
    assert vars(raised.value)["limit"] == limit


@pytest.mark.parametrize(
    ("estimate", "tokens"),
    [
        (_estimate(ONE, (ONE, 400)), 100),
        (_estimate(ONE, (THREE, 400), (ONE, 100)), 199),
        (_estimate(ONE, (THREE, 400)), 300),
        (_estimate(ONE), 1000),  # any size in an empty queue
        (_estimate(UNNAMED, (UNNAMED, 900)), 100),
        (_estimate(Tenant("a", queue_tokens=150), (Tenant("a"), 100), (ONE, 500)), 50),
    ],
)
def test_a_tenant_may_hold_as_much_of_the_queue_as_is_free(estimate: WaitEstimate, tokens: int) -> None:
    admit(estimate, QueueLimits(1000, 100.0), Shape.of([tokens]), 0.0, float("inf"))
