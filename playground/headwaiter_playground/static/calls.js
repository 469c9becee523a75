// Calls of the server. A call waits for the token that the user types, and for a server that starts or is away.
import { pause, unlessAborted } from "./loader.js";
import { wireSeconds } from "./wire_times.js";

// What the user looks at never waits behind a long run: each has a lane with so many calls in flight. A browser has at
// most six connections to a server.
const LOOK = "look";
export const LONG_RUN = "long run";
const MOST_IN_FLIGHT = { [LOOK]: 2, [LONG_RUN]: 4 };
const MAX_RECORDS = 20; // Of each method.
const LONGEST_PAUSE_S = 30;

/** The server refused a call. `reason` is the name of an ErrorReason, or empty. */
export class CallError extends Error {
    constructor(message, reason = "") {
        super(message);
        this.reason = reason;
    }
}

/** The server cannot answer now, but may after `retryAfterS` seconds; NaN if it named no time. */
export class NoAnswer extends CallError {
    constructor(message, reason, retryAfterS) {
        super(message, reason);
        this.retryAfterS = retryAfterS;
    }
}

class TokenRefused extends CallError {}

/**
 * Makes calls. Fires these events: "token-needed" when calls wait for `useToken`; "waiting" when `waitsFor` has
 * changed, the message of a server for which calls wait, or an empty text; "made" with the `method`, the `request` and
 * the `lane` of a call; and "recorded" when `records` has changed, the timings of the last requests, newest last.
 */
export class Calls extends EventTarget {
    #lanes = { [LOOK]: new Lane(MOST_IN_FLIGHT[LOOK]), [LONG_RUN]: new Lane(MOST_IN_FLIGHT[LONG_RUN]) };
    #token = "";
    #signIn = null; // While calls wait for the token: `done`, a promise, and the function that resolves it.
    #waiting = new Map(); // The messages of the server for which calls wait.

    #made = 0;
    #recorded = 0;

    constructor(send = (url, options) => fetch(url, options), now = () => performance.now(), onWireS = wireSeconds) {
        super();
        this.records = [];
        this.onWireS = onWireS;
        this.send = send;
        this.now = now;
    }

    /** Let all further calls wait for the token. `message` says why the server refused the last one. */
    askForToken(message = "") {
        if (this.#signIn) return;
        this.#signIn = {};
        this.#signIn.done = new Promise((resolve) => (this.#signIn.resolve = resolve));
        this.dispatchEvent(Object.assign(new Event("token-needed"), { message }));
    }

    /** Send a token with all further calls, and with those that wait for one. */
    useToken(token) {
        this.#token = token;
        this.#signIn?.resolve();
        this.#signIn = null;
    }

    /** Whether calls carry a token. */
    get hasToken() {
        return this.#token !== "";
    }

    get waitsFor() {
        return [...this.#waiting.values()].at(-1) ?? "";
    }

    /**
     * Return the reply to a call. A call of the lane LOOK that the server cannot answer now is made again; one of a
     * LONG_RUN fails with NoAnswer. Throws a CallError if the server refuses the call.
     */
    async call(method, request, { signal, lane = LOOK } = {}) {
        const own = Symbol(method);
        this.dispatchEvent(Object.assign(new Event("made"), { method, request, lane }));
        try {
            for (let attempt = 0; ; attempt += 1) {
                if (this.#signIn) await unlessAborted(this.#signIn.done, signal);
                try {
                    return await this.#lanes[lane].run(() => this.#timed(method, request, signal), signal);
                } catch (error) {
                    if (error instanceof TokenRefused) continue;
                    if (!(error instanceof NoAnswer) || lane === LONG_RUN) throw error;
                    this.#wait(own, error.message);
                    const seconds = error.retryAfterS || Math.min(2 ** attempt, LONGEST_PAUSE_S);
                    // A hidden page asks nothing.
                    do await pause(1000 * seconds, signal);
                    while (globalThis.document?.hidden);
                }
            }
        } finally {
            this.#wait(own, "");
        }
    }

    #wait(call, message) {
        const before = this.waitsFor;
        if (message) this.#waiting.set(call, message);
        else this.#waiting.delete(call);
        if (this.waitsFor !== before) this.dispatchEvent(new Event("waiting"));
    }

    async #timed(method, request, signal) {
        // The number tells the browser's records of calls of one method apart.
        this.#made += 1;
        const path = `call/${method}?${this.#made}`;
        const wireS = this.onWireS(path);
        const startedMs = this.now();
        const reply = await this.#post(path, request, signal);
        if (reply.timings) this.#record(method, (this.now() - startedMs) / 1000, wireS, reply);
        return reply;
    }

    async #post(path, request, signal) {
        const headers = { "Content-Type": "application/json" };
        const token = this.#token;
        if (token) headers.Authorization = `Bearer ${token}`;
        const options = {
            method: "POST",
            headers,
            body: JSON.stringify(request),
            credentials: "omit",
            cache: "no-store",
            signal,
        };
        let response, body;
        try {
            response = await this.send(path, options);
            body = await response.json();
        } catch {
            signal?.throwIfAborted();
            const cause = response ? `an answer that is not JSON (status ${response.status})` : "no answer";
            throw new NoAnswer(`The server gave ${cause}: check that the server runs.`, "", NaN);
        }
        if (response.status === 200) return body;
        const [message, reason] = [String(body.message ?? `status ${response.status}`), String(body.reason ?? "")];
        if (response.status === 401) {
            // The refusal of an old token says nothing about the token that the user has typed since.
            if (token === this.#token) this.askForToken(token && message);
            throw new TokenRefused(message, reason);
        }
        const retryAfter = response.headers.get("Retry-After");
        if (retryAfter) throw new NoAnswer(message, reason, Number(retryAfter));
        throw new CallError(message, reason);
    }

    async #record(method, browserS, wireS, { timings, lengths, model }) {
        this.#recorded += 1;
        const record = {
            number: this.#recorded,
            method,
            model: model?.name ?? "",
            sequences: lengths?.length ?? 1,
            timings,
            browserS,
            wireS: await wireS,
        };
        const ofMethod = this.records.filter((each) => each.method === method);
        const oldest = ofMethod.length === MAX_RECORDS ? ofMethod[0] : null;
        const kept = this.records.filter((each) => each !== oldest);
        this.records = [...kept, record].sort((one, other) => one.number - other.number);
        this.dispatchEvent(new Event("recorded"));
    }
}

/**
 * Return the token in what a user typed, which may be the whole header that holds it. Throws a RangeError if the text
 * can be no token: a browser would refuse to send it.
 */
export function readToken(text) {
    const token = text.trim().replace(/^(authorization:\s*)?bearer(\s+|$)/i, "");
    if (!token) throw new RangeError("The field is empty: type the token.");
    if (!/^[!-~]+$/.test(token))
        throw new RangeError("A token has only plain letters, digits and signs, and no spaces: type it again.");
    return token;
}

/** Runs work in the order in which it comes, a few at a time. */
class Lane {
    #most;
    #running = 0;
    #waiting = [];

    constructor(most) {
        this.#most = most;
    }

    async run(work, signal) {
        if (this.#running >= this.#most) await new Promise((begin) => this.#waiting.push(begin));
        this.#running += 1;
        try {
            signal?.throwIfAborted();
            return await work();
        } finally {
            this.#running -= 1;
            this.#waiting.shift()?.();
        }
    }
}
