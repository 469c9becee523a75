// The tab Similarity: the cosines of texts as a table that is also a heat map, and the nearest neighbour of each text.
import { cosineShare } from "./colours.js";
import { cosineMatrix, nearestNeighbours } from "./cosines.js";
import { byId, drawing, element, say, table } from "./dom.js";
import { colouredBy, scale } from "./heat_maps.js";
import { loadedCard } from "./loaded_card.js";
import { loadedTab } from "./loaded_tab.js";
import { isSameModel } from "./models.js";
import { counted, enumWords, fixed } from "./numbers.js";
import { similarityQuery } from "./similarity_query.js";
import { TEXTS, TOKENS, filledLines, requestInput, whyNoInput } from "./sequence_input.js";
import { float32Rows } from "./tensors.js";
import { isDark } from "./theme.js";
import { shortened, shownToken } from "./tokens.js";
import { typedInput } from "./typed_input.js";

const MOST_TEXTS = 40;
const DECIMALS = 3;
const COSINES_OF_SCALE = [0, 0.25, 0.5, 0.75, 1];
// Pixels of a cell with a number.
const LEAST_CELL = 52;
const LEAST_CELL_ON_PHONE = 40;

/** Return the tab; it calls `changed` whenever its state has changed. */
export function similarityTab(models, changed) {
    let model = null;

    const labels = { [TEXTS]: "Texts, one on each line", [TOKENS]: "Token ids, one sequence on each line" };
    const input = typedInput("similarity", labels, { [TOKENS]: "1 2 3\n1 2 4\n5 6" }, () => tab.changed());

    const query = similarityQuery(models, changed);

    const load = loadedCard(
        "similarity",
        async (signal) => {
            const asked = model;
            const pooling = poolingOf(model);
            if (whyNoInput(model)) throw new RangeError(whyNoInput(model));
            if (!pooling)
                throw new RangeError(`${model.model.name} has no vector for a whole text, so texts have no cosine.`);
            const typed = filledLines(input.text);
            const lines = typed.slice(0, MOST_TEXTS);
            if (!lines.length) throw new RangeError("Type a text on each line.");
            const output = { pooled: true, pooling, dtype: "DATA_TYPE_FLOAT32" };
            const request = { ...requestInput(input.kind, lines), output };
            const reply = await models.call(asked, "Encode", request, { signal });
            return {
                model: asked,
                lines: input.kind === TEXTS ? lines : null,
                output,
                texts: lines.map(shownToken),
                left: typed.length - lines.length,
                cosines: cosineMatrix(float32Rows(reply.pooled)),
                lengths: reply.lengths,
            };
        },
        (result) => {
            tab.loaded();
            const { left } = result;
            const tokens = result.lengths.reduce((sum, length) => sum + length, 0);
            const note = left ? ` The page compares the first ${MOST_TEXTS} lines; ${left} are left out.` : "";
            const words = `${counted(result.texts.length, "text")}, ${counted(tokens, "token")}.`;
            byId("similarity-status").textContent = words + note;
            say(byId("similarity-caution"), caution(result.model));
            redraw();
            // Of token ids, the page knows no text that a query could be compared with.
            byId("query-card").hidden = !result.lines;
            if (result.lines) query.load(result.model, result.lines, result.output);
        },
    );

    const redraw = drawing(byId("panel-similarity"), () => {
        if (!load.shown) return;
        changed();
        const { texts, cosines } = load.shown;
        const name = (index) => `${index + 1} ${texts[index]}`;
        // A matrix of many texts has no room for numbers: they are in the tooltips.
        const least = innerWidth < 760 ? LEAST_CELL_ON_PHONE : LEAST_CELL;
        // The scale above the matrix has the same width, also while there is no matrix.
        const isDense = byId("cosine-scale").parentElement.clientWidth / (texts.length + 2) < least;
        const number = (text) => (isDense ? element("span", { class: "for-readers" }, text) : text);
        // Narrow screens show only the number of a text.
        const header = (index) => element("div", {}, `${index + 1} `, element("span", {}, shortened(texts[index])));
        const rows = cosines.map((row, index) => [
            header(index),
            ...row.map((cosine) => number(fixed(cosine, DECIMALS))),
        ]);
        const matrix = table("", ["text", ...texts.map((_, index) => `${index + 1}`)], rows);
        matrix.className = isDense ? "cosines dense" : "cosines";
        matrix.caption.remove();
        matrix.setAttribute("aria-label", "Cosines");
        for (const [index, { cells }] of [...matrix.tBodies[0].rows].entries())
            [...cells].slice(1).forEach((cell, other) => {
                const cosine = cosines[index][other];
                colouredBy(cell, cosineShare(cosine), isDark());
                cell.title = `${name(index)} | ${name(other)}: ${fixed(cosine, DECIMALS)}`;
            });
        byId("cosines").replaceChildren(matrix);
        byId("cosine-scale").replaceChildren(...scale(COSINES_OF_SCALE, cosineShare, isDark()));
        const neighbours = nearestNeighbours(cosines).map(({ index, cosine }, self) => [
            name(self),
            index < 0 ? "no other text" : name(index),
            fixed(cosine, DECIMALS),
        ]);
        byId("neighbours").replaceChildren(
            table("The nearest other text of each text", ["text", "nearest", "cosine"], neighbours, 2),
        );
    });

    const tab = loadedTab({
        use(description) {
            if (load.shown && !isSameModel(load.shown.model.model, description?.model)) {
                load.forget();
                query.forget();
            }
            model = description;
            if (model) input.useModel(model);
        },
        load,
        state: () => ({ ...input.state, query: query.text || undefined }),
        restore(linked) {
            const isNew = input.restore(linked);
            const before = query.text;
            query.text = linked.query ?? "";
            return isNew || query.text !== before;
        },
    });
    return tab;
}

/** Return why the cosines of a model may say little, or an empty text. */
function caution({ model, pooling, tasks }) {
    const others = tasks.filter((task) => !["TASK_ENCODE", "TASK_ATTEND"].includes(task));
    const purpose = others.map((task) => enumWords(task, "TASK_")).join(" and ");
    if (pooling !== "POOLING_NONE" && !purpose) return "";
    const vectors =
        pooling === "POOLING_NONE"
            ? `${model.name} has no vector for a whole text. ` +
              "The page compares the means of its hidden rows, the vectors of single tokens."
            : "";
    const trained = purpose ? `${model.name} is made to ${purpose}` : "The model may not have been trained for this";
    return `${vectors} ${trained}: these cosines need not say how similar texts are.`.trim();
}

/** Return the pooling to ask for: the model's own, or a mean of its rows; empty if there is none. */
function poolingOf(model) {
    if (model.pooling !== "POOLING_NONE") return model.pooling;
    return model.poolings.includes("POOLING_MEAN") ? "POOLING_MEAN" : "";
}
