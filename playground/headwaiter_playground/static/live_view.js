// The server's queue, batches and throughput, read from its metrics page while the tab is visible.
import { sparkline } from "./charts.js";
import { byId, element } from "./dom.js";
import { loader } from "./loader.js";
import { fixed, percent } from "./numbers.js";
import { polling } from "./polling.js";
import { meanBetween, ratePerS, readTotals } from "./prometheus.js";

const MOST_READINGS = 60;
// The samples that TILES read, of the many of the page.
const SAMPLES = new URLSearchParams(
    [
        "queue_sequences",
        "batch_sequences_sum",
        "batch_sequences_count",
        "batch_padding_ratio_sum",
        "batch_padding_ratio_count",
    ].map((name) => ["name[]", `headwaiter_${name}`]),
);
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
    const purpose = note.textContent;
    let last = null;
    let model = "";

    const load = loader(
        async (signal) => {
            const response = await fetch(`../metrics?${SAMPLES}`, { credentials: "omit", cache: "no-store", signal });
            const text = await response.text();
            if (response.status >= 500) throw new Error(`status ${response.status}`);
            return response.status === 200 ? { totals: readTotals(text, model), atMs: performance.now() } : null;
        },
        (now) => {
            if (now) {
                note.textContent = purpose;
                if (last) show(now, (now.atMs - last.atMs) / 1000);
                last = now;
            } else {
                // The client's page server has no metrics: metrics come from the HTTP port of the server itself.
                note.textContent =
                    "This address has no metrics. To see them, open the playground at the HTTP port of the server itself.";
                polls.stop();
            }
        },
        () => (note.textContent = "The server does not answer."),
    );
    const polls = polling(load.run);

    function show(now, seconds) {
        const tiles = TILES.map(({ name, unit, read, text }, index) => {
            const value = read(last.totals, now.totals, seconds);
            series[index].push(value);
            if (series[index].length > MOST_READINGS) series[index].shift();
            const label = `${name} over the last ${series[index].length} readings`;
            // Between batches there is nothing to measure: the last value stays.
            const known = series[index].findLast(Number.isFinite);
            return element(
                "div",
                { class: "tile" },
                name,
                element("b", {}, text(known)),
                element("span", { class: "hint" }, unit),
                sparkline(series[index], MOST_READINGS, label),
            );
        });
        byId("live").replaceChildren(...tiles);
    }

    return {
        /** Show the numbers of a model. */
        useModel(name) {
            load.cancel();
            model = name;
            last = null;
            for (const each of series) each.length = 0;
            byId("live").replaceChildren();
            byId("live-title").textContent = name ? `Server now: ${name}` : "Server now";
        },
        start() {
            last = null;
            polls.start();
        },
        stop() {
            polls.stop();
            load.cancel();
        },
    };
}
