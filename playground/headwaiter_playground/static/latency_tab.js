// The tab Latency: the stages of the requests that this page made, and the server's queue and batches now.
import { LONG_RUN } from "./calls.js";
import { stackedBars } from "./charts.js";
import { byId, drawing, element, legend, say, showTable, table } from "./dom.js";
import { liveView } from "./live_view.js";
import { measuredRun, percentile } from "./measured_run.js";
import { counted, milliseconds } from "./numbers.js";
import { sampleSequences } from "./samples.js";
import { TEXTS, filledLines, kindsOf, requestInput, whyNoInput } from "./sequence_input.js";
import { STAGES, stageSeconds } from "./stages.js";

// What a run shows of its times.
const PERCENTILES = [
    { name: "p50", share: 0.5, words: "half of the requests took at most this" },
    { name: "p95", share: 0.95, words: "19 of 20 requests took at most this" },
    { name: "p99", share: 0.99, words: "99 of 100 requests took at most this" },
];
// The fields of a run that are numbers.
const NUMBERS = ["requests", "concurrency", "sequences", "words"];

/** Return the tab; it calls `changed` whenever its state has changed. */
export function latencyTab(calls, models, changed) {
    const ownText = byId("latency-input");
    const live = liveView();
    let model = null;
    let run = null; // The AbortController of the last run.

    const redraw = drawing(byId("panel-latency"), () => {
        const records = [...calls.records].reverse();
        if (!records.length) {
            byId("stages").replaceChildren(element("p", { class: "hint" }, "No request yet."));
            return;
        }
        // AttendRounded is Attend with a smaller reply; the longer name has no room on phones.
        const name = ({ number, method }) => `${number} ${method.replace("Rounded", "")}`;
        const rows = records.map((record) => ({
            name: name(record),
            note: record.model,
            values: stageSeconds(record),
            total: `${milliseconds(record.browserS)} ms`,
        }));
        byId("stages").replaceChildren(
            stackedBars(
                rows,
                STAGES,
                byId("stages").clientWidth,
                `Stages of ${rows.length} requests; the table below has the numbers`,
            ),
        );
        const cells = records.map((record) => [
            name(record),
            record.model,
            `${record.sequences}`,
            ...stageSeconds(record).map(milliseconds),
            milliseconds(record.browserS),
        ]);
        const head = ["request", "model", "sequences", ...STAGES.map(({ name }) => name), "total"];
        showTable(byId("stages-table"), table("Milliseconds, the newest request first.", head, cells, 2));
    });

    async function send() {
        const asked = model;
        const refusal = asked ? whyNoInput(asked) : "No model is loaded.";
        say(byId("latency-error"), refusal);
        if (refusal) return;
        const [count, concurrency, sequences, words] = NUMBERS.map((name) => wanted(byId(`latency-${name}`)));
        const own = filledLines(ownText.value).slice(0, byId("latency-sequences").max);
        run = new AbortController();
        const options = { signal: run.signal, lane: LONG_RUN };
        const tell = (answered, end) => {
            byId("latency-status").textContent = `${answered} of ${count} requests answered${end}`;
        };
        const call = async () => {
            const kind = kindsOf(asked)[0];
            // Bulk is not asked for: the user waits for these replies.
            const input = requestInput(kind, own.length ? own : sampleSequences(asked, sequences, words));
            const request = kind === TEXTS ? { ...input, truncation: "TRUNCATION_RIGHT" } : input;
            await models.call(asked, "Encode", request, options);
        };
        const told = (answered) => tell(answered, " …");
        byId("latency-send").disabled = true;
        byId("latency-cancel").hidden = false;
        told(0);
        const { signal } = run;
        const { seconds, error } = await measuredRun({ count, concurrency, call, told, signal });
        byId("latency-send").disabled = false;
        byId("latency-cancel").hidden = true;
        tell(seconds.length, signal.aborted ? "; cancelled." : ".");
        say(byId("latency-error"), error && !signal.aborted ? error.message : "");
        showPercentiles(seconds, `${counted(seconds.length, "request")} to ${asked.model.name}`);
    }

    function showPercentiles(seconds, of) {
        const tiles = PERCENTILES.map(({ name, share, words }) => {
            const time = `${milliseconds(percentile(seconds, share))} ms`;
            const hint = element("span", { class: "hint" }, words);
            return element("div", { class: "tile" }, `${name} of ${of}`, element("b", {}, time), hint);
        });
        byId("latency-percentiles").replaceChildren(...(seconds.length ? tiles : []));
    }

    /** Random words have a number and a length, own texts have not. */
    function showFields() {
        const isOwn = ownText.value.trim() !== "";
        byId("latency-sequences").disabled = byId("latency-words").disabled = isOwn;
    }

    function useState(state) {
        for (const name of NUMBERS) {
            const field = byId(`latency-${name}`);
            field.value = state[name] ?? field.value;
            wanted(field);
        }
        ownText.value = state.text ?? "";
        showFields();
    }

    byId("stages-legend").replaceChildren(...legend(STAGES));
    byId("latency-form").addEventListener("submit", (event) => {
        event.preventDefault();
        send();
    });
    byId("latency-form").addEventListener("input", () => {
        showFields();
        changed();
    });
    byId("latency-cancel").addEventListener("click", () => run.abort());
    calls.addEventListener("recorded", redraw);
    return {
        useModel(description, linked) {
            model = description;
            live.useModel(model?.model.name ?? "");
            if (linked) useState(linked);
        },
        shown() {
            live.start();
        },
        left() {
            live.stop();
        },
        state() {
            const numbers = NUMBERS.map((name) => [name, Number(byId(`latency-${name}`).value)]);
            return { ...Object.fromEntries(numbers), text: ownText.value || undefined };
        },
        useState,
    };
}

/** Return the whole number in a field, brought within the field's limits. */
function wanted(field) {
    const number = Math.round(Number(field.value)) || 1;
    const value = Math.min(Number(field.max), Math.max(Number(field.min), number));
    field.value = value;
    return value;
}
