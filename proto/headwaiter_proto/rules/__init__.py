"""The rules of the wire that the server and the client's FakeEncoder share: errors, checks of requests, replies."""
