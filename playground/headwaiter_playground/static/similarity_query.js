// A query against the list of texts: the texts by their cosines with the query.
import { cosineMatrix } from "./cosines.js";
import { csv } from "./csv.js";
import { byId, download } from "./dom.js";
import { loadedCard } from "./loaded_card.js";
import { debounced } from "./loader.js";
import { scoreTable } from "./score_bars.js";
import { fallingOrder } from "./score_maths.js";
import { float32Rows } from "./tensors.js";

const TYPING_PAUSE_MS = 400;
// The names of prompts in sentence-transformers and in the model cards of encoders.
const QUERY_PROMPTS = ["query", "search_query"];
const TEXT_PROMPTS = ["document", "passage", "search_document"];

/** Return the card; the texts, and what to ask for, come from the tab. It calls `changed` when the query has changed. */
export function similarityQuery(models, changed) {
    const field = byId("similarity-query");
    let asked = null; // The model, the texts and the output to ask for.

    const loading = loadedCard(
        "query",
        async (signal) => {
            const { model, texts, output } = asked;
            const query = field.value.trim();
            if (!query) return null;
            const vectors = async (values, names) => {
                const prompt = promptOf(model, names);
                const request = { texts: { values, ...(prompt && { prompt }) }, output };
                return float32Rows((await models.call(model, "Encode", request, { signal })).pooled);
            };
            const [[own], rows] = await Promise.all([vectors([query], QUERY_PROMPTS), vectors(texts, TEXT_PROMPTS)]);
            const cosines = cosineMatrix([own, ...rows])[0].slice(1);
            return { model, query, texts, cosines, order: fallingOrder(cosines) };
        },
        ({ model, query, texts, cosines, order }) => {
            changed();
            const prompts = [QUERY_PROMPTS, TEXT_PROMPTS].map((names) => promptOf(model, names));
            const [forQuery, forTexts] = prompts.map((prompt) => (prompt ? `“${prompt}”` : "none"));
            const note = prompts.some(Boolean) ? ` Prompt of the query: ${forQuery}; of the texts: ${forTexts}.` : "";
            const caption = `The texts by their cosines with “${query}”.${note}`;
            const names = order.map((index) => texts[index]);
            const scores = order.map((index) => cosines[index]);
            byId("query-ranking").replaceChildren(scoreTable(caption, ["text", "cosine"], names, scores));
        },
    );

    field.addEventListener("input", debounced(() => asked && loading.run(), TYPING_PAUSE_MS));
    byId("query-csv").addEventListener("click", () => {
        const { query, texts, cosines, order } = loading.shown;
        const rows = order.map((index, rank) => [rank + 1, query, texts[index], cosines[index]]);
        const text = csv([["rank", "query", "text", "cosine"], ...rows]);
        download(new Blob([text], { type: "text/csv" }), "similarity.csv");
    });
    return {
        /** What the user typed. */
        get text() {
            return field.value;
        },
        set text(text) {
            field.value = text;
        },
        /** Compare the query, if there is one, with texts. */
        load(model, texts, output) {
            asked = { model, texts, output };
            loading.run();
        },
        /** Show nothing of the last reply. */
        forget() {
            asked = null;
            loading.forget();
        },
    };
}

function promptOf({ prompts }, names) {
    return prompts.find(({ name }) => names.includes(name))?.name ?? "";
}
