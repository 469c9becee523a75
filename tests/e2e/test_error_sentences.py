"""The exact sentences of the most frequent errors that are not answers to bad requests.

Each sentence says what is wrong, where, and what to do. Only this file and bad_requests.py compare whole sentences: all
other tests check the class, the code and the values of an error. To reword an error, change its row in a table.
"""

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from headwaiter_client import (
    AsyncClient,
    Client,
    HeadwaiterError,
    Overloaded,
    RetryPolicy,
    Unauthenticated,
    Unavailable,
)
from headwaiter_client.cli import main as client_command
from headwaiter_server.runtime.bundle import Bundle
from headwaiter_server.runtime.errors import BundleRefused
from headwaiter_server.settings.flags import SettingsError, read_settings
from testbed.server_process import RunningServer
from tests.support.e2e.grpc_errors import code_of
from tests.support.e2e.in_process_server import metrics_url, paused_device, serving, wait_until
from tests.support.e2e.prometheus_metrics import metric_value


async def asynchronous_texts() -> AsyncIterator[str]:
    yield "bread"


# The client raises these errors without a call to a server.
FROM_CLIENT: list[tuple[str, Callable[[], object], str]] = [
    (
        "a text instead of a list",
        lambda: Client("localhost:1").classify("bread"),
        "texts is a single str: pass a list of texts, such as [text]",
    ),
    (
        "an address without a port",
        lambda: Client("localhost"),
        (
            "address 'localhost' is not of the form host:port: pass a server such as localhost:50051, "
            "[::1]:50051 or unix:path, or a list of replicas"
        ),
    ),
    (
        "a timeout of 0",
        lambda: Client("localhost:1").encode(["bread"], timeout_s=0),
        "timeout_s is 0: pass a finite number of seconds above 0, or leave timeout_s out",
    ),
    (
        "an empty list",
        lambda: Client("localhost:1").encode([]),
        "the list of sequences is empty: pass at least one sequence",
    ),
    (
        "an asynchronous iterable",
        lambda: Client("localhost:1").encode(asynchronous_texts()),  # type: ignore[call-overload]
        (
            "the sequences are of type async_generator, which is asynchronous: pass a list, such as [one async for one "
            "in sequences], or use AsyncClient.encode_stream"
        ),
    ),
]

# Arguments of headwaiter-server.
FROM_SETTINGS: list[tuple[str, list[str], str]] = [
    (
        "no bundle",
        [],
        (
            "give either one bundle or --models: run headwaiter-server BUNDLE or set HEADWAITER_BUNDLE, or run "
            "headwaiter-server --models FOLDER; make a bundle with headwaiter-export checkpoint FOLDER -o BUNDLE"
        ),
    ),
    ("an unknown provider", ["b", "--provider", "gpu"], "--provider 'gpu' is not valid: give auto, cuda or cpu"),
    ("an address without a port", ["b", "--address", "50051"], "--address '50051' is not valid: give HOST:PORT"),
]

# Files of texts for `headwaiter-client`.
FILES = {"texts": "bread\n", "empty-line": "bread\n\nrain\n", "long-line": "bread\n" + "bread " * 40 + "\n"}

# Arguments of `headwaiter-client`, whose errors name the flags.
FROM_COMMAND: list[tuple[str, list[str], str]] = [
    (
        "an empty line",
        ["encode", "empty-line", "-o", "out.npy"],
        "line 2 of empty-line is empty: each line must hold a text",
    ),
    (
        "a line too long",
        ["encode", "long-line", "-o", "out.npy"],
        (
            "line 2 of long-line has 42 tokens; the model accepts texts of at most 32 tokens, special tokens "
            "and prompt included: shorten, split or truncate it (--truncation left or right cuts long texts)"
        ),
    ),
    (
        "an unknown model",
        ["similar", "bread", "texts", "--model", "huge"],
        "--model: the server has no model 'huge': send one of 'tiny-text'",
    ),
    (
        "an unknown prompt",
        ["similar", "bread", "texts", "--prompt", "question"],
        (
            "--prompt: the model has no prompt 'question' (its prompts: 'query', 'passage', 'document'): "
            "name one of them, or leave the field empty"
        ),
    ),
    (
        "too many dimensions",
        ["encode", "texts", "-o", "out.npy", "--dimensions", "99"],
        "--dimensions is 99; the model's vectors have 32: choose at most 32",
    ),
    (
        "a layer out of range",
        ["attend", "bread", "--query", "bread", "--layer", "2"],
        "--layer contains the index 2; valid indices are 0 to 1: choose among them",
    ),
    (
        "an output that exists",
        ["encode", "texts", "-o", "texts"],
        "texts already exists: replace it with --overwrite, or name another file with --output",
    ),
    (
        "an output that is a folder",
        ["encode", "texts", "-o", ".", "--overwrite"],
        ". is not a regular file: name another file with --output",
    ),
    (
        "an output in no folder",
        ["encode", "texts", "-o", "nowhere/out.npy"],
        "the folder nowhere does not exist: create it, or name another file with --output",
    ),
    (
        "an address without a port",
        ["models", "--address", "localhost"],
        (
            "address 'localhost' is not of the form host:port: pass a server such as localhost:50051, [::1]:50051 or "
            "unix:path, or a list of replicas"
        ),
    ),
]


# States of a server. "N" stands for a number that differs from run to run, "FOLDER" for a temporary folder.
FROM_SERVER_STATE = {
    "a full queue": "the queue holds 8 of 10 tokens and the request has 4: try again in N s",
    "a drain": "the server is shutting down: send the request to another replica",
    "no token": "the call carries no bearer token: send the metadata authorization: Bearer TOKEN",
    "a wrong token": (
        "the call's metadata authorization is not the server's bearer token: send authorization: Bearer TOKEN with the "
        "token that this server wants for this method"
    ),
    "no token file": ("--token-file: the call carries no bearer token: send the metadata authorization: Bearer TOKEN"),
    "a wrong token file": (
        "--token-file: the call's metadata authorization is not the server's bearer token: send authorization: Bearer "
        "TOKEN with the token that this server wants for this method"
    ),
    "no --model": ("--model: the request names no model, and the server has several: send one of 'features', 'texts'"),
    "an unknown NAME": "NAME: the server has no model 'huge': send one of 'features', 'texts'",
    "no bundle": (
        "there is no bundle at FOLDER/nowhere: make one with headwaiter-export checkpoint FOLDER -o FOLDER/nowhere"
    ),
}


def rows(table: Sequence[tuple[str, Any, str]]) -> pytest.MarkDecorator:
    """Run a test once per row, with the row's cause and sentence."""
    return pytest.mark.parametrize(("cause", "sentence"), [row[1:] for row in table], ids=[row[0] for row in table])


@rows(FROM_CLIENT)
def test_the_client_says(cause: Callable[[], object], sentence: str) -> None:
    with pytest.raises((HeadwaiterError, TypeError, ValueError)) as raised:
        cause()
    assert str(raised.value) == sentence


@rows(FROM_SETTINGS)
def test_the_server_command_says(cause: list[str], sentence: str) -> None:
    with pytest.raises(SettingsError) as raised:
        read_settings(cause, {})
    assert str(raised.value) == sentence


@rows(FROM_COMMAND)
def test_the_client_command_says(
    text_server: RunningServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    cause: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWAITER_CLIENT_ADDRESS", text_server.address)
    for name, content in FILES.items():
        Path(name).write_text(content)
    assert client_command(cause) == 1
    assert capsys.readouterr().err == f"headwaiter-client: {sentence}\n"


async def test_a_server_says_why_it_refuses(
    text_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = {"token": "secret", "another": "another"}
    for name, token in tokens.items():
        (tmp_path / name).write_text(token)
    limits = {"max_queue_tokens": 10, "max_request_tokens": 10}
    said = {}
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(text_bundle, token_file=tmp_path / "token", **limits))
        address = f"127.0.0.1:{server.port}"

        async def refused(error: type[HeadwaiterError], token: str | None) -> HeadwaiterError:
            async with AsyncClient(address, token=token, retry=RetryPolicy(max_attempts=1)) as caller:
                with pytest.raises(error) as raised:
                    await caller.encode_tokens([[1] * 4])
            return raised.value

        said["no token"] = str(await refused(Unauthenticated, None))
        said["a wrong token"] = str(await refused(Unauthenticated, "another"))
        for state, flags in (("no token file", []), ("a wrong token file", ["--token-file", f"{tmp_path}/another"])):
            assert await asyncio.to_thread(client_command, ["models", "--address", address, *flags]) == 1
            said[state] = capsys.readouterr().err.removeprefix("headwaiter-client: ").rstrip("\n")

        client = await stack.enter_async_context(AsyncClient(address, token="secret"))
        with paused_device() as device:
            running = asyncio.create_task(client.encode_tokens([[1] * 3]))
            await device.wait_for_batch()
            waiting = asyncio.create_task(client.encode_tokens([[1] * 8]))
            await wait_until(client, lambda: metric_value(metrics_url(server), "headwaiter_queue_tokens") == 8)
            overloaded = await refused(Overloaded, "secret")
            assert code_of(overloaded) is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert overloaded.limit == 10
            assert (overloaded.retry_after_s or 0) > 0
            # The delay is an estimate, so it differs from run to run.
            said["a full queue"] = re.sub(r"\d+\.\d+ s", "N s", str(overloaded))
            drained = asyncio.create_task(server.drain())
            await asyncio.sleep(0)
            said["a drain"] = str(await refused(Unavailable, "secret"))
            device.resume()
            assert [(await call).lengths.tolist() for call in (running, waiting)] == [[3], [8]]
            await drained
    assert said == {state: FROM_SERVER_STATE[state] for state in said}


async def test_the_client_command_says_of_several_models(
    text_bundle: Path, feature_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, bundle in (("texts", text_bundle), ("features", feature_bundle)):
        shutil.copytree(bundle, tmp_path / name / "1")
    async with serving(None, models=tmp_path, model_control="on") as server:
        for command in (["attend", "bread", "--query", "0"], ["unload", "huge"]):
            flags = ["--address", f"127.0.0.1:{server.port}"]
            assert await asyncio.to_thread(client_command, [*command, *flags]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"headwaiter-client: {FROM_SERVER_STATE[state]}" for state in ("no --model", "an unknown NAME")
    ]


def test_a_missing_bundle_says(tmp_path: Path) -> None:
    with pytest.raises(BundleRefused) as refused:
        Bundle.open(tmp_path / "nowhere")
    assert str(refused.value).replace(str(tmp_path), "FOLDER") == FROM_SERVER_STATE["no bundle"]
