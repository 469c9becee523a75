"""What KServe's own packages say and do; runs with the Python of an environment that has `kserve` and `kserve-storage`.

kserve_program.py unknown FILE...       prints the fields of manifests that KServe's models do not have
kserve_program.py download URI FOLDER   does what the storage initializer does
kserve_program.py infer ADDRESS NAME    prints the shape of the vectors of a model, over gRPC
kserve_program.py rest URL NAME         prints the same, over HTTP
"""

import asyncio
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kserve
import kubernetes
import numpy as np
import yaml
from kserve_storage import Storage

KINDS = {"ClusterServingRuntime": "V1alpha1ClusterServingRuntime", "InferenceService": "V1beta1InferenceService"}


def unknown(value: Any, type_name: str, path: str) -> Iterator[str]:
    """Yield the paths of the fields that a model of KServe, or of Kubernetes' client, does not have."""
    if found := re.fullmatch(r"(?:list|List)\[(.+)\]", type_name):
        for index, each in enumerate(value):
            yield from unknown(each, found[1], f"{path}.{index}")
        return
    model = getattr(kserve, type_name, None) or getattr(kubernetes.client, type_name, None)
    if model is None or not isinstance(value, dict):
        return
    names = {name: attribute for attribute, name in model.attribute_map.items()}
    for name, each in value.items():
        if name in names:
            yield from unknown(each, model.openapi_types[names[name]], f"{path}.{name}")
        else:
            yield f"{path}.{name}"


async def infer(address: str, name: str) -> None:
    """Encode two texts with KServe's client."""
    texts = kserve.InferInput("text", [2], "BYTES")
    texts.set_data_from_numpy(np.array([b"the bread is fresh", b"rain falls on stone"], object))
    client = kserve.InferenceGRPCClient(address)
    assert await client.is_server_live()
    assert await client.is_server_ready()
    assert await client.is_model_ready(name)
    reply = await client.infer(kserve.InferRequest(name, [texts]))
    (output,) = reply.outputs
    print(reply.model_name, output.name, output.as_numpy().shape)
    await client.close()


async def infer_over_http(url: str, name: str) -> None:
    """Encode two texts with KServe's client for HTTP."""
    texts = kserve.InferInput("text", [2], "BYTES")
    texts.set_data_from_numpy(np.array([b"the bread is fresh", b"rain falls on stone"], object), binary_data=False)
    client = kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v2"))
    assert await client.is_server_live(url)
    assert await client.is_server_ready(url)
    assert await client.is_model_ready(url, name)
    reply = await client.infer(url, kserve.InferRequest(name, [texts]), model_name=name)
    (output,) = reply.outputs
    print(reply.model_name, output.name, output.as_numpy().shape)
    await client.close()


def main() -> None:
    """Do what the command line says."""
    command, *arguments = sys.argv[1:]
    if command == "unknown":
        for file in arguments:
            for manifest in yaml.safe_load_all(Path(file).read_text()):
                if kind := KINDS.get(manifest["kind"]):
                    print(*unknown(manifest, kind, manifest["kind"]), sep="\n", end="")
    elif command == "download":
        Storage.download(*arguments)
    elif command == "rest":
        asyncio.run(infer_over_http(*arguments))
    else:
        asyncio.run(infer(*arguments))


if __name__ == "__main__":
    main()
