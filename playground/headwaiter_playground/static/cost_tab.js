// The tab Cost: the predicted time of a batch by its length, and the batches that the server ran last.
import { batchesView } from "./batches_view.js";
import { stackedAreas } from "./charts.js";
import {
    batchSeconds,
    longestInBatch,
    measuredRatio,
    mostSequences,
    quadraticHalf,
    scaledCost,
    tableSteps,
    total,
} from "./cost_model.js";
import { byId, drawing, legend, say, showTable, table } from "./dom.js";
import { counted, fixed, grouped, milliseconds, percent } from "./numbers.js";

const PARTS = [
    { name: "start of the batch", mark: "launch" },
    { name: "tokens: linear in the length", mark: "tokens" },
    { name: "attention: quadratic in the length", mark: "attention" },
];
const SAMPLES = 80;
const MOST_SEQUENCES = 64;

/** Return the tab; it calls `changed` whenever its state has changed. */
export function costTab(calls, changed) {
    const slider = byId("batch-size");
    let model = null;
    let ratio = 1; // Measured / predicted seconds of the last batches.
    let batchCount = 0;
    const batches = batchesView(calls, (listed) => {
        const cost = model?.execution?.cost;
        const own = listed.filter(({ version }) => version === model?.model.version);
        ratio = cost ? measuredRatio(cost, own) : 1;
        batchCount = own.length;
        redraw();
    });

    const redraw = drawing(byId("panel-cost"), () => {
        const measured = model?.execution?.cost;
        say(byId("cost-error"), !model || measured ? "" : "The server reports no cost model for this model.");
        byId("cost-result").hidden = byId("cost-controls").hidden = !measured;
        if (!measured) return;
        const cost = scaledCost(measured, ratio);
        // If all sequences have one length, the chart shows how the time grows with their number.
        const isFixed = model.minTokens === model.maxTokens;
        byId("cost-controls").hidden = isFixed;
        slider.max = Math.min(MOST_SEQUENCES, mostSequences(model));
        const sequences = Number(slider.value);
        byId("batch-size-value").textContent = sequences;
        const [least, most, end] = isFixed
            ? [1, Number(slider.max), Number(slider.max)]
            : [model.minTokens, longestInBatch(model, sequences), model.maxTokens];
        const split = (x) => (isFixed ? batchSeconds(cost, model.maxTokens, x) : batchSeconds(cost, x, sequences));
        const points = Array.from({ length: SAMPLES + 1 }, (_, index) => {
            const x = least + ((most - least) * index) / SAMPLES;
            return { x, values: Object.values(split(x)) };
        });
        const axis = {
            name: isFixed ? `sequences of ${grouped(model.maxTokens)} tokens` : "tokens of each sequence",
            end,
            mark: most < end ? { x: most, name: "budget of a batch" } : null,
        };
        byId("cost-words").textContent = inWords(measured, most, isFixed ? null : sequences, split(most));
        const width = byId("cost-chart").clientWidth;
        const label = "Predicted milliseconds; the table below has the numbers";
        byId("cost-chart").replaceChildren(stackedAreas(points, PARTS, axis, width, label));
        const rows = tableSteps(least, most).map((x) => {
            const { launch, tokens, attention } = split(x);
            const all = launch + tokens + attention;
            return [grouped(x), ...[launch, tokens, attention, all].map(milliseconds), percent(attention / all)];
        });
        const head = [
            isFixed ? "sequences" : "tokens each",
            "start, ms",
            "linear, ms",
            "quadratic, ms",
            "all, ms",
            "quadratic share",
        ];
        const caption = isFixed
            ? `Predicted time of batches of sequences of ${grouped(model.maxTokens)} tokens.`
            : `Predicted time of a batch of ${counted(sequences, "sequence")} of one length.`;
        showTable(byId("cost-table"), table(caption, head, rows));
    });

    /** Return what the chart says about its end; `sequences` is null if the chart is over their number. */
    function inWords(measured, most, sequences, split) {
        const { tokenBudget, cost } = model.execution;
        const all = total(split);
        const half = sequences === null ? Infinity : Math.ceil(quadraticHalf(measured, sequences));
        const what =
            sequences === null
                ? counted(most, "sequence")
                : `${counted(sequences, "sequence")} of ${counted(most, "token")}`;
        const sentences = [
            `A batch of ${what} takes ${milliseconds(all)} ms.`,
            `Attention’s quadratic part takes ${percent(split.attention / all)} of it.`,
            half <= most ? `From ${grouped(half)} tokens on, the quadratic part takes half of the time or more.` : "",
            tokenBudget ? `The server puts at most ${counted(tokenBudget, "token")} into a batch.` : "",
            `It measured these costs when it loaded the model, with a median error of ${percent(cost.errorRatio)}.`,
            batchCount
                ? `Its last ${counted(batchCount, "batch", "batches")} took ${fixed(ratio, 2)} times as long: ` +
                  "the chart includes this factor."
                : "",
        ];
        return sentences.filter(Boolean).join(" ");
    }

    slider.addEventListener("input", () => {
        redraw();
        changed();
    });
    byId("cost-legend").replaceChildren(...legend(PARTS));
    return {
        useModel(description, linked) {
            model = description;
            [ratio, batchCount] = [1, 0];
            if (linked) this.useState(linked);
            redraw();
            batches.useModel(model?.model.name ?? "");
        },
        shown() {
            batches.start();
        },
        left() {
            batches.stop();
        },
        state: () => ({ sequences: Number(slider.value) }),
        useState({ sequences = 1 }) {
            slider.value = String(sequences);
            redraw();
        },
    };
}
