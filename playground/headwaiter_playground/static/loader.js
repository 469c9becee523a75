// Loads what a view shows: only the last request of a view counts, and the requests before it are cancelled.

// A run that replaces a run which has not ended waits this long. Of many clicks at once, the first and the last ask.
const REPLACING_PAUSE_MS = 150;

/**
 * Return an object that runs `work` and hands its result to `show`, or its error to `fail`. A new run cancels the run
 * before, which then shows nothing: so the answer to an old text never replaces the answer to a newer one. `work` gets
 * the AbortSignal of its run.
 */
export function loader(work, show, fail) {
    let running = null;

    function cancel() {
        running?.abort();
        running = null;
    }

    return {
        /** Run anew; the promise ends with the run, also with one that is cancelled or fails. */
        async run() {
            const replaces = running !== null;
            cancel();
            const own = (running = new AbortController());
            try {
                if (replaces) await pause(REPLACING_PAUSE_MS, own.signal);
                const result = await work(own.signal);
                if (running !== own) return;
                running = null;
                show(result);
            } catch (error) {
                if (own.signal.aborted) return;
                if (running === own) running = null;
                fail(error);
            }
        },
        cancel,
        get isRunning() {
            return running !== null;
        },
    };
}

/** Return a promise that ends after a time, or fails once a signal aborts. */
export function pause(milliseconds, signal) {
    let timer;
    const over = new Promise((end) => (timer = setTimeout(end, milliseconds)));
    return unlessAborted(over, signal).finally(() => clearTimeout(timer));
}

/** Return a promise with the result of another one, which fails once a signal aborts. */
export function unlessAborted(promise, signal) {
    if (!signal) return promise;
    return new Promise((end, fail) => {
        const abort = () => fail(signal.reason);
        if (signal.aborted) abort();
        signal.addEventListener("abort", abort, { once: true });
        promise.then(end, fail).finally(() => signal.removeEventListener("abort", abort));
    });
}

/** Return a function that runs `act` once no call of it has come for `waitMs`. */
export function debounced(act, waitMs) {
    let timer;
    return () => {
        clearTimeout(timer);
        timer = setTimeout(act, waitMs);
    };
}
