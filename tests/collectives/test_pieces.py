"""Programs of all ranks, run against a network that does its worst: every order of events, nothing buffered."""

import random
from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from playbook_book.collectives.pieces import Do, Piece, Program, program
from playbook_book.collectives.plans import ALGORITHMS, Message, Plan, plan
from playbook_book.replay import start

ALL = [(collective, name) for collective, algorithms in ALGORITHMS.items() for name in algorithms]
ROOTED = ("broadcast", "reduce", "gather", "scatter")
GARBAGE = None
OPTIONS: list[dict[str, int]] = [
    {},
    *({"piece": q, "scratch": s, "ahead": a} for q in (1, 3, 99) for s in (0, 3, 9) for a in (0, 1, 2, 5)),
]


@dataclass
class Rank:
    """One rank's memory, and how far it has come."""

    todo: Program
    source: list[int | None]
    target: list[int | None]
    scratch: list[list[int | None]] = field(default_factory=list)
    at: int = 0
    done: set[int] = field(default_factory=set)  # indices of pieces that have travelled

    def room(self, piece: Piece) -> tuple[list[int | None], int]:
        """Where a piece arrives: an array, and the place in it."""
        return (self.target, piece.start) if piece.slot is None else (self.scratch[piece.slot], 0)


class Network:
    """A message travels at any moment once both ends are posted, and not before: what is sent is read then."""

    def __init__(self, ranks: list[Rank], rng: random.Random):
        self.ranks, self.rng = ranks, rng
        self.sends: dict[tuple[int, int], deque[Piece]] = {}
        self.receives: dict[tuple[int, int], deque[Piece]] = {}

    def run(self) -> None:
        while True:
            moves = [("act", r) for r, rank in enumerate(self.ranks) if self._can_act(rank)]
            moves += [
                ("travel", key) for key, queue in self.sends.items() if queue and self.receives.get(key)
            ]
            if not moves:
                break
            kind, what = self.rng.choice(moves)
            self._act(what) if kind == "act" else self._travel(what)
        assert all(rank.at == len(rank.todo.actions) for rank in self.ranks), "deadlock"
        assert not any(self.sends.values())
        assert not any(self.receives.values())

    def _can_act(self, rank: Rank) -> bool:
        if rank.at == len(rank.todo.actions):
            return False
        do, piece = rank.todo.actions[rank.at]
        return do in (Do.SEND, Do.RECEIVE) or piece.index in rank.done

    def _act(self, r: int) -> None:
        rank = self.ranks[r]
        do, piece = rank.todo.actions[rank.at]
        rank.at += 1
        if do is Do.SEND:
            self.sends.setdefault((r, piece.peer), deque()).append(piece)
        elif do is Do.RECEIVE:
            array, at = rank.room(piece)
            array[at : at + piece.stop - piece.start] = [GARBAGE] * (piece.stop - piece.start)
            self.receives.setdefault((piece.peer, r), deque()).append(piece)
        elif do is Do.FINISH and piece.slot is not None:
            for i in range(piece.stop - piece.start):
                rank.target[piece.start + i] += rank.scratch[piece.slot][i]

    def _travel(self, key: tuple[int, int]) -> None:
        sent, received = self.sends[key].popleft(), self.receives[key].popleft()
        assert sent.stop - sent.start == received.stop - received.start
        source, target = (self.ranks[r] for r in key)
        array, at = target.room(received)
        array[at : at + sent.stop - sent.start] = source.source[sent.start : sent.stop]
        source.done.add(sent.index)
        target.done.add(received.index)


def memory(p: Plan, rank: int, rng: random.Random) -> list[int]:
    """A rank's vector: its own number for what it has, something else where it has nothing."""
    if p.collective == "barrier":
        return [0, 0]
    held = start(p)[rank] if p.elements >= p.ranks else [frozenset({rank})] * p.ranks
    values = []
    for chunk in range(p.ranks):
        size = p.cuts[chunk + 1] - p.cuts[chunk]
        values += [100**rank + i if held[chunk] else rng.randrange(-9, 0) for i in range(size)]
    return values


def in_steps(p: Plan, source: list[list[int]], target: list[list[int]]) -> None:
    """The definition: all of a step at once, and nothing of the next before."""
    for step in range(p.steps):
        messages = [m for m in p.messages if m.step == step]
        contents = [source[m.source][m.start : m.stop] for m in messages]
        for m, values in zip(messages, contents, strict=True):
            for i, value in enumerate(values):
                target[m.target][m.into + i] = value + (target[m.target][m.into + i] if m.reduce else 0)


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_any_order_of_events_gives_what_the_steps_give(data):
    collective, name = data.draw(st.sampled_from(ALL))
    ranks = data.draw(st.integers(1, 9))
    per_node = data.draw(st.sampled_from([d for d in range(1, ranks + 1) if ranks % d == 0]))
    p = plan(
        collective, name, ranks=ranks, elements=data.draw(st.integers(0, 40)), itemsize=8,
        root=data.draw(st.integers(0, ranks - 1)) if collective in ROOTED else 0,
        ranks_per_node=per_node if name == "two_level" else None,
    )  # fmt: skip
    rng = random.Random(data.draw(st.integers(0, 10**6)))
    in_place = collective != "all_to_all"
    options = data.draw(st.sampled_from(OPTIONS))
    before = [memory(p, r, rng) for r in range(ranks)]
    landing = before if in_place else [[0] * (ranks * (p.cuts[r + 1] - p.cuts[r])) for r in range(ranks)]
    assert carried_out(p, before, landing, options, rng) == by_steps(p, before, landing)


def by_steps(p: Plan, before: list[list[int]], landing: list[list[int]]) -> list[list[int]]:
    expected = [list(v) for v in landing]
    in_steps(p, expected if before is landing else before, expected)
    return expected


def carried_out(
    p: Plan, before: list[list[int]], landing: list[list[int]], options: dict[str, int], rng: random.Random
) -> list[list[int | None]]:
    members = []
    for r in range(p.ranks):
        todo = program(p, r, in_place=before is landing, **options)
        target: list[int | None] = list(landing[r])
        scratch: list[list[int | None]] = [[GARBAGE] * todo.room for _ in range(todo.slots)]
        members.append(Rank(todo, target if before is landing else list(before[r]), target, scratch))
    Network(members, rng).run()
    return [m.target for m in members]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_what_a_step_still_sends_is_not_added_to(options):
    """No plan of ours sends a slice in later pieces than those that arrive in it; one of somebody else's might."""
    messages = (Message(0, 0, 1, 0, 8, 0, 8, True), Message(0, 1, 0, 4, 8, 4, 4, True))
    p = Plan("all_reduce", "by hand", 2, 8, 1, 0, messages)
    before = [[10 * r + i for i in range(8)] for r in range(2)]
    for seed in range(20):
        assert carried_out(p, before, before, options, random.Random(seed)) == by_steps(p, before, before)


def flat(todo: Program) -> list[str]:
    return [f"{a.do.name.lower()} {a.piece.start}:{a.piece.stop}" for a in todo.actions]


def test_the_program_of_a_ring_of_three():
    p = plan("all_reduce", "ring", ranks=3, elements=6)
    assert flat(program(p, 0)) == [
        "receive 2:4", "send 4:6",
        "finish 2:4", "receive 0:2", "send 2:4",
        "sent 4:6", "finish 0:2", "receive 4:6", "send 0:2",
        "sent 2:4", "finish 4:6", "receive 2:4", "send 4:6",
        "finish 2:4", "sent 0:2", "sent 4:6",
    ]  # fmt: skip
    early = program(p, 0, piece=2, scratch=6, ahead=2)
    assert flat(early)[:4] == ["receive 2:4", "send 4:6", "receive 0:2", "finish 2:4"]
    assert early.slots == 2
    assert program(p, 0, piece=2, scratch=2, ahead=2).slots == 1


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_contributions_wait_in_no_more_than_the_scratch_that_is_allowed(ranks):
    p = plan("all_reduce", "ring", ranks=ranks, elements=64 * ranks)
    for piece, scratch in ((8, 8), (8, 32), (64, 64)):
        todo = program(p, 0, piece=piece, scratch=scratch, ahead=4)
        assert todo.slots * todo.room <= scratch
        assert todo.pieces == 2 * 2 * (ranks - 1) * 64 // piece


def test_while_a_piece_is_added_others_are_on_their_way():
    p = plan("all_reduce", "ring", ranks=2, elements=64)
    todo = program(p, 0, piece=8, scratch=24, ahead=2)
    posted = finished = 0
    for do, piece in todo.actions:
        posted += do is Do.RECEIVE
        if do is Do.FINISH and piece.message.step == 0 and piece.start < piece.message.stop - 24:
            finished += 1
            assert posted - finished >= 2
    assert finished == 1
