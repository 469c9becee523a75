// The attention across a pair of texts, in one layer and head: what tokens of one text give to tokens of the other.
import { chipBar } from "./attention_chips.js";
import { byId, drawing, element, setOptions, showTable, table } from "./dom.js";
import { layerWeights, mostTokens } from "./layer_weights.js";
import { loadedCard } from "./loaded_card.js";
import { fixed, percent } from "./numbers.js";
import { pairLines } from "./pair_lines.js";
import { acrossShares, secondBegin } from "./pair_maths.js";
import { shownToken } from "./tokens.js";

const DECIMALS = 4;

/** Return the card; it calls `changed` whenever it is drawn. */
export function pairAttention(models, changed) {
    const layerChoice = byId("pair-layer");
    const headChoice = byId("pair-head");
    let asked = null; // The pair to show.
    let before = null; // The last reply, with what it was asked for.
    let begun = null; // Where the second text of a pair begins, with the model and the query for which that holds.
    let token = 1; // The chosen token, by its position in the pair.
    let head = -1; // -1 until one is chosen.
    let linked = null; // The head and the token of an address, for the next reply.
    const bars = [
        chipBar(byId("pair-first"), (position) => choose(position)),
        chipBar(byId("pair-second"), (position) => choose(loading.shown.begin + position)),
    ];

    const loading = loadedCard(
        "pair",
        async (signal) => {
            const { model, query, document } = asked;
            if (!model.attends) throw new RangeError(`${model.model.name} offers no attention weights.`);
            const layer = Number(layerChoice.value);
            const ask = (second, heads) => {
                const request = { pairs: { first: [query], second: [second] }, layers: [layer], heads };
                return models.call(model, "Attend", request, { signal });
            };
            const likely = mostTokens(query + document);
            const result = await layerWeights((heads) => ask(document, heads), model.heads, likely);
            if (begun?.model !== model || begun.query !== query) {
                const [letter, none] = await Promise.all(["a", ""].map((second) => ask(second, [0])));
                begun = { model, query, begin: secondBegin(letter.tokens, none.tokens) };
            }
            return {
                ...result,
                model,
                query,
                document,
                layer,
                heads: model.heads,
                tokens: result.tokens.map(shownToken),
                begin: begun.begin,
            };
        },
        (shown) => {
            const isSamePair = before && ["query", "document"].every((text) => before[text] === shown[text]);
            const isSameHead = isSamePair && before.layer === shown.layer;
            before = shown;
            const shares = acrossShares(shown);
            // The head that looks across the most, until the user chooses.
            if (!isSameHead || head < 0) head = shares.indexOf(Math.max(...shares));
            if (!isSamePair) token = Math.min(1, shown.count - 1);
            if (linked?.head < shown.heads) head = linked.head;
            if (linked?.token < shown.count) token = linked.token;
            linked = null;
            headChoice.replaceChildren(
                ...shares.map((share, index) =>
                    element("option", { value: index }, `Head ${index}: ${percent(share)} across`),
                ),
            );
            redraw();
        },
        ({ query, document }) => query === asked.query && document === asked.document,
    );

    function choose(position) {
        token = position;
        redraw();
    }

    const redraw = drawing(byId("panel-rerank"), () => {
        const { shown } = loading;
        if (!shown) return;
        changed();
        const { tokens, begin, count, layer } = shown;
        headChoice.value = String(head);
        const weights = shown.weights.subarray(head * count ** 2, (head + 1) * count ** 2);
        const row = weights.subarray(token * count, (token + 1) * count);
        const isFirst = token < begin;
        const sides = [
            [0, begin],
            [begin, count],
        ];
        bars.forEach((bar, index) => {
            const [from, to] = sides[index];
            const own = from <= token && token < to ? token - from : -1;
            bar.show(tokens.slice(from, to), row.subarray(from, to), own, DECIMALS);
            bar.paint(row.subarray(from, to));
        });
        const [from, to] = sides[isFirst ? 1 : 0];
        const share = row.subarray(from, to).reduce((sum, weight) => sum + weight, 0);
        const other = isFirst ? "document" : "query";
        const title = `token ${token} “${tokens[token]}”, layer ${layer}, head ${head}`;
        byId("pair-title").textContent = `Attention across the pair: ${title}`;
        byId("pair-words").textContent =
            `“${tokens[token]}” gives ${percent(share)} of its attention to the ${other}. Thick lines are its weights, ` +
            "thin lines those of the other tokens of the same text.";
        byId("pair-lines").replaceChildren(
            pairLines({ tokens, weights, begin, token, width: byId("pair-lines").clientWidth, choose }),
        );
        const rows = Array.from({ length: to - from }, (_, index) => [
            `${from + index}`,
            tokens[from + index],
            fixed(row[from + index], DECIMALS),
        ]);
        const caption = `Weights that ${title}, gives to the ${other}. They add up to ${fixed(share, DECIMALS)}.`;
        showTable(byId("pair-table"), table(caption, ["position", "token", "weight"], rows, 2));
    });

    layerChoice.addEventListener("change", loading.run);
    headChoice.addEventListener("change", () => {
        head = Number(headChoice.value);
        redraw();
    });
    return {
        /** Offer the layers of a model. */
        useModel({ layers }) {
            setOptions(layerChoice, layers, (layer) => `Layer ${layer}`);
        },
        /** Return what the address holds of the card. */
        state: () => ({ layer: Number(layerChoice.value), head: head < 0 ? undefined : head, token, ...linked }),
        /** Show the layer, the head and the token of an address with the next pair. */
        restore({ layer = 0, ...others }) {
            layerChoice.value = String(layer);
            if (layerChoice.selectedIndex < 0) layerChoice.value = "0";
            linked = { head: others.head, token: others.token };
        },
        /** Show a pair of a query and a document. */
        load(model, query, document) {
            asked = { model, query, document };
            loading.run();
        },
        /** Show nothing of the last reply. */
        forget() {
            before = null;
            loading.forget();
        },
    };
}
