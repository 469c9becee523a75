// The tab Attention: the weights of a layer, and the context vector of a token in a head.
import { contextDrawing, linesDrawing } from "./attention_drawings.js";
import { attentionCsv } from "./attention_files.js";
import { chipBar } from "./attention_chips.js";
import { AS_COMPUTED, whatIfHead } from "./attention_maths.js";
import { latestOnly } from "./calls.js";
import { byId, download, element, oncePerFrame, onWidth, say, table } from "./dom.js";
import { headMaps } from "./head_maps.js";
import { labelledMap } from "./heat_maps.js";
import { layerWeights, mostTokens } from "./layer_weights.js";
import { fixed } from "./numbers.js";
import { TEXTS, TOKENS, requestInput, whyNoInput } from "./sequence_input.js";
import { float32Values } from "./tensors.js";
import { isDark, onTheme } from "./theme.js";
import { shownToken } from "./tokens.js";
import { typedInput } from "./typed_input.js";

const DECIMALS = 4;

/** Return the tab. */
export function attentionTab(calls) {
    const layerChoice = byId("layer");
    const headChoice = byId("head");
    const temperature = byId("temperature");
    let model = null;
    let query = 1;
    let settings = AS_COMPUTED;
    let shown = null; // What the last reply to `load` says.
    let headWeights = null; // The weights of the chosen head as they are drawn, [tokens, tokens].
    let context = null; // The context vector of the chosen token in the chosen head.
    let visible = false;
    let stale = true;
    const contexts = new Map(); // The replies with the context vectors of this text, also those on their way.

    const labels = { [TEXTS]: "Text", [TOKENS]: "Token ids, with spaces between them and with the special tokens" };
    const input = typedInput("attention", labels, { [TOKENS]: "1 2 3 4" }, () => load());
    const chips = chipBar(byId("chips"), (position) => choose(() => (query = position)));
    const heads = headMaps(byId("heads"), (head) => choose(() => (headChoice.value = String(head))));

    const load = latestOnly(
        async (isLatest) => {
            stale = false;
            const name = model.model.name;
            const refusal = whyNoInput(model) || (model.attends ? "" : `${name} offers no attention weights.`);
            if (refusal) throw new RangeError(refusal);
            if (!input.text.trim()) throw new RangeError("Type a text.");
            byId("attention-status").textContent = "Computing …";
            const layer = Number(layerChoice.value);
            const sequence = requestInput(input.kind, [input.text]);
            // Read before the call: the user may type on while the call runs.
            const ids = input.kind === TOKENS ? input.text.trim().split(/[\s,;]+/) : null;
            const ask = (heads) => calls.call("Attend", { model: name, ...sequence, layers: [layer], heads });
            const result = await layerWeights(ask, model.heads, ids?.length ?? mostTokens(input.text), isLatest);
            const tokens = (ids ?? result?.tokens)?.map(shownToken);
            return { ...result, model: name, layer, heads: model.heads, sequence, tokens };
        },
        (result) => {
            say(byId("attention-error"), "");
            if (JSON.stringify(result.sequence) !== JSON.stringify(shown?.sequence) || result.model !== shown.model)
                contexts.clear();
            shown = result;
            headWeights = null;
            query = Math.min(query, shown.count - 1);
            byId("attention-result").hidden = false;
            byId("attention-status").textContent = `${shown.count} tokens, weights of ${shown.heads} heads`;
            update();
            loadContext();
        },
        (error) => {
            byId("attention-status").textContent = "";
            byId("attention-result").hidden = true;
            say(byId("attention-error"), error.message);
        },
    );

    const loadContext = latestOnly(
        async () => {
            const { layer, sequence, model: name } = shown;
            const head = Number(headChoice.value);
            const key = `${layer}/${head}/${query}`;
            if (!contexts.has(key)) {
                const request = { model: name, ...sequence, layers: [layer], heads: [head], query };
                contexts.set(key, calls.call("Attend", request));
                contexts.get(key).catch(() => contexts.delete(key));
            }
            return float32Values((await contexts.get(key)).context);
        },
        showContext,
        (error) => byId("context").replaceChildren(element("p", { class: "error" }, error.message)),
    );

    function rawHead(head) {
        const size = shown.count * shown.count;
        return shown.weights.subarray(head * size, (head + 1) * size);
    }

    /** Return the weights of a head under the settings. */
    function weightsOf(head) {
        return whatIfHead(rawHead(head), shown.count, settings);
    }

    function row(weights) {
        return weights.subarray(query * shown.count, (query + 1) * shown.count);
    }

    function drawContext() {
        byId("context").replaceChildren(contextDrawing(context, byId("context").clientWidth));
    }

    /** Change what is chosen, the token or the head. */
    function choose(change) {
        change();
        if (!shown) return;
        update();
        loadContext();
    }

    /** Show the chosen token of the chosen head under the settings. */
    const update = oncePerFrame(() => {
        const head = Number(headChoice.value);
        headWeights = weightsOf(head);
        const title = `token ${query} “${shown.tokens[query]}”, layer ${shown.layer}, head ${head}`;
        byId("lines-title").textContent = `Weights of ${title}`;
        byId("map-title").textContent = `Head ${head}: all tokens`;
        byId("heads-title").textContent = `All heads of layer ${shown.layer}`;
        byId("context-title").textContent = `Context vector of token ${query}, head ${head}`;
        chips.show(shown.tokens, row(headWeights), query, DECIMALS);
        showTable(head, title);
        draw();
    });

    /** Draw what depends on the width of the page or on its theme. */
    function draw() {
        const weights = row(headWeights);
        byId("lines").replaceChildren(linesDrawing(shown.tokens, weights, query, byId("lines").clientWidth, DECIMALS));
        labelledMap(byId("map"), shown.tokens, headWeights, query, isDark());
        chips.paint(weights);
        heads.show(shown, settings, Number(headChoice.value), weightsOf);
    }

    function showTable(head, title) {
        const [raw, now] = [row(rawHead(head)), row(headWeights)];
        const sum = now.reduce((total, weight) => total + weight, 0);
        const note = sum > 0 ? "" : " The masks leave this token nothing to look at.";
        const rows = Array.from(now, (weight, key) => [
            `${key}`,
            shown.tokens[key],
            fixed(raw[key], DECIMALS),
            fixed(weight, DECIMALS),
        ]);
        const caption = `Weights of ${title}. The shown weights add up to ${fixed(sum, DECIMALS)}.${note}`;
        byId("weights-table").replaceChildren(
            table(caption, ["position", "token", "model’s weight", "shown weight"], rows, 2),
        );
    }

    function showContext(values) {
        context = values;
        drawContext();
        byId("context-numbers").replaceChildren(
            ...Array.from(values, (value) => element("li", {}, fixed(value, DECIMALS))),
        );
    }

    function changeSettings() {
        settings = {
            causal: byId("causal").checked,
            noSelf: byId("no-self").checked,
            temperature: Number(temperature.value),
        };
        byId("temperature-value").textContent = fixed(settings.temperature, 1);
        if (shown) update();
    }

    for (const id of ["causal", "no-self", "temperature"]) byId(id).addEventListener("input", changeSettings);
    byId("reset").addEventListener("click", () => {
        byId("causal").checked = byId("no-self").checked = false;
        temperature.value = "1";
        changeSettings();
    });
    layerChoice.addEventListener("change", load);
    headChoice.addEventListener("change", () => choose(() => {}));
    byId("map").addEventListener("click", (event) => {
        const position = byId("map").rowAt?.(event.offsetY);
        if (position !== undefined) choose(() => (query = position));
    });
    byId("download-png").addEventListener("click", () =>
        byId("map").toBlob((blob) => download(blob, `attention-layer-${shown.layer}-head-${headChoice.value}.png`)),
    );
    byId("download-csv").addEventListener("click", () => {
        const head = Number(headChoice.value);
        const text = attentionCsv(shown.layer, head, shown.tokens, rawHead(head), weightsOf(head));
        download(new Blob([text], { type: "text/csv" }), `attention-layer-${shown.layer}-head-${head}.csv`);
    });
    onWidth(byId("lines"), () => headWeights && draw());
    onWidth(byId("context"), () => context && drawContext());
    onTheme(() => headWeights && draw());

    const options = (count, word) =>
        Array.from({ length: count }, (_, index) => element("option", { value: index }, `${word} ${index}`));
    return {
        useModel(description) {
            model = description;
            input.useModel(model);
            layerChoice.replaceChildren(...options(model.layers, "Layer"));
            headChoice.replaceChildren(...options(model.heads, "Head"));
            stale = true;
            if (visible) load();
        },
        shown() {
            visible = true;
            if (model && stale) load();
        },
        left() {
            visible = false;
        },
    };
}
