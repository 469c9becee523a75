"""Masks and biases that were measured on a sequence become the terms that add the same numbers, or are refused."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from headwaiter_export.config.choices import Mask
from headwaiter_export.encoder.measured_attention import find_attentions
from headwaiter_export.encoder.measured_terms import AddedNumbers
from headwaiter_export.encoder.score_terms import ScoreTerms

N = 9
DISTANCES = torch.arange(N)[None] - torch.arange(N)[:, None]


def added(allowed: Tensor, numbers: Tensor | float = 0.0, masked: float = -torch.inf) -> Tensor:
    """Return numbers [1, N, N] that are `masked` where a query does not attend to a key."""
    return (torch.zeros(1, N, N) + numbers).masked_fill(~allowed, masked)


def measured(numbers: Tensor) -> ScoreTerms:
    found = AddedNumbers.measured(numbers)
    assert found is not None
    return found.terms()


EVERYWHERE = torch.ones(N, N, dtype=torch.bool)


@pytest.mark.parametrize("masked", [-torch.inf, torch.finfo(torch.float32).min, -1e9, -1e4])
@pytest.mark.parametrize(
    ("allowed", "pattern", "window"),
    [
        (EVERYWHERE, Mask.NONE, None),
        (DISTANCES <= 0, Mask.CAUSAL, None),
        (DISTANCES != 0, Mask.SELF_EXCLUDING, None),
        (DISTANCES.abs() <= 3, Mask.NONE, 3),
        (DISTANCES.abs() <= N - 2, Mask.NONE, N - 2),
        (DISTANCES == 0, Mask.NONE, 0),
        ((DISTANCES <= 0) & (DISTANCES >= -2), Mask.CAUSAL, 2),
        ((DISTANCES != 0) & (DISTANCES.abs() <= 2), Mask.SELF_EXCLUDING, 2),
    ],
)
def test_each_known_mask_is_found_whatever_number_masks(
    allowed: Tensor, pattern: Mask, window: int | None, masked: float
) -> None:
    terms = measured(added(allowed, masked=masked))
    assert (terms.pattern, terms.window, terms.table) == (pattern, window, None)


@pytest.mark.parametrize(
    "allowed", [DISTANCES % 2 == 0, DISTANCES >= 0, (DISTANCES >= -2) & (DISTANCES <= 1), DISTANCES.abs() >= 2]
)
def test_another_mask_by_distance_becomes_part_of_the_table(allowed: Tensor) -> None:
    terms = measured(added(allowed, 0.5))
    assert terms.table is not None
    assert (terms.pattern, terms.window) == (Mask.NONE, None)
    assert terms.table[0, DISTANCES + N - 1].eq(torch.where(allowed, 0.5, -4e4)).all()


def test_masks_that_differ_between_heads_become_part_of_the_table() -> None:
    terms = measured(torch.cat((added(DISTANCES <= 0), added(DISTANCES >= 0))))
    assert terms.table is not None
    assert terms.table.shape == (2, 2 * N - 1)


@pytest.mark.parametrize(
    "numbers",
    [
        added(torch.arange(N).expand(N, N) < 4),
        added(EVERYWHERE, DISTANCES.float()).index_fill(1, torch.tensor([4]), 0.0),
        added((DISTANCES.abs() <= 2) | (torch.arange(N) == 0)),
    ],
)
def test_numbers_that_depend_on_more_than_the_distance_are_not_described(numbers: Tensor) -> None:
    assert AddedNumbers.measured(numbers) is None


@pytest.mark.parametrize(
    ("numbers", "same"),
    [
        (torch.arange(N).float().expand(N, N), DISTANCES.float()),
        (torch.arange(N).float()[:, None].expand(N, N), torch.zeros(N, N)),
        (torch.randn(N, 1, generator=torch.Generator().manual_seed(0)) + DISTANCES.abs(), DISTANCES.abs().float()),
    ],
)
def test_what_a_query_adds_to_all_its_scores_changes_no_weight(numbers: Tensor, same: Tensor) -> None:
    torch.testing.assert_close(numbers.softmax(1), same.softmax(1))
    found, expected = AddedNumbers.measured(added(EVERYWHERE, numbers)), AddedNumbers.measured(added(EVERYWHERE, same))
    assert found
    assert expected
    # The constant of the first query stays.
    torch.testing.assert_close(found.numbers - found.numbers[:, N - 1], expected.numbers - expected.numbers[:, N - 1])


@given(
    table=st.lists(
        st.lists(st.floats(-50, 50, width=32), min_size=2 * N - 1, max_size=2 * N - 1), min_size=1, max_size=3
    ),
    pattern=st.sampled_from(Mask),
    window=st.none() | st.integers(1, N - 2),
)
def test_the_terms_add_the_measured_numbers(table: list[list[float]], pattern: Mask, window: int | None) -> None:
    whole = ScoreTerms(pattern, window, torch.tensor(table))
    by_distance = whole.by_distance(N, torch.float32)
    terms = measured(by_distance[:, DISTANCES + N - 1])
    again = terms.by_distance(N, torch.float32).expand_as(by_distance)
    allowed = by_distance > -1e4
    assert (again > -1e4).equal(allowed)
    assert again[allowed].equal(by_distance[allowed])


def test_a_shorter_sequence_must_have_the_same_numbers_at_the_same_distances() -> None:
    long = AddedNumbers.measured(added(DISTANCES <= 0, DISTANCES.float()))
    short = AddedNumbers.measured(added(DISTANCES <= 0, DISTANCES.float())[:, :4, :4])
    other = AddedNumbers.measured(added(DISTANCES <= 0, DISTANCES.float() + 1)[:, :4, :4])
    assert long is not None
    assert short is not None
    assert other is not None
    assert long.equals(short)
    assert short.equals(long)
    assert not long.equals(other)


@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_without_a_mask_tensor_is_described_as_if_it_were_measured(is_causal: bool) -> None:
    pairs = torch.zeros(1, 9, 9)
    if is_causal:
        pairs = pairs.masked_fill(torch.ones(9, 9, dtype=torch.bool).triu(1), -torch.inf)
    measured = AddedNumbers.measured(pairs)
    assert measured is not None
    assert AddedNumbers.of_distances(9, is_causal=is_causal).is_same(measured)


@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_without_a_mask_tensor_takes_no_array_of_all_pairs(
    is_causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16,384² numbers in float32 are 1.1 GB."""

    def attend(rows: Tensor) -> Tensor:
        heads = rows[None, None, :, :2]
        return F.scaled_dot_product_attention(heads, heads, heads, is_causal=is_causal)

    monkeypatch.delattr(AddedNumbers, "measured")
    found = find_attentions(attend, [torch.ones(n, 2) for n in (16_384, 9, 8_192)])
    assert [each.terms.pattern for each in found.layers] == [Mask.CAUSAL if is_causal else Mask.NONE]
