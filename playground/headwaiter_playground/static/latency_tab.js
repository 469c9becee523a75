// The tab Latency: the stages of the requests that this page made, and the server's queue and batches now.
import { stackedBars } from "./charts.js";
import { byId, element, legend, onWidth, say, table } from "./dom.js";
import { liveView } from "./live_view.js";
import { milliseconds } from "./numbers.js";
import { sampleSequences } from "./samples.js";
import { TEXTS, kindsOf, requestInput, whyNoInput } from "./sequence_input.js";
import { STAGES, stageSeconds } from "./stages.js";

/** Return the tab. */
export function latencyTab(calls) {
    const live = liveView();
    let model = null;

    function draw() {
        const records = [...calls.records].reverse();
        if (!records.length) {
            byId("stages").replaceChildren(element("p", { class: "hint" }, "No request yet."));
            return;
        }
        const number = (index) => calls.records.length - index;
        const rows = records.map((record, index) => ({
            name: `${number(index)} ${record.method}`,
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
        const cells = records.map((record, index) => [
            `${number(index)} ${record.method}`,
            `${record.sequences}`,
            ...stageSeconds(record).map(milliseconds),
            milliseconds(record.browserS),
        ]);
        const head = ["request", "sequences", ...STAGES.map(({ name }) => name), "total"];
        byId("stages-table").replaceChildren(table("Milliseconds, the newest request first", head, cells));
    }

    async function send() {
        const refusal = model ? whyNoInput(model) : "No model is loaded.";
        say(byId("latency-error"), refusal);
        if (refusal) return;
        const [requests, sequences, words] = ["requests", "sequences", "tokens"].map((name) =>
            wanted(byId(`latency-${name}`)),
        );
        byId("latency-send").disabled = true;
        byId("latency-status").textContent = "Sending …";
        const results = await Promise.allSettled(
            Array.from({ length: requests }, () => {
                const lines = sampleSequences(model, sequences, words);
                const kind = kindsOf(model)[0];
                // Bulk is not asked for: the user waits for these replies.
                const request = { model: model.model.name, ...requestInput(kind, lines) };
                return calls.call("Encode", kind === TEXTS ? { ...request, truncation: "TRUNCATION_RIGHT" } : request);
            }),
        );
        byId("latency-send").disabled = false;
        const failed = results.filter(({ status }) => status === "rejected");
        byId("latency-status").textContent = `${requests - failed.length} of ${requests} requests answered.`;
        say(byId("latency-error"), failed[0]?.reason.message ?? "");
    }

    byId("stages-legend").replaceChildren(...legend(STAGES));
    byId("latency-form").addEventListener("submit", (event) => {
        event.preventDefault();
        send();
    });
    calls.addEventListener("recorded", () => byId("stages").clientWidth && draw());
    onWidth(byId("stages"), draw);
    return {
        useModel(description) {
            model = description;
        },
        shown() {
            live.start();
        },
        left() {
            live.stop();
        },
    };
}

/** Return the whole number in a field, brought within the field's limits. */
function wanted(field) {
    const number = Math.round(Number(field.value)) || 1;
    const value = Math.min(Number(field.max), Math.max(Number(field.min), number));
    field.value = value;
    return value;
}
