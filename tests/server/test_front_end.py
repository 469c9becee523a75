"""The options of the gRPC server of a front end."""

from pathlib import Path

from headwaiter_server.front_end import channel_options
from headwaiter_server.settings.flags import Settings


def test_one_of_several_front_ends_takes_as_many_streams_of_a_connection_as_the_only_one() -> None:
    streams = {
        dict(channel_options(Settings(bundle=Path("bundle"), max_calls=300, front_ends=front_ends)))[
            "grpc.max_concurrent_streams"
        ]
        for front_ends in (0, 2, 12)
    }
    assert streams == {300 + 128}
