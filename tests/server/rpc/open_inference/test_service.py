"""A server that starts is live and not ready; a server that is ready answers typed and raw requests."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headwaiter_proto import open_inference_pb2 as oip
from headwaiter_proto.rules.errors import InvalidInput, Unavailable
from headwaiter_server.engine.local import LocalEngine
from headwaiter_server.metrics.recorder import Recorder
from headwaiter_server.open_inference.methods import OpenInferenceMethods
from headwaiter_server.requests.request_path import RequestPath
from headwaiter_server.rpc.open_inference.service import OpenInferenceService
from headwaiter_server.rpc.open_streams import OpenStreams
from headwaiter_server.settings.flags import Settings
from tests.support.e2e.open_inference_caller import arrays, raw_request
from tests.support.server.service_under_test import Service, calls_of, endless_call


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


async def test_a_reply_echoes_the_id_and_the_call_adopts_it(serve: Callable[..., Service]) -> None:
    service = serve()
    inference = OpenInferenceService(service.path, calls_of(service.path), OpenStreams(service.path))
    request = raw_request("tiny", ("hidden", "pooled"), input_ids=np.array([[1, 2], [3, 4]], np.int32))
    request.id = "r-1"
    call = endless_call()
    reply = oip.ModelInferResponse.FromString(await inference.model_infer(request.SerializeToString(), call))
    assert (reply.id, call.request_id, call.model) == ("r-1", "r-1", ("tiny", "1"))
    assert arrays(reply)["pooled"].tolist() == [[3, 2], [7, 2]]
    assert arrays(reply)["hidden"].tolist() == [[[1, 1], [2, 1]], [[3, 1], [4, 1]]]
    totals = service.served.recorder.statistics.totals()
    assert (totals.succeeded.count, totals.failed.count, totals.sequences) == (1, 0, 2)
    with pytest.raises(InvalidInput):
        await inference.model_infer(oip.ModelInferRequest().SerializeToString(), endless_call())
    assert service.served.recorder.statistics.totals().failed.count == 1
