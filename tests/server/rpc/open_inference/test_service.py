"""A server that starts is live and not ready; a server that is ready answers typed and raw requests."""

from pathlib import Path

import pytest

from headwaiter_proto import open_inference_pb2 as oip
from headwaiter_proto.rules.errors import Unavailable
from headwaiter_server.engine.local import LocalEngine
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.open_inference.methods import OpenInferenceMethods
from headwaiter_server.requests.request_path import RequestPath
from headwaiter_server.rpc.open_inference.service import OpenInferenceService
from headwaiter_server.rpc.open_streams import OpenStreams
from headwaiter_server.settings.flags import Settings
from tests.support.server.service_under_test import calls_of, endless_call


async def test_a_starting_server_is_live_and_neither_ready_nor_has_models(tmp_path: Path) -> None:
    settings, recorder = Settings(bundle=tmp_path), Recorder()
    path = RequestPath(settings, recorder, LocalEngine(settings, recorder))
    starting, call = OpenInferenceMethods(path), endless_call()
    assert (await starting.server_live(oip.ServerLiveRequest(), call)).live
    assert not (await starting.server_ready(oip.ServerReadyRequest(), call)).ready
    assert not (await starting.model_ready(oip.ModelReadyRequest(), call)).ready
    with pytest.raises(Unavailable, match="starting"):
        await starting.model_metadata(oip.ModelMetadataRequest(), call)
    with pytest.raises(Unavailable, match="starting"):
        await starting.repository_index(oip.RepositoryIndexRequest(), call)
    with pytest.raises(Unavailable, match="starting"):
        await OpenInferenceService(path, calls_of(path), OpenStreams(path)).model_infer(b"", call)
