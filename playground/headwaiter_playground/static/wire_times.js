// How long the browser says that a request was under way, without the page's own work.

const LONGEST_WAIT_MS = 1000;
const waiting = new Map();

if (globalThis.document)
    new PerformanceObserver((list) => {
        for (const { name, requestStart, responseEnd } of list.getEntries())
            waiting.get(name)?.((responseEnd - requestStart) / 1000);
    }).observe({ type: "resource" });

/** Return the seconds from the first byte of a request to the last byte of its reply; NaN if the browser tells none. */
export function wireSeconds(path) {
    if (!globalThis.document) return NaN;
    const address = new URL(path, document.baseURI).href;
    return new Promise((told) => {
        waiting.set(address, told);
        setTimeout(told, LONGEST_WAIT_MS, NaN);
    }).finally(() => waiting.delete(address));
}
