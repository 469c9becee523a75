// A second head beside the first: the same token, the same masks.
import { linesDrawing } from "./attention_drawings.js";
import { whatIfRow } from "./attention_maths.js";
import { byId, element, setOptions, showTable, table } from "./dom.js";
import { loadedCard } from "./loaded_card.js";
import { fixed } from "./numbers.js";
import { float32Values } from "./tensors.js";

const DECIMALS = 4;
const NO_HEAD = "";

/** Return the card. `redraw` draws the tab anew, and calls `show`. */
export function headComparison(models, redraw) {
    const [layerChoice, headChoice] = ["second-layer", "second-head"].map(byId);
    let first = null; // What the tab shows.

    const loading = loadedCard(
        "second",
        async (signal) => {
            const { shown } = first;
            const [layer, head] = [layerChoice, headChoice].map((choice) => Number(choice.value));
            const request = { ...shown.sequence, layers: [layer], heads: [head] };
            const reply = await models.call(shown.model, "Attend", request, { signal });
            return { shown, layer, head, weights: float32Values(reply.weights) };
        },
        () => redraw(),
        ({ shown }) => shown === first?.shown,
    );

    function draw({ shown, layer, head, query, row, settings, isFaint, crossOut }) {
        const { tokens } = shown;
        const second = loading.shown;
        const own = second.weights.subarray(query * tokens.length, (query + 1) * tokens.length);
        const rows = [row, whatIfRow(own, query, settings)];
        const names = [
            [layer, head],
            [second.layer, second.head],
        ].map(([ofLayer, ofHead]) => `Layer ${ofLayer}, head ${ofHead}`);
        ["first-lines", "second-lines"].forEach((id, index) => {
            const box = byId(id);
            byId(`${id}-title`).textContent = names[index];
            box.replaceChildren(
                linesDrawing(tokens, rows[index], query, box.clientWidth, DECIMALS, settings.crossedOut, isFaint, crossOut),
            );
        });
        const numbers = tokens.map((token, key) => [`${key}`, token, ...rows.map((each) => fixed(each[key], DECIMALS))]);
        const caption = `Shown weights of token ${query} “${tokens[query]}” in both heads`;
        const columns = ["position", "token", ...names.map((name) => name.toLowerCase())];
        showTable(byId("second-table"), table(caption, columns, numbers, 2));
    }

    for (const choice of [layerChoice, headChoice])
        choice.addEventListener("change", () => {
            if (headChoice.value === NO_HEAD) loading.forget();
            else if (first) loading.run();
            redraw();
        });
    return {
        /** Offer the layers and heads of a model. */
        useModel({ layers, heads }) {
            const kept = headChoice.value;
            setOptions(layerChoice, layers, (layer) => `Layer ${layer}`);
            setOptions(headChoice, heads, (head) => `Head ${head}`);
            headChoice.prepend(element("option", { value: NO_HEAD }, "None"));
            if (kept === NO_HEAD || Number(kept) >= heads) headChoice.value = NO_HEAD;
        },
        /** What the address holds of the second head. */
        get state() {
            if (headChoice.value === NO_HEAD) return {};
            return { secondLayer: Number(layerChoice.value), secondHead: Number(headChoice.value) };
        },
        /** Choose the second head of an address, or none. */
        restore({ secondLayer = 0, secondHead = NO_HEAD }) {
            const before = JSON.stringify(this.state);
            layerChoice.value = String(secondLayer);
            headChoice.value = String(secondHead);
            if (layerChoice.value === "") layerChoice.value = "0";
            if (headChoice.selectedIndex < 0) headChoice.value = NO_HEAD;
            if (JSON.stringify(this.state) === before) return;
            if (headChoice.value === NO_HEAD) loading.forget();
            else if (first) loading.run();
        },
        /** Show the chosen head beside the first; `state` has what the tab shows. Called while the tab is drawn. */
        show(state) {
            const isNew = first?.shown !== state.shown;
            first = state;
            if (headChoice.value === NO_HEAD) return;
            if (isNew) loading.run();
            if (loading.shown?.shown === state.shown) draw(state);
        },
        forget() {
            loading.forget();
            first = null;
        },
    };
}
