// The last batches of the server: which sequences shared a batch, and what padding would have added.
import { byId, element, say, svg } from "./dom.js";
import { loader } from "./loader.js";
import { counted, grouped, milliseconds, percent } from "./numbers.js";
import { polling } from "./polling.js";

const MOST_BATCHES = 12;
const WIDTH = 320;
const MOST_HEIGHT = 280;
const MOST_SPOKEN = 20;
const SHADES = 3;

/** Return an object that starts and stops the view; `told` gets the batches of each reading. */
export function batchesView(calls, told) {
    let name = "";
    let visible = false;

    const load = loader(
        (signal) => calls.call("ListBatches", { model: name }, { signal }),
        ({ batches }) => {
            say(byId("batches-error"), "");
            told(batches);
            const newest = batches.slice(-MOST_BATCHES).reverse();
            byId("batches-status").textContent = newest.length
                ? `The last ${counted(newest.length, "batch", "batches")}, the newest first.`
                : "No batch has run yet: send requests in the tab Latency.";
            byId("batches").replaceChildren(hatch(), ...newest.map(figure));
        },
        (error) => {
            const old = error.reason === "UNIMPLEMENTED";
            say(byId("batches-error"), old ? "The server does not list its batches." : error.message);
            if (old) polls.stop();
        },
    );
    const polls = polling(load.run);

    return {
        useModel(model) {
            name = model;
            byId("batches").replaceChildren();
            byId("batches-status").textContent = "";
            polls.stop();
            if (visible) this.start();
        },
        start() {
            visible = true;
            if (name) polls.start();
        },
        stop() {
            visible = false;
            polls.stop();
            load.cancel();
        },
    };
}

/** Return the drawing of a batch with its numbers in words. */
function figure(batch) {
    const { lengths, requests, predictedS, measuredS, endedSAgo } = batch;
    const longest = Math.max(...lengths);
    const packed = lengths.reduce((sum, length) => sum + length, 0);
    const padded = longest * lengths.length;
    const row = Math.max(4, Math.min(18, MOST_HEIGHT / lengths.length));
    const height = row * lengths.length;
    const words = [
        `${counted(lengths.length, "sequence")} of ${counted(new Set(requests).size, "request")}, ` +
            `${milliseconds(measuredS)} ms`,
        `${grouped(packed)} tokens packed, ${grouped(padded)} padded: ${percent(1 - packed / padded)} saved`,
    ];
    const drawing = svg(
        "svg",
        { viewBox: `0 0 ${WIDTH} ${height}`, width: "100%", role: "img", "aria-label": spoken(batch) },
        svg("rect", { fill: "url(#hatch)", class: "padding", width: WIDTH, height }),
        ...lengths.flatMap((length, index) =>
            bar(length, (WIDTH * length) / longest, requests[index], index * row, row),
        ),
    );
    const caption = element("figcaption", {}, element("strong", {}, words[0]), element("br"), words[1]);
    const times = `predicted ${milliseconds(predictedS)} ms, ended ${Math.round(endedSAgo)} s ago`;
    return element("figure", { class: "batch" }, caption, drawing, element("p", { class: "hint" }, times));
}

/** Return the bar of a sequence, with the number of its request where there is room. */
function bar(length, width, request, y, row) {
    const title = svg("title", {}, `request ${request + 1}: ${counted(length, "token")}`);
    const rectangle = svg("rect", { class: `shade-${request % SHADES}`, y, width, height: row - 1 }, title);
    const fits = row >= 11 && width >= 24;
    return fits ? [rectangle, svg("text", { x: 5, y: y + row / 2 }, `${request + 1}`)] : [rectangle];
}

/** Return a batch in words: the lengths of the sequences of each request. */
function spoken({ lengths, requests }) {
    const byRequest = new Map();
    requests.forEach((request, index) => byRequest.set(request, [...(byRequest.get(request) ?? []), lengths[index]]));
    const parts = [...byRequest].map(([request, own]) => `request ${request + 1}: ${own.join(", ")} tokens`);
    return parts.slice(0, MOST_SPOKEN).join("; ") + (parts.length > MOST_SPOKEN ? "; and others" : "");
}

/** Return the pattern of the padded area, for all drawings of the page. */
function hatch() {
    const line = svg("path", { class: "hatch", d: "M0 6L6 0" });
    const pattern = svg("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse" }, line);
    return svg("svg", { width: 0, height: 0, "aria-hidden": "true", class: "definitions" }, svg("defs", {}, pattern));
}
