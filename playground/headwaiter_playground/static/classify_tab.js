// The tab Classify: the labels of texts, or of the tokens of texts, with their scores.
import { byId, element } from "./dom.js";
import { labelledTokens } from "./labelled_tokens.js";
import { loadedCard } from "./loaded_card.js";
import { debounced } from "./loader.js";
import { loadedTab } from "./loaded_tab.js";
import { isSameModel } from "./models.js";
import { counted } from "./numbers.js";
import { scoreTable } from "./score_bars.js";
import { fallingOrder } from "./score_maths.js";
import { TEXTS, TOKENS, filledLines, requestInput } from "./sequence_input.js";
import { float32Rows } from "./tensors.js";
import { typedInput } from "./typed_input.js";

const MOST_TEXTS = 40;
const MOST_LABELS = 8;
const TYPING_PAUSE_MS = 400;
const FUNCTIONS = {
    SCORE_FUNCTION_SOFTMAX: "The scores of all labels add up to 1.",
    SCORE_FUNCTION_SIGMOID: "Each label has a score of its own, from 0 to 1.",
    SCORE_FUNCTION_IDENTITY: "The scores are the numbers of the model, without bounds.",
};

/** Return the tab; it calls `changed` whenever its state has changed. */
export function classifyTab(models, changed) {
    let model = null;

    const labels = { [TEXTS]: "Texts, one on each line", [TOKENS]: "Token ids, one sequence on each line" };
    const input = typedInput("classify", labels, { [TOKENS]: "1 2 3\n1 2 4" }, () => tab.changed());

    const load = loadedCard(
        "classify",
        async (signal) => {
            const asked = model;
            const typed = filledLines(input.text);
            const lines = typed.slice(0, MOST_TEXTS);
            if (!lines.length) throw new RangeError("Type a text on each line.");
            const second = byId("classify-second-field").hidden ? "" : byId("classify-second").value.trim();
            const isPair = input.kind === TEXTS && second;
            const sequences = isPair
                ? { pairs: { first: lines, second: lines.map(() => second) } }
                : requestInput(input.kind, lines);
            const perToken = asked.head.perToken;
            const output = { offsets: perToken && input.kind === TEXTS };
            const reply = await models.call(asked, "Classify", { ...sequences, output }, { signal });
            return { model: asked, lines, left: typed.length - lines.length, reply };
        },
        ({ lines, left, reply }) => {
            tab.loaded();
            const note = left ? ` The page classifies the first ${MOST_TEXTS} lines; ${left} are left out.` : "";
            const words = FUNCTIONS[reply.head.function] ?? "";
            byId("classify-status").textContent = `${counted(lines.length, "text")}. ${words}${note}`;
            const rows = float32Rows(reply.scores);
            const draw = reply.head.perToken ? labelledTokens : labelledText;
            let end = 0;
            const cards = lines.map((text, index) => {
                const begin = end;
                end += reply.head.perToken ? reply.lengths[index] : 1;
                return draw(text, reply.head.labels, rows.slice(begin, end), reply.offsets[index]);
            });
            byId("classify-result").replaceChildren(...cards);
            changed();
        },
    );

    const tab = loadedTab({
        use(description) {
            if (load.shown && !isSameModel(load.shown.model.model, description?.model)) load.forget();
            model = description?.head?.labels.length ? description : null;
            if (!model) return;
            input.useModel(model);
            byId("classify-second-field").hidden = !model.takesPairs || model.head.perToken;
        },
        load,
        state: () => ({ ...input.state, second: byId("classify-second").value || undefined }),
        restore(linked) {
            const isNew = input.restore(linked);
            const before = byId("classify-second").value;
            byId("classify-second").value = linked.second ?? "";
            return isNew || byId("classify-second").value !== before;
        },
    });
    byId("classify-second").addEventListener("input", debounced(tab.changed, TYPING_PAUSE_MS));
    return tab;
}

/** Return a card with the labels of a text by falling score. */
export function labelledText(text, labels, [scores]) {
    const order = fallingOrder(scores);
    const kept = order.slice(0, MOST_LABELS);
    const left = order.length - kept.length;
    const caption = left ? `The ${kept.length} best of ${counted(order.length, "label")}` : "All labels";
    const names = kept.map((index) => labels[index] || `label ${index}`);
    const shown = scoreTable(caption, ["label", "score"], names, kept.map((index) => scores[index]));
    return element("article", { class: "card" }, element("h2", {}, text), shown);
}
