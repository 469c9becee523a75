"""The life of a version: which states follow which events, and that every version comes to an end."""

from itertools import product

import pytest

from headwaiter_server.models.model_version import NEXT_STATE, Event, ModelState, VersionStatus


@pytest.mark.parametrize(
    ("events", "states"),
    [
        ([Event.LOADED, Event.RETIRED, Event.FREED], ["ready", "draining", None]),
        ([Event.REFUSED, Event.FORGOTTEN], ["failed", None]),
        ([Event.UNWANTED, Event.FREED], ["draining", None]),
        ([Event.REFUSED, Event.DUE, Event.WANTED, Event.LOADED], ["failed", "on_disk", "loading", "ready"]),
        ([Event.REFUSED, Event.DUE, Event.FORGOTTEN], ["failed", "on_disk", None]),
    ],
)
def test_a_version_that_is_loaded_goes_through_one_of_these_lives(
    events: list[Event], states: list[str | None]
) -> None:
    version = VersionStatus("rain", 1)
    assert [str(version.state) if version.note(event) else None for event in events] == states


def test_events_that_cannot_happen_in_a_state_are_errors_and_change_nothing() -> None:
    for state, event in product(ModelState, Event):
        if (state, event) not in NEXT_STATE:
            version = VersionStatus("rain", 1, state)
            with pytest.raises(KeyError):
                version.note(event)
            assert version.state is state


def test_only_a_loaded_version_answers_requests_and_no_version_stays_forever() -> None:
    assert [key for key, state in NEXT_STATE.items() if state is ModelState.READY] == [
        (ModelState.LOADING, Event.LOADED)
    ]
    ends: set[ModelState | None] = {None}
    for _ in ModelState:
        ends |= {state for (state, _), following in NEXT_STATE.items() if following in ends}
    assert ends == {None, *ModelState}
