// The tab Rerank: documents by their scores for a query, and the attention across one of the pairs.
import { byId, element } from "./dom.js";
import { loadedCard } from "./loaded_card.js";
import { debounced } from "./loader.js";
import { loadedTab } from "./loaded_tab.js";
import { isSameModel } from "./models.js";
import { counted } from "./numbers.js";
import { pairAttention } from "./pair_attention.js";
import { scoreTable } from "./score_bars.js";
import { fallingOrder } from "./score_maths.js";
import { filledLines } from "./sequence_input.js";
import { float32Values } from "./tensors.js";

const MOST_DOCUMENTS = 40;
const TYPING_PAUSE_MS = 400;

/** Return the tab; it calls `changed` whenever its state has changed. */
export function rerankTab(models, changed) {
    const [queryField, documentsField] = ["rerank-query", "rerank-input"].map(byId);
    let model = null;
    let chosen = ""; // The document whose pair is shown.
    const attention = pairAttention(models, changed);

    const load = loadedCard(
        "rerank",
        async (signal) => {
            const asked = model;
            const query = queryField.value.trim();
            const typed = filledLines(documentsField.value);
            const documents = typed.slice(0, MOST_DOCUMENTS);
            if (!query) throw new RangeError("Type a query.");
            if (!documents.length) throw new RangeError("Type a document on each line.");
            const request = { pairs: { first: [query], second: documents }, output: { logits: true } };
            const reply = await models.call(asked, "Classify", request, { signal });
            const scores = Array.from(float32Values(reply.scores));
            // Logits keep an order where scores are equal.
            const order = fallingOrder(reply.logits ? Array.from(float32Values(reply.logits)) : scores);
            return { model: asked, query, documents, scores, order, left: typed.length - documents.length };
        },
        (shown) => {
            tab.loaded();
            const note = shown.left
                ? ` The page ranks the first ${MOST_DOCUMENTS} lines; ${shown.left} are left out.`
                : "";
            byId("rerank-status").textContent = `${counted(shown.documents.length, "document")}.${note}`;
            choose(shown.documents.includes(chosen) ? chosen : shown.documents[shown.order[0]]);
        },
    );

    function choose(document) {
        chosen = document;
        changed();
        showRanking();
        attention.load(load.shown.model, load.shown.query, chosen);
    }

    function showRanking() {
        const { shown } = load;
        const focused = document.activeElement?.textContent;
        const buttons = shown.order.map((index) => {
            const text = shown.documents[index];
            const attributes = { type: "button", class: "pair", "aria-pressed": String(text === chosen) };
            const button = element("button", attributes, text);
            button.addEventListener("click", () => choose(text));
            return button;
        });
        const scores = shown.order.map((index) => shown.scores[index]);
        const caption = `The documents by their scores for “${shown.query}”. Choose one to see the attention of its pair.`;
        const hadFocus = byId("ranking").contains(document.activeElement);
        byId("ranking").replaceChildren(scoreTable(caption, ["document", "score"], buttons, scores));
        if (hadFocus) buttons.find((button) => button.textContent === focused)?.focus();
    }

    const tab = loadedTab({
        use(description) {
            if (load.shown && !isSameModel(load.shown.model.model, description?.model)) {
                load.forget();
                attention.forget();
            }
            model = description?.tasks.includes("TASK_RERANK") ? description : null;
            if (model) attention.useModel(model);
        },
        load,
        state() {
            const document = filledLines(documentsField.value).indexOf(chosen);
            const inputs = { query: queryField.value, text: documentsField.value };
            return { ...inputs, document: document < 0 ? undefined : document, ...attention.state() };
        },
        restore({ query, text, document, ...linked }) {
            const typed = () => JSON.stringify([queryField.value, documentsField.value]);
            const before = typed();
            queryField.value = query ?? queryField.value;
            documentsField.value = text ?? documentsField.value;
            attention.restore(linked);
            chosen = filledLines(documentsField.value)[document] ?? chosen;
            const isNew = !load.shown || typed() !== before;
            if (!isNew) choose(chosen);
            return isNew;
        },
    });
    for (const field of [queryField, documentsField])
        field.addEventListener("input", debounced(tab.changed, TYPING_PAUSE_MS));
    byId("rerank-form").addEventListener("submit", (event) => event.preventDefault());
    return tab;
}
