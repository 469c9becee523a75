// The tab Latency: the stages of the requests that this page made, and the server's queue and batches now.
import { LONG_RUN } from "./calls.js";
import { stackedBars } from "./charts.js";
import { byId, drawing, element, legend, say, showTable, table } from "./dom.js";
import { liveView } from "./live_view.js";
import { milliseconds } from "./numbers.js";
import { sampleSequences } from "./samples.js";
import { TEXTS, kindsOf, requestInput, whyNoInput } from "./sequence_input.js";
import { STAGES, stageSeconds } from "./stages.js";

/** Return the tab. */
export function latencyTab(calls, models) {
    const live = liveView();
    let model = null;
    let run = null; // The AbortController of the last run.

    const redraw = drawing(byId("panel-latency"), () => {
        const records = [...calls.records].reverse();
        if (!records.length) {
            byId("stages").replaceChildren(element("p", { class: "hint" }, "No request yet."));
            return;
        }
        const name = ({ number, method }) => `${number} ${method}`;
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
        const [requests, sequences, words] = ["requests", "sequences", "tokens"].map((name) =>
            wanted(byId(`latency-${name}`)),
        );
        run = new AbortController();
        const options = { signal: run.signal, lane: LONG_RUN };
        let answered = 0;
        const tell = (end) => {
            byId("latency-status").textContent = `${answered} of ${requests} requests answered${end}`;
        };
        const encode = async () => {
            const kind = kindsOf(asked)[0];
            // Bulk is not asked for: the user waits for these replies.
            const input = requestInput(kind, sampleSequences(asked, sequences, words));
            const request = kind === TEXTS ? { ...input, truncation: "TRUNCATION_RIGHT" } : input;
            await models.call(asked, "Encode", request, options);
            answered += 1;
            tell(" …");
        };
        byId("latency-send").disabled = true;
        byId("latency-cancel").hidden = false;
        tell(" …");
        const results = await Promise.allSettled(Array.from({ length: requests }, encode));
        byId("latency-send").disabled = false;
        byId("latency-cancel").hidden = true;
        tell(run.signal.aborted ? "; cancelled." : ".");
        const failed = results.find(({ reason }) => reason && !run.signal.aborted);
        say(byId("latency-error"), failed?.reason.message ?? "");
    }

    byId("stages-legend").replaceChildren(...legend(STAGES));
    byId("latency-form").addEventListener("submit", (event) => {
        event.preventDefault();
        send();
    });
    byId("latency-cancel").addEventListener("click", () => run.abort());
    calls.addEventListener("recorded", redraw);
    return {
        useModel(description) {
            model = description;
            live.useModel(model?.model.name ?? "");
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
