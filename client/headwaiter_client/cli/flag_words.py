"""Say in the words of the command line what the client and the server say in theirs: flags instead of arguments."""

import re

# The client names arguments of Python, and the server names fields of a request and metadata of a call.
_MODELS = re.compile(r"\bsend one of ('.*)$")
_WORDS = [
    (re.compile(pattern), words)
    for pattern, words in (
        (r"send the metadata authorization: Bearer TOKEN", "name the file that holds the token with --token-file"),
        (
            r"the call's metadata authorization is not the server's bearer token: .*",
            "the token is not the one that the server wants for this command: name the file of the right token with "
            "--token-file",
        ),
        (r"(the credentials that the proxy in front of the server requires)", r"\1, and --token-file"),
        (r"\btimeout_s\b", "--timeout-s"),
        (r"\bcheck the address, tls,", "check --address, --tls,"),
        (r"\bleave tls out\b", "leave the --tls flags out"),
        (r"\bpass tls=TlsConfig\(\)", "pass --tls"),
        (r"\bcheck that the address is", "check that --address is"),
        (r"^address\b", "--address"),
        (r"\bor a list of replicas$", "or several, with commas between them"),
        (r"^token\b", "the content of --token-file"),
        (r"^(ca|cert|key): ", r"--tls-\1: "),
        (r"\bgive the key of cert$", "give the key of --tls-cert"),
        (r"^texts\.prompt: ", "--prompt: "),
        (r"^output\.dimensions\b", "--dimensions"),
        (r"^(layer|head)s contains the index ", r"--\1 is "),
        (r"^(model|prompt) is ", r"--\1 is "),
        (r"\bleave the field empty$", "leave the flag out"),
    )
]


def with_flags(message: str, model: str = "--model") -> str:
    """Return the message of an error with the names of flags; `model` is the argument that names a model."""
    for pattern, words in _WORDS:
        message = pattern.sub(words, message)
    return _MODELS.sub(rf"give one of \1 as {model}", message)
