"""The exact sentences of the most frequent errors.

Each sentence says what is wrong, where, and what to do. This is the only test file that compares whole sentences: all
other tests check the class, the code and the values of an error. To reword an error, change its row in a table below.
"""

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from headwaiter_client import AsyncClient, Client, HeadwaiterError, Overloaded, Unauthenticated, Unavailable
from headwaiter_client.cli import main as client_command
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.runtime.bundle import Bundle
from headwaiter_server.runtime.errors import BundleRefused
from headwaiter_server.settings.flags import SettingsError, read_settings
from testbed.server_process import RunningServer
from tests.e2e.in_process_server import connect, metrics_url, paused_device, serving, wait_until
from tests.e2e.prometheus_metrics import metric_value
from tests.e2e.raw_caller import Caller, tokens

# Name, call, sentence. The text model accepts 8 sequences and 96 tokens per request, texts of 32 tokens, 64 token ids.
FROM_TEXT_MODEL: list[tuple[str, Callable[[Caller], object], str]] = [
    ("no input", lambda c: c.send(pb.EncodeRequest()), "the request has no input: send tokens, features or texts"),
    ("no sequences", lambda c: c.send(tokens([])), "the request has no sequences: send at least one"),
    (
        "a text too long",
        lambda c: c.client.encode(["bread", "bread " * 31]),
        (
            "sequence 1 has 33 tokens; the model accepts texts of at most 32 tokens, special tokens and "
            "prompt included: shorten, split or truncate it"
        ),
    ),
    (
        "a sequence too long",
        lambda c: c.client.encode_tokens([[1], [1] * 65]),
        "sequence 1 has 65 tokens; the model accepts at most 64: shorten or split it",
    ),
    (
        "a negative token id",
        lambda c: c.client.encode_tokens([[1], [2, -1]]),
        "sequence 1 has id -1 at position 1; the model's ids are 0 to 70: use the model's own tokenizer",
    ),
    (
        "lengths and data that differ",
        lambda c: c.send(tokens([2, 2], ids=3)),
        (
            "tokens.data has 12 bytes; the lengths add up to 4 × 1 values of 4 bytes, which take 16: "
            "correct the lengths or the data"
        ),
    ),
    (
        "too many sequences",
        lambda c: c.send(tokens([1] * 9)),
        "the request has 9 sequences; the server accepts at most 8: split the request",
    ),
    (
        "too many tokens",
        lambda c: c.send(tokens([49] * 2)),
        "the request has 98 tokens; the server accepts at most 96: split the request",
    ),
    (
        "an unknown model",
        lambda c: c.client.encode(["bread"], model="huge"),
        "the server has no model 'huge': send one of 'tiny-text'",
    ),
    (
        "an unknown prompt",
        lambda c: c.client.encode(["bread"], prompt="question"),
        (
            "texts.prompt: the model has no prompt 'question' (its prompts: 'query', 'passage', "
            "'document'): name one of them, or leave the field empty"
        ),
    ),
    (
        "a layer out of range",
        lambda c: c.client.attend("bread", layers=[2]),
        "layers contains the index 2; valid indices are 0 to 1: choose among them",
    ),
]

# The feature model accepts sequences of at most 48 feature vectors of width 6.
FROM_FEATURE_MODEL: list[tuple[str, Callable[[Caller], object], str]] = [
    (
        "a wrong width",
        lambda c: c.client.encode_features([np.ones((3, 5))]),
        "features.width is 5; the model takes features of width 6: send rows of that width",
    ),
    ("texts", lambda c: c.client.encode(["bread"]), "texts: the model has no tokenizer: send token ids or features"),
]


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

# Lines of a file for `headwaiter-client encode`.
FROM_COMMAND: list[tuple[str, str, str]] = [
    ("an empty line", "bread\n\nrain\n", "line 2 of texts is empty: each line must hold a text"),
    (
        "a line too long",
        "bread\n" + "bread " * 40 + "\n",
        (
            "line 2 of texts has 42 tokens; the model accepts texts of at most 32 tokens, special tokens "
            "and prompt included: shorten, split or truncate it (--truncation left or right cuts long texts)"
        ),
    ),
]

# Flags of `headwaiter-client`, whose errors name the flags.
FROM_FLAGS: list[tuple[str, list[str], str]] = [
    (
        "an unknown model",
        ["similar", "bread", "texts", "--model", "huge"],
        "the server has no model 'huge': give one of 'tiny-text' as --model",
    ),
    (
        "an unknown prompt",
        ["similar", "bread", "texts", "--prompt", "question"],
        (
            "--prompt: the model has no prompt 'question' (its prompts: 'query', 'passage', 'document'): "
            "name one of them, or leave the flag out"
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
        "--layer is 2; valid indices are 0 to 1: choose among them",
    ),
    (
        "an output that exists",
        ["encode", "texts", "-o", "texts"],
        "texts already exists: replace it with --overwrite, or name another file with --output",
    ),
    (
        "an output that is a folder",
        ["encode", "texts", "-o", ".", "--overwrite"],
        ". is a folder, not a regular file: name another file with --output",
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
            "--address 'localhost' is not of the form host:port: pass a server such as localhost:50051, [::1]:50051 or "
            "unix:path, or several, with commas between them"
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
    "no token file": "the call carries no bearer token: name the file that holds the token with --token-file",
    "a wrong token file": (
        "the token is not the one that the server wants for this command: name the file of the right token with "
        "--token-file"
    ),
    "no --model": (
        "the request names no model, and the server has several: give one of 'features', 'texts' as --model"
    ),
    "an unknown NAME": "the server has no model 'huge': give one of 'features', 'texts' as NAME",
    "no bundle": (
        "there is no bundle at FOLDER/nowhere: make one with headwaiter-export checkpoint FOLDER -o FOLDER/nowhere"
    ),
}


def rows(table: Sequence[tuple[str, Any, str]]) -> pytest.MarkDecorator:
    """Run a test once per row, with the row's cause and sentence."""
    return pytest.mark.parametrize(("cause", "sentence"), [row[1:] for row in table], ids=[row[0] for row in table])


@pytest.fixture(scope="module")
def text_model(text_server: RunningServer) -> Iterator[Caller]:
    caller = Caller(text_server.address)
    yield caller
    caller.close()


@pytest.fixture(scope="module")
def feature_model(feature_server: RunningServer) -> Iterator[Caller]:
    caller = Caller(feature_server.address)
    yield caller
    caller.close()


@rows(FROM_TEXT_MODEL)
def test_the_server_of_a_text_model_says(text_model: Caller, cause: Callable[[Caller], object], sentence: str) -> None:
    assert sentence_of(lambda: cause(text_model)) == sentence


@rows(FROM_FEATURE_MODEL)
def test_the_server_of_a_feature_model_says(
    feature_model: Caller, cause: Callable[[Caller], object], sentence: str
) -> None:
    assert sentence_of(lambda: cause(feature_model)) == sentence


@rows(FROM_CLIENT)
def test_the_client_says(cause: Callable[[], object], sentence: str) -> None:
    assert sentence_of(cause) == sentence


@rows(FROM_SETTINGS)
def test_the_server_command_says(cause: list[str], sentence: str) -> None:
    assert sentence_of(lambda: read_settings(cause, {})) == sentence


@rows(FROM_COMMAND)
def test_the_client_command_says(
    text_server: RunningServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    cause: str,
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("texts").write_text(cause)
    assert client_command(["encode", "texts", "-o", "out.npy", "--address", text_server.address]) == 1
    assert capsys.readouterr().err == f"headwaiter-client: {sentence}\n"


@rows(FROM_FLAGS)
def test_the_client_command_says_of_its_flags(
    text_server: RunningServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    cause: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWAITER_CLIENT_ADDRESS", text_server.address)
    Path("texts").write_text("bread\n")
    assert client_command(cause) == 1
    assert capsys.readouterr().err == f"headwaiter-client: {sentence}\n"


async def test_a_full_queue_says(text_bundle: Path) -> None:
    limits = {"max_queue_tokens": 10, "max_request_tokens": 10}
    async with serving(text_bundle, **limits) as server, connect(server) as client:
        with paused_device() as device:
            running = asyncio.create_task(client.encode_tokens([[1] * 3]))
            await device.wait_for_batch()
            waiting = asyncio.create_task(client.encode_tokens([[1] * 8]))
            await wait_until(client, lambda: metric_value(metrics_url(server), "headwaiter_queue_tokens") == 8)
            with pytest.raises(Overloaded) as refused:
                await client.encode_tokens([[1] * 4])
            device.resume()
            await asyncio.gather(running, waiting)
    # The delay is an estimate, so it differs from run to run.
    assert re.sub(r"\d+\.\d+ s", "N s", str(refused.value)) == FROM_SERVER_STATE["a full queue"]


async def test_a_draining_server_says(text_bundle: Path) -> None:
    async with serving(text_bundle) as server, connect(server) as client:
        with paused_device() as device:
            running = asyncio.create_task(client.encode_tokens([[1] * 3]))
            await device.wait_for_batch()
            drained = asyncio.create_task(server.drain())
            with pytest.raises(Unavailable) as refused:
                await client.encode_tokens([[1]])
            device.resume()
            await asyncio.gather(running, drained)
    assert str(refused.value) == FROM_SERVER_STATE["a drain"]


async def test_a_server_with_a_token_says(text_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    said = []
    async with serving(text_bundle, token_file=tmp_path / "token") as server:
        for token in (None, "another"):
            async with AsyncClient(f"127.0.0.1:{server.port}", token=token) as client:
                with pytest.raises(Unauthenticated) as refused:
                    await client.encode(["bread"])
                said.append(str(refused.value))
    assert said == [FROM_SERVER_STATE["no token"], FROM_SERVER_STATE["a wrong token"]]


async def test_the_client_command_says_of_tokens(
    text_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text("secret")
    (tmp_path / "another").write_text("another")
    async with serving(text_bundle, token_file=tmp_path / "token") as server:
        command = ["models", "--address", f"127.0.0.1:{server.port}"]
        assert await asyncio.to_thread(client_command, command) == 1
        assert await asyncio.to_thread(client_command, [*command, "--token-file", str(tmp_path / "another")]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"headwaiter-client: {FROM_SERVER_STATE[state]}" for state in ("no token file", "a wrong token file")
    ]


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


def sentence_of(call: Callable[[], object]) -> str:
    """Return the sentence of the error that a call raises."""
    with pytest.raises((HeadwaiterError, SettingsError, TypeError, ValueError, grpc.RpcError)) as raised:
        call()
    error: Any = raised.value
    return str(error.details() if isinstance(error, grpc.RpcError) else error)
