"""The account of a crash: every key in exactly one class, and every fault that is planted is found."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from howfar.experiments.crash.accounting import Account, ClientLog, Keys, account, visible


def keys(*numbers: int) -> Keys:
    return np.array(numbers, np.int64)


NOTHING = keys()


def asked(acknowledged: Keys, refused: Keys = NOTHING, unknown: Keys = NOTHING) -> ClientLog:
    return ClientLog(acknowledged, refused, unknown)


def test_each_key_is_where_it_belongs() -> None:
    logs = [asked(keys(1, 2, 3), keys(4, 5), keys(6, 7)), asked(keys(11, 12), unknown=keys(16))]
    found = account(logs, keys(12, 1, 3, 5, 7, 99, 1))
    assert (found.kept, found.lost.tolist(), found.acknowledged) == (3, [2, 11], 5)
    assert (found.applied_unknown.tolist(), found.absent_unknown) == ([7], 2)
    assert (found.applied_refused.tolist(), found.absent_refused) == ([5], 1)
    assert (found.strangers.tolist(), found.duplicates.tolist(), found.reasked.tolist()) == ([99], [1], [])
    assert not found.is_sound


def test_nothing_asked_and_nothing_found() -> None:
    nothing = account([], keys())
    assert (nothing.acknowledged, nothing.is_sound) == (0, True)


def test_a_key_that_two_clients_asked_for_is_in_no_other_class() -> None:
    found = account([asked(keys(1, 2)), asked(keys(2), unknown=keys(3))], keys(1, 2))
    assert (found.reasked.tolist(), found.kept, found.lost.tolist()) == ([2], 1, [])
    assert not found.is_sound


LOGS = st.lists(st.sampled_from(["acknowledged", "refused", "unknown", "nobody's"]), min_size=1, max_size=60)


def made(fates: list[str], on_survivor: list[bool]) -> tuple[list[ClientLog], Keys]:
    """Keys 0, 1, … with these fates, dealt to two clients."""
    logs = []
    for client in range(2):
        mine = {fate: keys(*(k for k, f in enumerate(fates) if f == fate and k % 2 == client)) for fate in set(fates)}
        logs.append(ClientLog(*(mine.get(fate, keys()) for fate in ("acknowledged", "refused", "unknown"))))
    return logs, keys(*(key for key, there in enumerate(on_survivor) if there))


def sizes(found: Account) -> tuple[int, ...]:
    return (
        found.kept,
        len(found.lost),
        len(found.applied_unknown),
        found.absent_unknown,
        len(found.applied_refused),
        found.absent_refused,
        len(found.strangers),
    )


@given(fates=LOGS, data=st.data())
def test_the_classes_are_a_partition(fates: list[str], data: st.DataObject) -> None:
    there = data.draw(st.lists(st.booleans(), min_size=len(fates), max_size=len(fates)))
    logs, present = made(fates, there)
    found = account(logs, present)
    absent_strangers = sum(fate == "nobody's" and not here for fate, here in zip(fates, there, strict=True))
    assert sum(sizes(found)) == len(fates) - absent_strangers
    assert found.acknowledged == fates.count("acknowledged")


@given(count=st.integers(1, 50), data=st.data())
def test_a_fault_planted_in_a_log_is_found(count: int, data: st.DataObject) -> None:
    """A record that is dropped, one that is made up, one whose fate is turned over: each changes the account, by exactly that key."""
    present = np.arange(count, dtype=np.int64)
    honest = account([asked(present)], present)
    assert honest.is_sound and honest.kept == count and len(honest.lost) == 0
    key = data.draw(st.integers(0, count - 1))
    dropped = account([asked(np.delete(present, key))], present)
    assert dropped.strangers.tolist() == [key]
    made_up = account([asked(np.append(present, count))], present)
    assert made_up.lost.tolist() == [count]
    turned = account([asked(np.delete(present, key), unknown=keys(key))], present)
    assert turned.applied_unknown.tolist() == [key] and turned.kept == count - 1
    twice = account([asked(np.append(present, key))], present)
    assert twice.reasked.tolist() == [key] and not twice.is_sound


def test_what_others_saw_before_its_client_knew() -> None:
    """Key 3 was seen 5 ns before its acknowledgement, 1 after, 2 at the same time; 9 was never acknowledged; 3 did not survive."""
    found = visible(keys(3, 1, 9, 2), keys(10, 30, 40, 50), keys(1, 2, 3), keys(20, 50, 15), keys(1, 2, 9))
    assert (found.early.tolist(), found.early_ns.tolist()) == ([3], [5])
    assert (found.unacknowledged.tolist(), found.phantoms.tolist()) == ([9], [3])
