// Repeats a question to the server, for views that follow it while they are visible.

const PAUSE_MS = 2000;

/**
 * Return an object that runs `ask` from `start()` to `stop()`. Each run begins a pause after the run before has ended,
 * so that slow replies never pile up. A hidden page asks nothing.
 */
export function polling(ask, pauseMs = PAUSE_MS) {
    let run = 0; // Changes with each start and stop: what belongs to an older number ends.
    let timer = 0;

    async function repeat(own) {
        if (!globalThis.document?.hidden) await ask();
        if (own === run) timer = setTimeout(repeat, pauseMs, own);
    }

    function stop() {
        run += 1;
        clearTimeout(timer);
    }

    return {
        /** Ask now, and then again and again; a start while it runs begins anew. */
        start() {
            stop();
            repeat(run);
        },
        stop,
    };
}
