"""Many calls of one client share requests while replicas die, freeze and come back; each ends as it would alone.

python -m tests.support.e2e.mixed_company SECONDS

Three servers have the models "wide" and "narrow". Tasks call with good and bad sequences, with short deadlines, and
cancel calls. Meanwhile a server is killed, another is frozen, and a sequence kills the devices of two, in turns.
"""

import asyncio
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from headwaiter_client import (
    AsyncClient,
    DeadlineExceeded,
    HeadwaiterError,
    InferenceFailed,
    InvalidInput,
    Overloaded,
    SequenceTooLong,
    Unavailable,
)
from testbed.server_process import RunningServer, free_port, running_server
from tests.support.checkpoints import VOCABULARY, WORDS
from tests.support.e2e.mortal_devices import FAIL, KILL
from tests.support.soak.models import export_text_model

MODELS = {"wide": {}, "narrow": {"hidden_size": 16}}
_SERVER = (sys.executable, "-m", "tests.support.e2e.mortal_devices")
_SERVERS = 3
_TASKS = 64
_KNOWN = 60
# The deadline of a call that has to succeed, whatever happens to the servers and to other calls.
_PATIENT_S = 10.0
_HURRIED_S = (0.005, 0.02, 0.1, 0.5)
_FROZEN_S = 2.0
_START_TIMEOUT_S = 60.0
# A batch sums in another order than a sequence alone, so the last bits may differ.
_MAX_ABS = 1e-5
_TOO_LONG = "bread " * 40


class _Servers:
    """Servers with fixed addresses; one that has ended is started again."""

    def __init__(self, models: Path, stack: ExitStack) -> None:
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(_SERVERS)]
        self._models = models
        self._stacks = [stack.enter_context(ExitStack()) for _ in range(_SERVERS)]
        self.running = [self._start(index) for index in range(_SERVERS)]
        self.restarts = 0

    async def wait_until_serving(self) -> None:
        """Start servers that have ended again, until all serve."""
        async with asyncio.timeout(_START_TIMEOUT_S):
            for address in self.addresses:
                while True:
                    self._restart()
                    async with AsyncClient(address) as client:
                        with suppress(HeadwaiterError):
                            if await client.is_serving(timeout_s=1.0):
                                break
                    await asyncio.sleep(0.1)

    def _restart(self) -> None:
        for index, server in enumerate(self.running):
            if server.process.poll() is not None:
                self._stacks[index].close()
                self.running[index] = self._start(index)
                self.restarts += 1

    def _start(self, index: int) -> RunningServer:
        flags = ["--models", str(self._models), "--provider", "cpu"]
        server = running_server(None, flags, program=_SERVER, address=self.addresses[index], waits=False)
        return self._stacks[index].enter_context(server)


class MixedCompany:
    """Calls of one client, and what became of them.

    Attributes:
        outcomes: number of calls, by kind and outcome.
        longest_s: the longest time of a call that had its answer, by kind.
        wrong: the calls that did not end as they would have alone.
        events: what happened to the servers, by kind.
    """

    def __init__(self, client: AsyncClient, servers: _Servers, seed: int = 0) -> None:
        self.outcomes: dict[str, Counter[str]] = {}
        self.longest_s: dict[str, float] = {}
        self.wrong: list[str] = []
        self.events: Counter[str] = Counter()
        self._client, self._servers, self._random = client, servers, Random(seed)
        self._texts = [" ".join(self._random.choices(WORDS[:-1], k=number % 28 + 1)) for number in range(_KNOWN)]
        self._tokens = [
            [self._random.randrange(20, len(VOCABULARY)) for _ in range(number % 60 + 1)] for number in range(_KNOWN)
        ]
        self._vectors: dict[tuple[str, str], Any] = {}

    async def learn(self, alone: AsyncClient) -> None:
        """Encode each sequence in a request of its own, to have the right vectors."""
        for model in MODELS:
            texts = [(await alone.encode(text, model=model)).pooled for text in self._texts]
            tokens = [(await alone.encode_tokens([ids], model=model)).pooled[0] for ids in self._tokens]
            self._vectors[model, "texts"], self._vectors[model, "tokens"] = np.array(texts), np.array(tokens)

    async def run(self, seconds: float) -> None:
        """Call for some seconds while servers die and freeze."""
        end_s = time.monotonic() + seconds

        async def call() -> None:
            while time.monotonic() < end_s:
                ((kind, allowed),) = self._random.choices(list(_KINDS.items()), _WEIGHTS)
                await self._observe(kind, allowed)

        events = asyncio.create_task(self._change_servers(end_s))
        await asyncio.gather(*(call() for _ in range(_TASKS)))
        await events

    async def _change_servers(self, end_s: float) -> None:
        while time.monotonic() < end_s:
            for event in (self._kill_server, self._freeze_server, self._kill_devices):
                await event()
                self.events[event.__name__.strip("_").replace("_", " ")] += 1
                await self._servers.wait_until_serving()
                await asyncio.sleep(0.5)

    async def _kill_server(self) -> None:
        self._random.choice(self._servers.running).process.kill()

    async def _freeze_server(self) -> None:
        process = self._random.choice(self._servers.running).process
        process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(_FROZEN_S)
        finally:
            process.send_signal(signal.SIGCONT)

    async def _kill_devices(self) -> None:
        await self._observe(MixedCompany.killing, (InferenceFailed, Unavailable))

    async def _observe(self, kind: "_Kind", allowed: tuple[type[HeadwaiterError], ...]) -> None:
        """Make one call, and note its outcome."""
        name, started_s, outcome = kind.__name__.replace("_", " "), time.monotonic(), "right"
        try:
            await kind(self)
            self.longest_s[name] = max(self.longest_s.get(name, 0.0), time.monotonic() - started_s)
        except AssertionError as error:
            outcome = "wrong"
            self.wrong.append(f"{name}: {error}")
        except asyncio.CancelledError:
            outcome = "cancelled"
        except HeadwaiterError as error:
            outcome = type(error).__name__
            if not isinstance(error, allowed):
                self.wrong.append(f"{name}, after {time.monotonic() - started_s:.2f} s: {error!r}")
        self.outcomes.setdefault(name, Counter())[outcome] += 1

    async def _right(self, method: str, picks: list[int], **options: Any) -> None:
        """Encode known sequences, and check their vectors."""
        model = self._random.choice(list(MODELS))
        known: list[Any] = self._texts if method == "texts" else self._tokens
        encode: Any = self._client.encode if method == "texts" else self._client.encode_tokens
        options = {"timeout_s": _PATIENT_S, "priority": self._random.choice(("interactive", "bulk")), **options}
        pooled = (await encode([known[pick] for pick in picks], model=model, **options)).pooled
        _check(pooled, self._vectors[model, method][picks])

    def _picks(self, most: int) -> list[int]:
        return self._random.choices(range(_KNOWN), k=self._random.randint(1, most))

    async def one_text(self) -> None:
        model, pick = self._random.choice(list(MODELS)), self._random.randrange(_KNOWN)
        encoding = await self._client.encode(self._texts[pick], model=model, timeout_s=_PATIENT_S)
        _check(encoding.pooled, self._vectors[model, "texts"][pick])

    async def short_list(self) -> None:
        await self._right(self._random.choice(("texts", "tokens")), self._picks(4))

    async def long_list(self) -> None:
        await self._right("texts", self._picks(100))

    async def hurried(self) -> None:
        await self._right("tokens", self._picks(4), timeout_s=self._random.choice(_HURRIED_S))

    async def cancelled(self) -> None:
        call = asyncio.create_task(self._right("texts", self._picks(2)))
        await asyncio.wait({call}, timeout=self._random.uniform(0, 0.3))
        call.cancel()
        await call

    async def too_long(self) -> None:
        picks = self._picks(3)
        texts = [self._texts[pick] for pick in picks]
        texts.insert(place := self._random.randint(0, len(picks)), _TOO_LONG)
        try:
            await self._client.encode(texts, model="wide", timeout_s=_PATIENT_S)
        except SequenceTooLong as error:
            if error.sequence == place:
                raise
            raise AssertionError(f"text {place} is too long, the error names {error.sequence}") from None
        raise AssertionError("a text that is too long has a vector")

    async def out_of_vocabulary(self) -> None:
        await self._client.encode_tokens([[1, len(VOCABULARY)]], model="narrow", timeout_s=_PATIENT_S)
        raise AssertionError("a token id out of the vocabulary has a vector")

    async def partial(self) -> None:
        picks = self._picks(3)
        texts = [*(self._texts[pick] for pick in picks), _TOO_LONG]
        encoding = await self._client.encode(texts, model="wide", partial=True, timeout_s=_PATIENT_S)
        assert list(encoding.failures) == [len(picks)], f"text {len(picks)} is too long: {encoding.failures}"
        _check(encoding.pooled[:-1], self._vectors["wide", "texts"][picks])

    async def failing(self) -> None:
        await self._client.encode_tokens([FAIL], model="wide", timeout_s=_PATIENT_S)
        raise AssertionError("a sequence that fails its batch has a vector")

    async def killing(self) -> None:
        await self._client.encode_tokens([KILL], model="wide", timeout_s=_PATIENT_S)
        raise AssertionError("a sequence that kills its device has a vector")


_Kind = Callable[[MixedCompany], Awaitable[None]]
# The errors that a call of each kind may get, and how often it is made.
_KINDS: dict[_Kind, tuple[type[HeadwaiterError], ...]] = {
    MixedCompany.one_text: (),
    MixedCompany.short_list: (),
    MixedCompany.long_list: (),
    MixedCompany.hurried: (DeadlineExceeded, Overloaded, Unavailable),
    MixedCompany.cancelled: (),
    MixedCompany.too_long: (SequenceTooLong,),
    MixedCompany.out_of_vocabulary: (InvalidInput,),
    MixedCompany.partial: (),
    MixedCompany.failing: (InferenceFailed,),
}
_WEIGHTS = [40, 30, 1, 10, 10, 3, 3, 3, 1]


def _check(vectors: Any, expected: Any) -> None:
    assert vectors.shape == expected.shape, f"vectors of shape {vectors.shape}, and {expected.shape} was expected"
    difference = float(np.abs(vectors - expected).max())
    assert difference <= _MAX_ABS, f"vectors that differ by {difference:.2g}"


async def keep_mixed_company(folder: Path, bundles: dict[str, Path], seconds: float) -> MixedCompany:
    """Serve bundles, which have the names of `MODELS`, from a folder; call for some seconds; return all outcomes."""
    for name, bundle in bundles.items():
        shutil.copytree(bundle, folder / name / "1")
    with ExitStack() as servers_stack:
        servers = _Servers(folder, servers_stack)
        await servers.wait_until_serving()
        async with AsyncExitStack() as stack:
            alone = await stack.enter_async_context(AsyncClient(servers.addresses[0], share_requests=False))
            client = await stack.enter_async_context(AsyncClient(servers.addresses))
            company = MixedCompany(client, servers)
            await company.learn(alone)
            await company.run(seconds)
        await servers.wait_until_serving()
    company.events["restart"] = servers.restarts
    return company


def main() -> int:
    """Run for some seconds, print what became of the calls, and return whether any did not end as it would alone."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bundles = {name: export_text_model(folder, name, **settings) for name, settings in MODELS.items()}
        company = asyncio.run(keep_mixed_company(folder / "models", bundles, float(sys.argv[1])))
    for kind, outcomes in company.outcomes.items():
        shown = ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.most_common())
        print(f"{kind}: {shown}; the longest took {company.longest_s.get(kind, 0.0):.2f} s")
    print(f"events: {', '.join(f'{count} × {event}' for event, count in company.events.items())}")
    print(f"{len(company.wrong)} calls did not end as they would alone", *company.wrong[:20], sep="\n")
    return bool(company.wrong)


if __name__ == "__main__":
    sys.exit(main())
