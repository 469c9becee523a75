// The tab Cost: the predicted time of a batch by its length, and the batches that the server ran last.
import { batchesView } from "./batches_view.js";
import { stackedAreas } from "./charts.js";
import { batchSeconds, quadraticHalf, tableLengths, total } from "./cost_model.js";
import { byId, drawing, legend, say, table } from "./dom.js";
import { grouped, milliseconds, percent } from "./numbers.js";

const PARTS = [
    { name: "start of the batch", mark: "launch" },
    { name: "tokens: linear in the length", mark: "tokens" },
    { name: "attention: quadratic in the length", mark: "attention" },
];
const SAMPLES = 80;

/** Return the tab. */
export function costTab(calls) {
    const batches = batchesView(calls);
    const slider = byId("batch-size");
    let model = null;

    const redraw = drawing(byId("panel-cost"), () => {
        if (!model) return;
        const cost = model.execution?.cost;
        say(byId("cost-error"), cost ? "" : "The server reports no cost model for this model.");
        byId("cost-result").hidden = !cost;
        if (!cost) return;
        const longest = model.maxTokens;
        const sequences = Number(slider.value);
        byId("batch-size-value").textContent = sequences;
        const parts = (tokens) => Object.values(batchSeconds(cost, tokens, sequences));
        const points = Array.from({ length: SAMPLES + 1 }, (_, index) => (longest * index) / SAMPLES).map((x) => ({
            x,
            values: parts(x),
        }));
        byId("cost-words").textContent = inWords(cost, longest, sequences);
        byId("cost-chart").replaceChildren(
            stackedAreas(
                points,
                PARTS,
                byId("cost-chart").clientWidth,
                "Predicted milliseconds by length; the table below has the numbers",
            ),
        );
        const rows = tableLengths(longest).map((tokens) => {
            const split = batchSeconds(cost, tokens, sequences);
            const all = total(split);
            return [
                grouped(tokens),
                milliseconds(split.launch),
                milliseconds(split.tokens),
                milliseconds(split.attention),
                milliseconds(all),
                percent(split.attention / all),
            ];
        });
        const head = ["tokens each", "start, ms", "linear, ms", "quadratic, ms", "all, ms", "quadratic share"];
        byId("cost-table").replaceChildren(table(`Predicted time of a batch of ${sequences} × the length`, head, rows));
    });

    slider.addEventListener("input", redraw);
    byId("cost-legend").replaceChildren(...legend(PARTS));
    return {
        useModel(description) {
            model = description;
            redraw();
            batches.useModel(model?.model.name ?? "");
        },
        shown() {
            batches.start();
        },
        left() {
            batches.stop();
        },
    };
}

/** Return what the chart says about the longest sequences. */
function inWords(cost, longest, sequences) {
    const split = batchSeconds(cost, longest, sequences);
    const all = total(split);
    const half = Math.ceil(quadraticHalf(cost, sequences));
    const sentences = [
        `${grouped(longest)} tokens each take ${milliseconds(all)} ms.`,
        `Attention’s quadratic part takes ${percent(split.attention / all)} of it.`,
        half <= longest ? `From ${grouped(half)} tokens on, the quadratic part takes half of the time or more.` : "",
        `The server has measured this cost model, with a median error of ${percent(cost.errorRatio)}.`,
        "It splits batches that are larger than its budget.",
    ];
    return sentences.filter(Boolean).join(" ");
}
