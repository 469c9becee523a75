"""What a caller learns if something other than a Headwaiter server answers, or nothing."""

import socket
import threading
from types import SimpleNamespace

import pytest

from headwaiter_client import Unavailable
from tests.support.client.fake_server import Call


@pytest.mark.usefixtures("starts_processes")
def test_an_answer_of_a_web_server_is_not_taken_for_one_of_a_server(call: Call) -> None:
    html = b"<html><body><h1>502 Bad Gateway</h1></body></html>"
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1)
                connection.sendall(b"HTTP/1.1 502 Error\r\nContent-Length: %d\r\n\r\n%b" % (len(html), html))
                while connection.recv(1 << 16):
                    pass

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(Unavailable) as caught:
            call(SimpleNamespace(address=f"127.0.0.1:{listener.getsockname()[1]}"), "encode", ["a"], timeout_s=20)
    assert str(caught.value).startswith("no Headwaiter server answered (UNAVAILABLE: ")
    assert "check the address" in str(caught.value)
    assert "<html>" not in str(caught.value)


def test_an_address_without_a_server_is_named_without_grpcs_list_of_attempts(call: Call) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(Unavailable) as caught:
            call(SimpleNamespace(address=address), "encode", ["a"])
    assert str(caught.value).startswith("no Headwaiter server answered (UNAVAILABLE: ")
    for fact in (address, "Connection refused", "check the address"):
        assert fact in str(caught.value)
    assert "failed to connect to all addresses" not in str(caught.value)
