"""The three parts of a run. Each prints its table, and returns the promises that the server has broken."""

import asyncio
import time

from testbed.server_process import RunningServer
from tests.support.soak.checks import holdings, leaks, memory_mib, metrics, sampled_memory
from tests.support.soak.faulty_server import FAULT_INTERVALS_S, START_FAULTS, STOP_FAULTS
from tests.support.soak.fuzzer import Fuzzer
from tests.support.soak.honest_caller import HonestCaller, Measurement
from tests.support.soak.http2_abuse import ATTACKS
from tests.support.soak.load import MixedLoad
from tests.support.soak.mutations import mutated_calls, valid_calls
from tests.support.soak.report import counted, examples, table

_MAX_GROWTH_MIB = 20.0
_MAX_LEFT_MIB = 50.0
_MAX_P99_RATIO = 2.0
_WARM_UP_S = 10.0
_WARM_UP_MESSAGES = 50
_FUZZ_PER_S_IN_LOAD = 50.0
_ROUNDS = 4
_CALM_S = 5.0
_SETTLE_S = 20.0


async def mixed_load(server: RunningServer, seconds: float, seed: int) -> list[str]:
    """Send a mixed load with faults of the device and mutated messages."""
    load, fuzzer, calls = MixedLoad(server.address, seed), Fuzzer(server.address), mutated_calls(seed)
    await load.learn_answers()
    # The first calls fill pools of threads and memory, which the server then keeps.
    await load.run(min(_WARM_UP_S, seconds / 4))
    await asyncio.to_thread(fuzzer.run, calls, _WARM_UP_MESSAGES)
    before = await asyncio.to_thread(holdings, server)
    server.process.send_signal(START_FAULTS)
    messages = int(seconds * _FUZZ_PER_S_IN_LOAD)
    with sampled_memory(server) as samples_mib:
        await asyncio.gather(load.run(seconds), asyncio.to_thread(fuzzer.run, calls, messages, _FUZZ_PER_S_IN_LOAD))
    server.process.send_signal(STOP_FAULTS)
    leaked = await asyncio.to_thread(leaks, server, before)
    await load.close()
    rows = [(kind, f"{counts.total():,}", counted(counts)) for kind, counts in sorted(load.outcomes.items())]
    rows.append(("mutated messages", f"{fuzzer.sent.total():,}", counted(fuzzer.answers)))
    print(table(("calls", "sent", "answered"), rows))
    faults = {name: int(value) for name, value in metrics(server).items() if name in (*FAULT_INTERVALS_S, "poison")}
    print(f"faults: {counted(faults)}")
    lost = load.lost + fuzzer.lost
    print(f"lost {lost}, wrong {len(load.wrong)}, leaked {len(leaked)}")
    size = max(1, len(samples_mib) // 4)
    quarters_mib = [sum(samples_mib[start : start + size]) / size for start in range(0, 4 * size, size)]
    print(f"server memory by quarter, MiB: {', '.join(f'{mib:.1f}' for mib in quarters_mib)}")
    broken = examples("wrong", load.wrong) + examples("error", load.broken + fuzzer.broken)
    broken += examples("leaked", leaked) + [f"lost: {lost} calls"] * bool(lost)
    growth_mib = quarters_mib[3] - quarters_mib[1]
    return broken + [f"memory grew by {growth_mib:.1f} MiB"] * (growth_mib > _MAX_GROWTH_MIB)


def fuzz(server: RunningServer, messages: int, per_s: float, seed: int) -> list[str]:
    """Send mutated messages, in turns with calm times and with as many correct messages."""
    before, memory_before_mib = holdings(server), memory_mib(server)
    calm, beside_mutated, beside_valid = Measurement(), Measurement(), Measurement()
    mutated, valid = mutated_calls(seed), valid_calls(seed)
    fuzzer, control = Fuzzer(server.address), Fuzzer(server.address)
    with HonestCaller(server.address) as honest:
        for _ in range(_ROUNDS):
            with honest.measuring(calm):
                time.sleep(_CALM_S)
            with honest.measuring(beside_mutated):
                fuzzer.run(mutated, messages // _ROUNDS, per_s)
            with honest.measuring(beside_valid):
                control.run(valid, messages // _ROUNDS, per_s)
    print(f"mutated messages: {counted(fuzzer.sent)}")
    print(f"answered: {counted(fuzzer.answers)}")
    named = {"calm": calm, "mutated messages": beside_mutated, "correct messages": beside_valid}
    rows = [
        (name, len(each.latencies_ms), f"{each.p99_ms:.1f}", f"{each.p99_ms / calm.p99_ms:.2f}", counted(each.errors))
        for name, each in named.items()
    ]
    print(table(("honest caller beside", "answered", "p99 ms", "/ calm", "errors"), rows))
    broken = examples("error", fuzzer.broken + control.broken) + [f"lost: {fuzzer.lost} calls"] * bool(fuzzer.lost)
    broken += _check_honest("mutated messages", beside_mutated, calm)
    return broken + examples("leaked", leaks(server, before)) + _check_memory(server, memory_before_mib)


def http2_abuse(server: RunningServer, scale: float) -> list[str]:
    """Run each attack between two calm times."""
    before, memory_before_mib = holdings(server), memory_mib(server)
    rows, broken = [], []
    with HonestCaller(server.address) as honest:
        for attack in ATTACKS:
            calm, attacked, afterwards = Measurement(), Measurement(), Measurement()
            with honest.measuring(calm):
                time.sleep(_CALM_S * scale)
            with sampled_memory(server) as samples_mib, honest.measuring(attacked):
                ended = attack(server.address, scale)
            with honest.measuring(afterwards):
                time.sleep(_CALM_S * scale)
            name = attack.__name__.replace("_", " ")
            growths_mib = (max(samples_mib) - memory_before_mib, memory_mib(server) - memory_before_mib)
            p99s_ms = (calm.p99_ms, attacked.p99_ms, afterwards.p99_ms, attacked.p99_ms / calm.p99_ms)
            rows.append((name, ended, *(f"{figure:.1f}" for figure in (*p99s_ms, *growths_mib))))
            broken += _check_honest(name, attacked, calm)
    head = (
        "attack",
        "connections ended",
        "p99 before, ms",
        "during",
        "after",
        "during / before",
        "peak MiB",
        "left MiB",
    )
    print(table(head, rows))
    return broken + examples("leaked", leaks(server, before)) + _check_memory(server, memory_before_mib)


def _check_honest(name: str, during: Measurement, calm: Measurement) -> list[str]:
    broken = [f"the honest caller beside {name} got {counted(during.errors)}"] * bool(during.errors)
    if not during.p99_ms <= _MAX_P99_RATIO * calm.p99_ms:
        broken.append(f"honest p99 beside {name}: {during.p99_ms:.1f} ms, calm {calm.p99_ms:.1f} ms")
    return broken


def _check_memory(server: RunningServer, before_mib: float) -> list[str]:
    """Print the growth of the server's memory, once the growth is small or some seconds have passed."""
    end_s = time.monotonic() + _SETTLE_S
    while (growth_mib := memory_mib(server) - before_mib) > _MAX_LEFT_MIB and time.monotonic() < end_s:
        time.sleep(0.5)
    print(f"server memory: {growth_mib:+.1f} MiB")
    return [f"memory: {growth_mib:.1f} MiB more than before"] * (growth_mib > _MAX_LEFT_MIB)
