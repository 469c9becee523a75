"""The examples on the page of `/` run as they are written there."""

import re
import shutil
import subprocess
import sys
from html import unescape
from urllib.request import Request, urlopen

import numpy as np
import orjson
import pytest

from headwaiter_client import Client
from testbed.server_process import RunningServer


def test_the_examples_give_the_vector_of_the_client(http_server: RunningServer) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is missing: install the package curl")
    asked = Request(http_server.metrics_url.removesuffix("metrics"), headers={"Accept": "text/html"})
    with urlopen(asked, timeout=30) as reply:
        curl, python = map(unescape, re.findall("<pre>(.*?)</pre>", reply.read().decode(), re.DOTALL))

    def run(*command: str) -> bytes:
        return subprocess.run(command, capture_output=True, timeout=60, check=True).stdout

    with Client(http_server.address) as client:
        pooled = client.encode(["a text"]).pooled
    shown = [
        orjson.loads(run("sh", "-c", curl))["data"][0]["embedding"],
        orjson.loads(run(sys.executable, "-c", python)),
    ]
    np.testing.assert_allclose(shown, [pooled[0]] * 2, rtol=0, atol=1e-6)
