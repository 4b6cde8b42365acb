"""Who goes next: actors in threads of which exactly one runs at any time.

An actor goes on from one call of the store to the next; there somebody decides who makes the next
step. It is decided by chance that a seed makes repeatable, or by counting through all ways there
are.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence

# Of so many that could go on, which one: a number below that. `me` is who is asking.
Choose = Callable[[Sequence[int], int], int]


class Aborted(BaseException):
    """Another actor found something wrong: there is no point in going on."""


class Scheduler:
    """Runs actors step by step."""

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self._alive: list[int] = []
        self._turns: list[threading.Semaphore] = []
        self._over = threading.Semaphore(0)
        self._failure: BaseException | None = None
        # Who runs, None outside of `run`.
        self.current: int | None = None
        # Who was chosen each time that there was a choice.
        self.trace: list[int] = []

    def run(self, actors: Sequence[Callable[[], None]]) -> None:
        """Run them all to their end. Raises what one of them raises."""
        self._alive = list(range(len(actors)))
        self._turns = [threading.Semaphore(0) for _ in actors]
        threads = [
            threading.Thread(target=self._act, args=(number, act), daemon=True)
            for number, act in enumerate(actors)
        ]
        for thread in threads:
            thread.start()
        self._pass_on(None)
        self._over.acquire()
        for thread in threads:
            thread.join()
        self.current = None
        if self._failure is not None:
            raise self._failure

    def step(self) -> None:
        """Somebody, perhaps who asks, makes the next step. Does nothing outside of `run`."""
        me = self.current
        if me is None:
            return
        if self._failure is not None:
            raise Aborted
        if len(self._alive) > 1:
            self._pass_on(me)
            if self._failure is not None:
                raise Aborted

    def _pass_on(self, me: int | None) -> None:
        if len(self._alive) > 1:
            chosen = self._choose(self._alive, -1 if me is None else me)
            self.trace.append(chosen)
        else:
            chosen = self._alive[0]
        if chosen == me:
            return
        self.current = chosen
        self._turns[chosen].release()
        if me is not None:
            self._turns[me].acquire()

    def _act(self, number: int, act: Callable[[], None]) -> None:
        self._turns[number].acquire()
        try:
            if self._failure is None:
                act()
        except Aborted:
            pass
        except BaseException as error:  # noqa: BLE001 - it is raised again, by `run`
            self._failure = self._failure or error
        self._alive.remove(number)
        if self._alive:
            self._pass_on(None)
        else:
            self._over.release()


def by_chance(chance: random.Random, stay: float) -> Choose:
    """A choice at random; with the chance `stay` who runs goes on."""

    def choose(alive: Sequence[int], me: int) -> int:
        if me in alive and chance.random() < stay:
            return me
        return alive[chance.randrange(len(alive))]

    return choose


class Counted:
    """Follows a path of choices, and the first choice after its end. Who could go on is made to
    wait for another at most so many times.
    """

    def __init__(self, path: Sequence[int], switches: int | None) -> None:
        self._path = path
        self._left = switches
        # Each choice that was made, and how many there were.
        self.made: list[tuple[int, int]] = []

    def choose(self, alive: Sequence[int], me: int) -> int:
        if me in alive and self._left == 0:
            return me
        at = len(self.made)
        chosen = self._path[at] if at < len(self._path) else 0
        self.made.append((chosen, len(alive)))
        if me in alive and alive[chosen] != me and self._left is not None:
            self._left -= 1
        return alive[chosen]


def all_ways(
    run: Callable[[Choose], None], *, most: int, switches: int | None = None
) -> Iterator[list[int]]:
    """Run once for each way in which actors can take their steps; yields each way. With `switches`
    those ways in which an actor that could go on waits for another at most so many times.

    Raises AssertionError when there are more than `most`.
    """
    path: list[int] = []
    for _ in range(most):
        counted = Counted(path, switches)
        run(counted.choose)
        yield [choice for choice, _ in counted.made]
        made = counted.made
        while made and made[-1][0] == made[-1][1] - 1:
            made.pop()
        if not made:
            return
        path = [choice for choice, _ in made]
        path[-1] += 1
    raise AssertionError(f"more than {most} ways")
