"""The life of a version: every version comes to an end."""

from headwaiter_server.models.model_version import NEXT_STATE, Event, ModelState


def test_only_a_loaded_version_answers_requests_and_no_version_stays_forever() -> None:
    assert [key for key, state in NEXT_STATE.items() if state is ModelState.READY] == [
        (ModelState.LOADING, Event.LOADED)
    ]
    ends: set[ModelState | None] = {None}
    for _ in ModelState:
        ends |= {state for (state, _), following in NEXT_STATE.items() if following in ends}
    assert ends == {None, *ModelState}
