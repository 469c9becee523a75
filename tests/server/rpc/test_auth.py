"""A server with a token answers only calls that carry it, except health checks."""

from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.rpc.auth import BearerToken
from headwaiter_server.settings.credentials import Credentials
from tests.support.server.stand_ins import Context, sample, tokens_of

ENCODE = "/headwaiter.v1.Encoder/Encode"
HANDLER: Any = grpc.unary_unary_rpc_method_handler(lambda raw, context: raw)


async def _handler(
    method: str,
    *metadata: tuple[str, str],
    recorder: Recorder | None = None,
    tokens: tuple[str | None, str] = ("s3cret", "s3cret"),
) -> Any:
    async def continuation(details: grpc.HandlerCallDetails) -> Any:
        return HANDLER

    given = Credentials(tokens_of(tokens[0])(), tokens_of(tokens[1])())
    interceptor = BearerToken(lambda: given, recorder or Recorder())
    details = SimpleNamespace(method=method, invocation_metadata=metadata)
    return await interceptor.intercept_service(continuation, cast(grpc.HandlerCallDetails, details))


async def test_a_call_with_the_token_and_health_checks_without_it_are_answered() -> None:
    assert await _handler(ENCODE, ("authorization", "Bearer s3cret")) is HANDLER
    for method in ("Check", "Watch"):
        assert await _handler(f"/grpc.health.v1.Health/{method}") is HANDLER
    for method in ("ServerLive", "ServerReady", "ModelReady"):
        assert await _handler(f"/inference.GRPCInferenceService/{method}") is HANDLER
    assert await _handler("/inference.GRPCInferenceService/ModelMetadata") is not HANDLER


@pytest.mark.parametrize(
    "method",
    [
        "/headwaiter.v1.Encoder/LoadModel",
        "/headwaiter.v1.Encoder/UnloadModel",
        "/inference.GRPCInferenceService/RepositoryModelLoad",
        "/inference.GRPCInferenceService/RepositoryModelUnload",
    ],
)
@pytest.mark.parametrize("token", ["s3cret", None])
async def test_loading_and_unloading_need_the_token_of_their_own(method: str, token: str | None) -> None:
    tokens = (token, "4dmin")
    assert await _handler(method, ("authorization", "Bearer 4dmin"), tokens=tokens) is HANDLER
    for metadata in ((("authorization", "Bearer s3cret"),), ()):
        assert await _handler(method, *metadata, tokens=tokens) is not HANDLER
    assert (await _handler(ENCODE, ("authorization", "Bearer 4dmin"), tokens=tokens) is HANDLER) is (token is None)
    assert (await _handler(ENCODE, tokens=tokens) is HANDLER) is (token is None)


@pytest.mark.parametrize(
    "metadata", [(), (("authorization", "Bearer s3cre"),), (("x-authorization", "Bearer s3cret"),)]
)
async def test_a_call_without_the_token_is_unauthenticated(metadata: tuple[tuple[str, str], ...]) -> None:
    recorder, context = Recorder(), Context()
    refusal = await _handler(ENCODE, *metadata, recorder=recorder)
    await refusal.stream_stream(object(), context)
    assert context.code == grpc.StatusCode.UNAUTHENTICATED
    assert "authorization" in context.message
    assert "s3cret" not in context.message
    assert sample(recorder, "requests_total", model="", version="", method="Encode", code="UNAUTHENTICATED") == 1


async def test_unknown_methods_share_one_label_in_the_metrics() -> None:
    recorder = Recorder()
    for name in ("Made", "Up", "Encode/../Other"):
        refusal = await _handler(f"/headwaiter.v1.Encoder/{name}", recorder=recorder)
        await refusal.stream_stream(object(), Context())
    assert sample(recorder, "requests_total", model="", version="", method="other", code="UNAUTHENTICATED") == 3
