"""Which models leave memory for another one: a table, and a simulation of callers of more models than fit."""

from typing import NamedTuple

import pytest

from headwaiter_server.models.room import Resident, Room, make_room
from headwaiter_server.runtime.errors import NoRoom

INFINITY = float("inf")


def resident(name: str, used_s: float = 0, size: int = 10, stays_until_s: float = 0, **state: bool) -> Resident:
    """Return a resident whose load took 5 s."""
    return Resident(name, size, used_s, stays_until_s - 5, 5, **state)


class Case(NamedTuple):
    """The residents of 30 bytes at 100 s, and what makes room for 10 bytes more."""

    residents: list[Resident]
    room: Room
    needed: int = 10


OLD, MIDDLE, NEW = resident("old", 10), resident("middle", 20), resident("new", 30)
CASES = {
    "there is room": Case([OLD, NEW], Room()),
    "the least recently used model leaves": Case([NEW, OLD, MIDDLE], Room(("old",), INFINITY)),
    "as many leave as are needed, in order": Case([NEW, OLD, MIDDLE], Room(("old", "middle"), INFINITY), needed=15),
    "a pinned model stays": Case([resident("old", 10, pinned=True), MIDDLE, NEW], Room(("middle",), INFINITY)),
    "a model in use leaves last": Case(
        [resident("old", INFINITY), MIDDLE, resident("new", INFINITY)], Room(("middle",), INFINITY)
    ),
    "of models in use, the one that was loaded first leaves": Case(
        [resident("b", INFINITY, stays_until_s=20), resident("a", INFINITY, stays_until_s=10), NEW],
        Room(("new", "a"), INFINITY),
        needed=20,
    ),
    "what is leaving makes room": Case([resident("old", leaving=True), MIDDLE, NEW], Room((), INFINITY)),
    "what is leaving may not be enough": Case(
        [resident("old", leaving=True), MIDDLE, NEW], Room(("middle",), INFINITY), needed=20
    ),
    "another model leaves if no request has used it for as long as its load took": Case(
        [resident("old", 10, stays_until_s=103), resident("busy", INFINITY), resident("quiet", 95)],
        Room(("quiet",), INFINITY),
    ),
    "the load waits rather than that a model leaves that callers use": Case(
        [resident("old", 95, stays_until_s=103), resident("busy", INFINITY), resident("used", 96)], Room(wait_s=3)
    ),
    "the load waits for the last of those that leave": Case(
        [resident("old", 95, stays_until_s=103), resident("next", 96, stays_until_s=105), resident("used", 97)],
        Room(wait_s=5),
        needed=20,
    ),
    "the whole limit may be needed": Case([OLD, MIDDLE, NEW], Room(("old", "middle", "new"), INFINITY), needed=30),
    "a pinned version that is leaving holds nothing for long": Case(
        [resident("old", size=30, pinned=True, leaving=True)], Room((), INFINITY), needed=30
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_room_for_a_load(case: Case) -> None:
    assert make_room(case.needed, 30, case.residents, now_s=100) == case.room


@pytest.mark.parametrize(("pinned", "needed"), [(0, 31), (20, 11)])
def test_a_model_that_cannot_fit_is_refused_with_both_sizes(pinned: int, needed: int) -> None:
    residents = [resident("pinned", size=pinned, pinned=True), resident("other")]
    with pytest.raises(NoRoom) as refused:
        make_room(needed, 30, residents, now_s=100)
    assert (refused.value.limit_bytes, refused.value.needed_bytes) == (30 - pinned, needed)
    assert f"{needed} bytes" in str(refused.value)
    assert f"{30 - pinned} bytes" in str(refused.value)


def test_a_storm_over_more_models_than_fit_loads_them_in_turn() -> None:
    """Callers want all of ten models all the time, three fit, and loads take from 1 to 3 s."""
    load_s = {f"model {number}": 1.0 + number % 3 for number in range(10)}
    loaded: dict[str, Resident] = {}
    waiting_since_s = dict.fromkeys(load_s, 0.0)
    now_s, loads, longest_wait_s, shortest_stay = 0.0, 0, 0.0, INFINITY
    while now_s < 600:
        name = min(waiting_since_s, key=lambda each: waiting_since_s[each])
        while (room := make_room(10, 30, list(loaded.values()), now_s)).wait_s:
            for evicted in room.evict:
                shortest_stay = min(shortest_stay, (now_s - loaded.pop(evicted).loaded_s) / load_s[evicted])
                waiting_since_s[evicted] = now_s
            now_s += 0 if room.evict else room.wait_s
        now_s += load_s[name]
        loads += 1
        longest_wait_s = max(longest_wait_s, now_s - waiting_since_s.pop(name))
        loaded[name] = Resident(name, 10, INFINITY, now_s, load_s[name])
    assert shortest_stay >= 1
    assert longest_wait_s <= sum(load_s.values())
    assert loads <= 600 / min(load_s.values())
