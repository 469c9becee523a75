"""The playground: a page for the browser that shows what a server's models do, and the JSON form of its calls.

The server and the command `headwaiter-client playground` both serve this page. This package imports only
`headwaiter_proto`.
"""
