// The server's queue, batches and throughput, read from its metrics page while the tab is visible.
import { sparkline } from "./charts.js";
import { byId, element } from "./dom.js";
import { fixed, percent } from "./numbers.js";
import { meanBetween, ratePerS, readTotals } from "./prometheus.js";

const INTERVAL_MS = 2000;
const MOST_READINGS = 60;
// What the view shows: each function gets the readings before and now, and the seconds between them.
const TILES = [
    {
        name: "Queue",
        unit: "sequences",
        read: (before, now) => now.get("headwaiter_queue_sequences") ?? 0,
        text: (value) => fixed(value, 0),
    },
    {
        name: "Batch size",
        unit: "sequences, on average",
        read: (before, now) => meanBetween(before, now, "headwaiter_batch_sequences"),
        text: (value) => fixed(value, 1),
    },
    {
        name: "Padding",
        unit: "of attention cells, on average",
        read: (before, now) => meanBetween(before, now, "headwaiter_batch_padding_ratio"),
        text: percent,
    },
    {
        name: "Throughput",
        unit: "sequences per second",
        read: (before, now, seconds) => ratePerS(before, now, "headwaiter_batch_sequences_sum", seconds),
        text: (value) => fixed(value, 1),
    },
];

/** Return an object that starts and stops the view. */
export function liveView() {
    const note = byId("live-note");
    const series = TILES.map(() => []);
    let timer = 0;
    let last = null;

    async function tick() {
        if (document.hidden) return;
        let response;
        try {
            response = await fetch("../metrics", { credentials: "omit", cache: "no-store" });
        } catch {
            note.textContent = "The server does not answer.";
            return;
        }
        if (response.status !== 200) {
            // The client's page server has no metrics: metrics come from the HTTP port of the server itself.
            note.textContent =
                "This address has no metrics. To see them, open the playground at the HTTP port of the server itself.";
            stop();
            return;
        }
        const now = { totals: readTotals(await response.text()), atMs: performance.now() };
        if (last) show(now, (now.atMs - last.atMs) / 1000);
        last = now;
    }

    function show(now, seconds) {
        const tiles = TILES.map(({ name, unit, read, text }, index) => {
            const value = read(last.totals, now.totals, seconds);
            series[index] = [...series[index], value].slice(-MOST_READINGS);
            const line = sparkline(series[index], `${name} over the last ${series[index].length} readings`);
            return element(
                "div",
                { class: "tile" },
                name,
                element("b", {}, text(value)),
                element("span", { class: "hint" }, unit),
                line,
            );
        });
        byId("live").replaceChildren(...tiles);
    }

    function stop() {
        clearInterval(timer);
        timer = 0;
        last = null;
    }

    return {
        start() {
            if (timer) return;
            timer = setInterval(tick, INTERVAL_MS);
            tick();
        },
        stop,
    };
}
