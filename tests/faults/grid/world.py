"""The servers of the grid, its disk, and one run: a query that meets a fault in each of its phases."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

from servers.kafka import KafkaServer
from servers.mysql import MySQLServer
from tests.connectors.mysql_cdc.proxy import Proxy

from .actions import Rule
from .cells import FAULTS, PHASES, STARTING, Run
from .drivers import LIMIT_S, Drivers, Life
from .inputs import KEYS, Hybrid, Input, MySqlCdc, SparkKafka
from .job import BATCH_ROWS
from .operators import OPERATORS

__all__ = ["Query", "World"]

HISTORY, LIVE, BURST = 150, 20, 200
# A rule answers some batches later.
MANY = 600
_DISK = "64m"
EXACT, AFTER_RESTART = "exact", "clear stop, exact after restart"


class World:
    """What all runs share. ``root``: for files. The servers start when the first run asks for them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.drivers = Drivers(root / "drivers")
        self.numbers = iter(range(10**6))
        self._stack = contextlib.ExitStack()
        self._stack.callback(self.drivers.close)
        self._mysql: tuple[MySQLServer, Proxy] | None = None
        self._kafka: tuple[KafkaServer, Proxy] | None = None
        self.disk = root / "disk"
        self.disk.mkdir()
        self.is_own_disk = _mounted(self.disk)
        if self.is_own_disk:
            self._stack.callback(lambda: subprocess.run(["umount", "--lazy", str(self.disk)], check=False))

    def mysql(self) -> tuple[MySQLServer, Proxy]:
        """MySQL, and a network before it."""
        if self._mysql is None:
            server = self._stack.enter_context(MySQLServer(fast=True))
            self._mysql = server, self._stack.enter_context(Proxy(server.port, bytes_per_second=1 << 34, stall_s=0))
        return self._mysql

    def kafka(self) -> tuple[KafkaServer, Proxy]:
        """A broker, and a network before it, through which it is known."""
        if self._kafka is None:
            proxy = self._stack.enter_context(Proxy(0, bytes_per_second=1 << 34, stall_s=0))
            server = KafkaServer(options={"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"})
            proxy.to = server.port
            self._kafka = self._stack.enter_context(server), proxy
        return self._kafka

    def input(self, run: Run, name: str, seed: int) -> Input:
        """An input of a run."""
        ends = run.phases == ("finishing",)
        if run.source == "mysql_cdc":
            server, proxy = self.mysql()
            changes = OPERATORS[run.operator].takes_changes
            return MySqlCdc(server, proxy.port, name, seed=seed, changes=changes, ends=ends)
        broker, proxy = self.kafka()
        address = f"127.0.0.1:{proxy.port}"
        if run.source == "spark":
            return SparkKafka(broker, address, name, seed=seed)
        return Hybrid(broker, address, name, self.root / name, seed=seed, ends=ends)

    def close(self) -> None:
        self._stack.close()


def _mounted(directory: Path) -> bool:
    """Whether a small disk of its own could be mounted there."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(directory)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


class Query:
    """One run."""

    def __init__(self, world: World, run: Run) -> None:
        self.world, self.run = world, run
        self.fault, self.operator = FAULTS[run.fault], OPERATORS[run.operator]
        number = next(world.numbers)
        self.inputs = [world.input(run, f"n{number}_{side}", number * 2 + side) for side in range(self.operator.inputs)]
        self.checkpoint = world.disk / f"checkpoint{number}"
        self.target = world.root / f"target{number}"
        self.next = 0
        self.outcomes: dict[str, str] = {}
        self.lives: list[Life] = []
        self.life: Life | None = None
        during = "0 s" if self.operator.is_keyed else "1 second"
        self.job: dict[str, Any] = {
            "source": run.source, "operator": run.operator, "inputs": [], "checkpoint": str(self.checkpoint),
            "target": str(self.target),
            "trigger": {"processing_time": "100 ms", "interval_during_backlog": during},
        }  # fmt: skip
        if run.source == "spark":
            self.job["conf"] = {"spark.backlog.rule.offsetsBehindLatest": str(BATCH_ROWS)}

    # -- rows -----------------------------------------------------------------------------------------------

    @property
    def _waits_for_builds(self) -> bool:
        """Whether the right input must be committed before the left one is given more."""
        return len(self.inputs) == 2 and not self.operator.is_timed

    def _numbers(self, count: int) -> range:
        found = range(self.next, self.next + count)
        self.next += count
        return found

    def begin(self) -> None:
        """The history."""
        numbers = None
        for one in reversed(self.inputs):  # what is joined comes first
            if numbers is None or self._waits_for_builds:
                numbers = self._numbers(MANY if self.run.source == "spark" else HISTORY)
            one.begin(one.made(numbers))
        self.job["inputs"] = [one.options() for one in self.inputs]

    def feed(self, count: int = LIVE, *, burst: bool = False) -> None:
        """More rows of all inputs, or of the left one of a join."""
        numbers = self._numbers(count)
        for one in self.inputs[:1] if self._waits_for_builds else self.inputs:
            (one.burst if burst else one.feed)(one.made(numbers))
            if not burst:
                one.change()

    # -- lives ----------------------------------------------------------------------------------------------

    def go(self) -> dict[str, str]:
        """Carry the run out. Returns the outcome of each phase."""
        self.begin()
        try:
            if self.run.fault == "SIGSTOP":
                self._stopped()
            elif self.fault.ends_life:
                self._killed()
            else:
                self._survived()
            self._finish()
        except BaseException:
            for life in self.lives:
                life.end()
            raise
        finally:
            shutil.rmtree(self.checkpoint, ignore_errors=True)
            (self.world.disk / "filler").unlink(missing_ok=True)
        return self.outcomes

    def _born(self) -> Life:
        life = self.world.drivers.take()
        life.plan.begin(life.pid, self.world.disk)
        self.lives.append(life)
        return life

    def _rule(self, phase: str) -> Rule:
        points = PHASES[phase].begins if self.fault.at_begin else PHASES[phase].points
        if self.fault.at_commit:
            points = (*PHASES[phase].begins, "sink.commit" if phase in ("backlog", "live") else "sink.written")
        if phase == "live" and self.fault.ends_life:
            points = ("live", *points)  # the first one is the batch that the driver before had begun
        return Rule(points, self.fault.does)

    def _prepare(self, phase: str) -> None:
        """Give the rows that a phase needs."""
        if phase in STARTING and phase != self.run.phases[0]:
            # Of rows that the killed driver had planned to read as they were before.
            for one in self.inputs:
                one.change()
        elif phase == "back into backlog":
            self.feed(MANY if self.run.source == "spark" else BURST, burst=True)
        elif phase not in (*STARTING, "finishing"):
            self.feed()

    def _killed(self) -> None:
        for phase in self.run.phases:
            self._prepare(phase)
            life = self._born()
            life.plan.add(self._rule(phase))
            life.order("start", job=self.job)
            life.wait_until_dead()
            self.outcomes[phase] = EXACT

    def _stopped(self) -> None:
        """Each driver is stopped in a phase, the next one takes over, and the first one then wakes up."""
        before: Life | None = None
        for phase in self.run.phases:
            life = self._born()
            self._prepare(phase)
            rule = life.plan.add(self._rule(phase))
            life.order("start", job=self.job)
            self._until(lambda life=life, rule=rule: life.plan.has_happened(rule), life)
            self._wake(before)
            before = life
            self.outcomes[phase] = EXACT
        self.life = self._born()
        self.life.ask("start", job=self.job)
        self._wake(before)

    def _wake(self, life: Life | None) -> None:
        """A driver that was stopped finds out that there is a newer one, and its query ends."""
        if life is None:
            return
        life.signal(signal.SIGCONT)
        error = life.failure()  # of its start, if it had not started
        if error is None:
            life.order("wait")
            error = life.failure()
        assert error is not None, f"it goes on: {life.tail()}"
        assert "Another driver" in str(error), error
        assert error.hint
        life.end()

    def _survived(self) -> None:
        life = self.life = self._born()
        starting = [phase for phase in self.run.phases if phase in (*STARTING, "finishing")]
        self._drive(life, starting, "start")
        for phase in self.run.phases:
            if phase not in starting:
                self._drive(life, [phase], "settle")

    def _drive(self, life: Life, phases: list[str], order: str) -> None:
        """Meet the fault in these phases, until all is committed."""
        rules = {phase: life.plan.add(self._rule(phase)) for phase in phases}
        if self.run.fault == "disk full once":
            life.plan.add(Rule(("restart",), "free", always=True))
        given = {"job": self.job} if order == "start" else {}
        until = "wait" if phases == ["finishing"] else "settle"
        waiting = dict(rules)
        if order != "start" and phases == ["back into backlog"]:
            # So that it is all there when the next batch is planned.
            held = life.plan.add(Rule(("live", "sink.write"), "pause"))
            self.feed()
            self._until(lambda: life.plan.has_happened(held), life)
            self._prepare(phases[0])
            life.plan.go(held)
        else:
            for phase in phases:
                if phase not in STARTING:
                    self._prepare(phase)
        failures, limit = 0, time.monotonic() + LIMIT_S
        while True:
            life.order(order, **given)
            while not life.has_answered():
                for phase, rule in list(waiting.items()):
                    if life.plan.has_happened(rule):
                        del waiting[phase]
                        self._act(life, rule)
                time.sleep(0.01)
            error = life.failure()
            if error is None:
                # Spark's own sources may have nothing to read for a moment, after which more comes.
                is_over = all(map(life.plan.has_happened, rules.values())) or time.monotonic() > limit
                if order == until and (is_over or until == "wait"):
                    break
                order, given = until, {}
            else:
                failures += 1
                assert failures <= len(phases), error
                assert error.hint, f"no next step: {error}"
                (self.world.disk / "filler").unlink(missing_ok=True)
                order, given = "start", {"job": self.job}
                # The newest one has ended it. It had survived those before.
                new = [p for p in phases if life.plan.has_happened(rules[p]) and p not in self.outcomes]
                self.outcomes.update({phase: EXACT if phase != new[-1] else AFTER_RESTART for phase in new})
        if self.fault.does == "worker":
            self._until(lambda: life.plan.killed_workers() > self.run.phases.index(phases[-1]), life)
        for phase in phases:
            assert life.plan.has_happened(rules[phase]), f"{phase} was not reached: {life.plan.log()}"
            self.outcomes.setdefault(phase, EXACT)

    def _act(self, life: Life, rule: int) -> None:
        """What the test does while the query waits."""
        if self.fault.does != "pause":
            return
        if self.run.fault == "cut packet":
            _, proxy = self.world.mysql() if self.run.source == "mysql_cdc" else self.world.kafka()
            proxy.cut_inside()
            life.plan.go(rule)
            self._until(lambda: not proxy.is_to_cut, life)
            return
        server = (self.world.mysql() if self.run.source == "mysql_cdc" else self.world.kafka())[0]
        if self.run.fault == "MySQL crash":
            server.kill()
        else:
            server.stop()
        life.plan.go(rule)
        time.sleep(0.5)
        server.start()

    def _until(self, condition: Any, life: Life) -> None:
        limit = time.monotonic() + LIMIT_S
        while not condition():
            assert not life.is_dead(), life.tail()
            assert time.monotonic() < limit, f"{life.plan.log()[-12:]}: {life.tail()}"
            time.sleep(0.02)

    # -- the end --------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """One more life or the last one: each key changes once more, all windows end, and the target is compared."""
        if self.life is None:
            self.life = self._born()
            self.life.ask("start", job=self.job)
        life = self.life
        if self.run.phases == ("finishing",):
            life.ask("wait")
        else:
            life.ask("settle")
            if self._waits_for_builds:
                builds = self.inputs[1]
                builds.feed(builds.made(self._numbers(KEYS)))
                life.ask("settle")
            self._feed_last(life, KEYS)
        self._compare(life)
        if self.run.phases != ("finishing",):
            # State that was handed over is removed in the batch after the one that has read it.
            self._feed_last(life, 1)
            self._compare(life)
        life.ask("stop")
        if self.fault.does == "fill":
            # What a full disk has left of a file is removed at the next start.
            life.ask("start", job=self.job)
            life.ask("stop")
        late = life.ask("state")["late"]
        assert not late, f"{late} rows were late"
        self._nothing_is_left()
        if self.fault.does == "back":
            life.end()
        else:
            self.world.drivers.give_back(life)

    def _feed_last(self, life: Life, count: int) -> None:
        """More rows, and the end of their windows."""
        self.feed(count)
        life.ask("settle")
        if self.operator.is_timed:
            (number,) = self._numbers(1)
            for one in self.inputs:
                one.flush(number)
            life.ask("settle")

    def _compare(self, life: Life) -> None:
        expected = self.operator.expected(*(list(one.rows.values()) for one in self.inputs))
        limit = time.monotonic() + 30
        while True:
            rows = life.ask("read", path=str(self.target), columns=self.operator.columns.split())
            found = Counter(map(tuple, rows))
            if found == expected:
                return
            if time.monotonic() > limit:
                missing, more = expected - found, found - expected
                raise AssertionError(f"missing {missing}, too much {more}: {life.plan.log()}: {life.tail()}")
            if self.run.phases != ("finishing",):
                life.ask("settle")

    def _nothing_is_left(self) -> None:
        """No process of a dead driver, no attempt, no claim and no temporary file of ours in the checkpoint."""
        limit = time.monotonic() + 10
        for life in self.lives:
            while life is not self.life and (found := life.processes()):
                assert time.monotonic() < limit, f"processes of a dead driver: {found}"
                time.sleep(0.1)
        left = [str(path.relative_to(self.checkpoint)) for path in self.checkpoint.rglob("*") if path.is_file()]
        is_left = _IS_LEFT_AT_END if self.run.phases == ("finishing",) else _IS_LEFT
        wrong = [name for name in left if is_left.search(name)]
        assert not wrong, f"left in the checkpoint: {wrong}"


# Attempts and seeds are removed in the batch after the one that has read them. A query that ends has none.
_IS_LEFT_AT_END = re.compile(r"^backlog/drivers/|^backlog/replacing|^backlog/.*\.tmp(\.crc)?$")
_IS_LEFT = re.compile(r"^backlog/(drivers|seed|state)/|^backlog/replacing|^backlog/.*\.tmp(\.crc)?$")
