// A run of equal calls, a few at a time, and how long they took.
import { pause } from "./loader.js";

// The server answers the pages of all visitors at most 50 times a second; a run leaves some of that to others.
const LEAST_GAP_MS = 25;

/**
 * Make `count` calls with `call`, at most `concurrency` at a time, until all have a reply, one fails, or `signal` aborts.
 * `told` gets the number of replies whenever it grows. Return the `seconds` of each call with a reply, and the `error`
 * that ended the run, if any.
 */
export async function measuredRun({ count, concurrency, call, told, signal }, now = () => performance.now()) {
    const seconds = [];
    let begun = 0;
    let earliestMs = now();
    let error = null;

    async function caller() {
        while (begun < count && !error) {
            begun += 1;
            const beginMs = Math.max(now(), earliestMs);
            earliestMs = beginMs + LEAST_GAP_MS;
            if (beginMs > now()) await pause(beginMs - now(), signal);
            const startedMs = now();
            await call();
            seconds.push((now() - startedMs) / 1000);
            told(seconds.length);
        }
    }

    await Promise.all(Array.from({ length: concurrency }, () => caller().catch((cause) => (error ??= cause))));
    return { seconds, error };
}

/** Return the smallest of some numbers that a share of them does not exceed; NaN if there are none. */
export function percentile(values, share) {
    const sorted = [...values].sort((one, other) => one - other);
    return sorted[Math.ceil(share * sorted.length) - 1] ?? NaN;
}
