// A call of the page as a program: for curl, for Python, and for OpenAI's client where OpenAI has such a call. Pure
// functions.

const TOKEN = "HEADWAITER_TOKEN"; // The environment variable from which the programs take the token.

/** Return the command that makes a call; `address` is that of the page, `hasToken` whether the server asks for one. */
export function asCurl({ method, request }, address, hasToken) {
    const headers = ["Content-Type: application/json"].map(shellQuoted);
    if (hasToken) headers.push(`"Authorization: Bearer $${TOKEN}"`);
    const parts = [`curl ${shellQuoted(`${address}call/${method}`)}`, ...headers.map((header) => `-H ${header}`)];
    // An argument has at most 128 KiB in Linux, which the picture in a request may exceed.
    return lines([...parts, "-d @- <<'END'"].join(" \\\n  "), JSON.stringify(request), "END");
}

/** Return the program in Python that makes a call; it needs no package. */
export function asPython({ method, request }, address, hasToken) {
    const token = hasToken ? `, "Authorization": "Bearer " + os.environ["${TOKEN}"]` : "";
    return lines(
        "import json",
        hasToken && "import os",
        "import urllib.request",
        "",
        `body = json.loads(${pythonQuoted(JSON.stringify(request))})`,
        "request = urllib.request.Request(",
        `    ${pythonQuoted(`${address}call/${method}`)},`,
        "    json.dumps(body).encode(),",
        `    {"Content-Type": "application/json"${token}},`,
        ")",
        "with urllib.request.urlopen(request) as response:",
        "    print(json.load(response))",
    );
}

/** Return the program for OpenAI's client that lists the models, or encodes texts. */
export function asOpenAi({ method, request }, address, hasToken) {
    const call = openAiCall(method, request);
    const key = hasToken ? `os.environ["${TOKEN}"]` : '"none"';
    return lines(
        "# The server needs --http-api on.",
        hasToken && "import os\n",
        "from openai import OpenAI",
        "",
        `client = OpenAI(base_url=${pythonQuoted(new URL("../v1", address).href)}, api_key=${key})`,
        `print(client.${call})`,
    );
}

function openAiCall(method, { model, texts }) {
    if (method === "ListModels") return "models.list()";
    return `embeddings.create(model=${pythonQuoted(model)}, input=[${texts.values.map(pythonQuoted).join(", ")}])`;
}

/** Return a text of lines, without those that are false. */
function lines(...each) {
    return `${each.filter((line) => line !== false).join("\n")}\n`;
}

function shellQuoted(text) {
    return `'${text.replaceAll("'", "'\\''")}'`;
}

/** Return a text as a literal of Python: that of JSON, but Python has another form for an emoji in ASCII. */
function pythonQuoted(text) {
    const escaped = (character) => `\\U${character.codePointAt(0).toString(16).padStart(8, "0")}`;
    return JSON.stringify(text).replace(/[^ -~]/gu, escaped);
}
