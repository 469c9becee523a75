"""Callers cannot fill the log of a server."""

import asyncio
import re
from pathlib import Path

from headwaiter_client import AsyncClient, RetryPolicy, SequenceTooLong
from testbed.server_process import running_server

MISTAKES, CONCURRENT = 400, 50


async def test_mistakes_write_a_few_lines_a_second_and_their_number(text_bundle: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as written, running_server(text_bundle, ["--provider", "cpu"], log=written) as server:
        async with AsyncClient(server.address, retry=RetryPolicy(max_attempts=1), share_requests=False) as client:
            for _ in range(MISTAKES // CONCURRENT):
                calls = [client.encode_tokens([[1] * 65]) for _ in range(CONCURRENT)]
                results = await asyncio.gather(*calls, return_exceptions=True)
                assert {type(result) for result in results} == {SequenceTooLong}
    text = log.read_text()
    lines = re.findall(r"Encode \S+, model tiny-text version 1, from 127\.0\.0\.1:\d+: SequenceTooLong", text)
    # A second has at most 5 lines; a quarter of all mistakes would take 20 s.
    assert len(lines) < MISTAKES / 4
    left_out = re.findall(r"(\d+) more lines of this kind are left out: Encode: SequenceTooLong", text)
    assert len(lines) + sum(map(int, left_out)) == MISTAKES
