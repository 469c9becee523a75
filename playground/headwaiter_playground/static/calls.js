// Calls of the server: at most two at a time, with the token that the user typed, and a record of how long each took.

const MAX_IN_FLIGHT = 2;
const MAX_RECORDS = 12;

/** The server refused a call, or could not be reached. `reason` is the name of an ErrorReason, or empty. */
export class CallError extends Error {
    constructor(message, reason = "") {
        super(message);
        this.reason = reason;
    }
}

/**
 * Makes calls. Fires the events "token-needed", and "recorded" when `records` has changed: the timings of the last
 * requests, newest last.
 */
export class Calls extends EventTarget {
    constructor(send = (url, options) => fetch(url, options), now = () => performance.now()) {
        super();
        this.records = [];
        this.token = "";
        this.send = send;
        this.now = now;
        this.inFlight = 0;
        this.waiting = [];
    }

    /** Return the reply to a call; throw a CallError. */
    async call(method, request) {
        await this.#turn();
        try {
            const startedMs = this.now();
            const reply = await this.#post(method, request);
            if (reply.timings) this.#record(method, (this.now() - startedMs) / 1000, reply);
            return reply;
        } finally {
            this.inFlight -= 1;
            this.waiting.shift()?.();
        }
    }

    async #turn() {
        if (this.inFlight >= MAX_IN_FLIGHT) await new Promise((begin) => this.waiting.push(begin));
        this.inFlight += 1;
    }

    async #post(method, request) {
        const headers = { "Content-Type": "application/json" };
        const token = this.token;
        if (token) headers.Authorization = `Bearer ${token}`;
        const options = {
            method: "POST",
            headers,
            body: JSON.stringify(request),
            credentials: "omit",
            cache: "no-store",
        };
        let status, body;
        try {
            const response = await this.send(`call/${method}`, options);
            status = response.status;
            body = await response.json();
        } catch {
            const cause = status ? `an answer that is not JSON (status ${status})` : "no answer";
            throw new CallError(`The server gave ${cause}: check that the server runs.`);
        }
        if (status === 200) return body;
        // The refusal of an old token says nothing about the token that the user has typed since.
        if (status === 401 && token === this.token) this.dispatchEvent(new Event("token-needed"));
        throw new CallError(String(body.message ?? `status ${status}`), String(body.reason ?? ""));
    }

    #record(method, browserS, reply) {
        const record = { method, browserS, timings: reply.timings, sequences: reply.lengths?.length ?? 1 };
        this.records = [...this.records, record].slice(-MAX_RECORDS);
        this.dispatchEvent(new Event("recorded"));
    }
}

/** Return a function that runs `act` once no call of it has come for `waitMs`. */
export function debounced(act, waitMs) {
    let timer;
    return () => {
        clearTimeout(timer);
        timer = setTimeout(act, waitMs);
    };
}

/**
 * Return a function that runs `work`, and hands its result to `show` unless a later run has begun. Errors go to `fail`.
 * So the answer to an old text never replaces the answer to a newer one. `work` gets a function that returns whether its
 * run is the latest, so that work in several steps can end early.
 */
export function latestOnly(work, show, fail) {
    let last = 0;
    return async () => {
        last += 1;
        const run = last;
        const isLatest = () => run === last;
        try {
            const result = await work(isLatest);
            if (isLatest()) show(result);
        } catch (error) {
            if (isLatest()) fail(error);
        }
    };
}
