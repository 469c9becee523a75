// What the address of the page holds behind its #: the name of a tab, and what that tab shows. Pure functions.

// Chromium takes addresses of 2 MB, but other programs that pass links on take far less.
const MOST_CHARACTERS = 20_000;

// Each kind of field reads a value from the address, or undefined if the text is damaged, and writes one, or undefined
// if the address needs no text for it.
const text = { read: (written) => written, write: (value) => (value?.length > MOST_CHARACTERS ? undefined : value) };
const whole = { read: (written) => (/^\d{1,6}$/.test(written) ? Number(written) : undefined), write: (value) => value };
const flag = { read: (written) => written === "1", write: (value) => (value ? 1 : undefined) };
const number = {
    read: (written) => (/^\d{1,4}(\.\d{1,4})?$/.test(written) ? Number(written) : undefined),
    write: (value) => value,
};
const wholes = {
    read: (written) =>
        written
            .split(".")
            .map(whole.read)
            .filter((value) => value !== undefined),
    write: (value) => (value?.length ? value.join(".") : undefined),
};

// The fields that a tab may return from `state()`; a field of another tab needs one line here.
const FIELDS = {
    model: text,
    digest: text,
    layer: whole,
    head: whole,
    token: whole,
    secondLayer: whole,
    secondHead: whole,
    crossedOut: wholes,
    causal: flag,
    noSelf: flag,
    temperature: number,
    order: text,
    sought: whole,
    dim: flag,
    kind: text,
    query: text,
    text,
    second: text,
    document: whole,
    requests: whole,
    concurrency: whole,
    sequences: whole,
    words: whole,
};

/** Return the state that an address holds behind its #: `tab`, and the fields that are there and not damaged. */
export function readState(fragment) {
    const [tab, ...rest] = fragment.split("?");
    const written = new URLSearchParams(rest.join("?"));
    const values = Object.entries(FIELDS).map(([name, { read }]) => [
        name,
        written.has(name) ? read(written.get(name)) : undefined,
    ]);
    return { tab, ...Object.fromEntries(values.filter(([, value]) => value !== undefined)) };
}

/** Return what the address of a state holds behind its #. */
export function writeState({ tab, ...state }) {
    const values = Object.entries(FIELDS).map(([name, { write }]) => [name, write(state[name])]);
    const written = String(new URLSearchParams(values.filter(([, value]) => value !== undefined)));
    return written ? `${tab}?${written}` : tab;
}

/** Return whether a link shows a model in another version than the one that the server has now. */
export function isOfOtherVersion({ model, digest }, now) {
    return Boolean(digest) && model === now?.name && !now.digest.startsWith(digest);
}
