// The tab Attention: the weights of all heads, and the context vector of a token in one of them.
import { linesDrawing } from "./attention_drawings.js";
import { chipBar } from "./attention_chips.js";
import { whatIfHead } from "./attention_maths.js";
import { weightShare } from "./colours.js";
import { contextCard } from "./context_card.js";
import { byId, drawing, isBusy, say, setOptions } from "./dom.js";
import { offerExamples } from "./examples.js";
import { sayFinding } from "./finding.js";
import { headComparison } from "./head_comparison.js";
import { headGrid } from "./head_grid.js";
import { PATTERNS, bestHead, dimmed, isSeparator } from "./head_patterns.js";
import { WEIGHTS_OF_SCALE, labelledMap, scale } from "./heat_maps.js";
import { loadedTab } from "./loaded_tab.js";
import { loader } from "./loader.js";
import { isSameModel } from "./models.js";
import { counted } from "./numbers.js";
import { TEXTS, TOKENS, whyNoInput } from "./sequence_input.js";
import { textAttention } from "./text_attention.js";
import { isDark } from "./theme.js";
import { followed, truncated } from "./token_spans.js";
import { shortened } from "./tokens.js";
import { typedInput } from "./typed_input.js";
import { drawWeights } from "./weights_table.js";
import { whatIf } from "./what_if.js";

const DECIMALS = 4;
const OPENING = { pattern: PATTERNS.reference, words: "" };

/** Return the tab; it calls `changed` whenever its state has changed. */
export function attentionTab(models, changed) {
    const layerChoice = byId("layer");
    const headChoice = byId("head");
    let model = null;
    // What is chosen; and the token under the mouse, or null.
    let layer = 0;
    let head = 0;
    let query = 1;
    let pointed = null;
    // The pattern whose best head the next reply opens, with words about it, or null if the chosen head stays.
    let wanted = OPENING;
    // The last reply, with what it was asked for.
    let shown = null;
    let headError = ""; // Why these weights do not come.
    let isWaiting = false; // Whether the drawings wait for the weights of the chosen head.
    // The text of an address, whose token and masks belong to it.
    let linkedText = null;

    const labels = { [TEXTS]: "Text", [TOKENS]: "Token ids, with spaces between them and with the special tokens" };
    const input = typedInput("attention", labels, { [TOKENS]: "1 2 3 4" }, () => tab.changed());
    const chips = chipBar(byId("chips"), (position) => choose(layer, head, position), (at) => controls.crossOut(at), (position) => {
        pointed = position;
        redrawLook();
    });
    const heads = headGrid(
        (newLayer, newHead, newQuery = query) => choose(newLayer, newHead, newQuery),
        () => redraw(),
    );
    const controls = whatIf(() => {
        redraw();
        context.redraw();
    });
    const context = contextCard(models, () => controls.settings, () => {
        if (isWaiting) redraw();
    });
    const comparison = headComparison(models, () => redraw());

    const load = loader(
        async (signal) => {
            const refusal =
                whyNoInput(model) || (model.attends ? "" : `${model.model.name} offers no attention weights.`);
            if (refusal) throw new RangeError(refusal);
            if (!input.text.trim()) throw new RangeError("Type a text.");
            isBusy("attention-result", true);
            byId("attention-status").textContent = "Computing …";
            const asked = model;
            const call = (method, request) => models.call(asked, method, request, { signal });
            return textAttention(call, asked, input, Number(layerChoice.value), wanted?.pattern);
        },
        (result) => {
            tab.loaded();
            say(byId("attention-error"), "");
            byId("truncate").hidden = true;
            const isLinked = result.text === linkedText;
            linkedText = null;
            // A vector of another text says nothing beside these weights.
            if (JSON.stringify(result.sequence) !== JSON.stringify(shown?.sequence)) {
                context.forget();
                controls.keepCrossedOut((position) => isLinked && position < result.count);
            }
            if (shown && !isLinked) query = followed(shown.tokens, result.tokens, query);
            shown = result;
            heads.use(shown);
            byId("attention-status").textContent = `${counted(shown.count, "token")}, ${headsShown()}`;
            if (wanted) open();
            else choose(shown.layer, head, query);
        },
        (error) => {
            say(byId("attention-error"), error.message);
            byId("truncate").hidden = error.reason !== "SEQUENCE_TOO_LONG" || input.kind !== TEXTS;
            isBusy("attention-result", false);
            byId("attention-status").textContent = shown ? `The page still shows “${shortened(shown.text)}”.` : "";
        },
    );

    const truncate = loader(
        (signal) =>
            truncated((method, request) => models.call(model, method, request, { signal }), model, input.text),
        (text) => {
            input.text = text;
            tab.changed();
        },
        (error) => say(byId("attention-error"), error.message),
    );

    /** Show nothing of the last replies. */
    function forget() {
        context.forget();
        comparison.forget();
        shown = null;
        isBusy("attention-result", false);
        byId("truncate").hidden = true;
        byId("attention-result").hidden = true;
        byId("attention-status").textContent = "";
    }

    /** Return the rounded weights of a head. */
    function roundedHead(ofLayer, ofHead) {
        const [size, index] = [shown.count * shown.count, shown.layers.indexOf(ofLayer) * shown.heads + ofHead];
        return shown.weights.subarray(index * size, (index + 1) * size);
    }

    /** Return the weights of the chosen head, which come with its first context vector; undefined until then. */
    function exactHead() {
        return shown?.exact.get(`${layer}/${head}`);
    }

    /** Return weights under the settings. */
    function whatIfOf(weights) {
        return whatIfHead(weights, shown.count, controls.settings);
    }

    /** Return weights as drawings colour them. */
    function coloured(weights) {
        return heads.isDim ? dimmed(weights, shown.tokens) : weights;
    }

    function row(weights, position = query) {
        return weights.subarray(position * shown.count, (position + 1) * shown.count);
    }

    /** Choose a layer, a head and a token. */
    function choose(newLayer, newHead, newQuery) {
        // The list of tokens may still be that of an older text.
        [head, query] = [newHead, Math.min(newQuery, (shown?.count ?? Infinity) - 1)];
        layerChoice.value = String(newLayer);
        headChoice.value = String(head);
        pointed = null;
        say(byId("finding-rule"), "");
        if (!shown) return;
        if (!shown.layers.includes(newLayer)) {
            tab.changed();
            return;
        }
        layer = newLayer;
        heads.offer(query);
        context.load(shown, layer, head, query);
        redraw();
    }

    const headsShown = () => counted(shown.layers.length * shown.heads, "head");
    /** Choose the head that follows the wanted pattern best. */
    function open() {
        const [found] = [wanted.pattern, PATTERNS.any]
            .map((pattern) => ({ pattern, ...bestHead(shown.weights, shown.tokens, pattern) }))
            .filter(({ index }) => index !== undefined);
        const { pattern, index, query: newQuery, key } = found;
        const { words } = wanted;
        wanted = null;
        choose(shown.layers[Math.floor(index / shown.heads)], index % shown.heads, newQuery);
        heads.offer(query, key);
        // All heads of a single token have the same weight.
        const rule = shown.count > 1 ? `The page chose this head: of ${headsShown()}, it ${pattern.rule}.` : "";
        say(byId("finding-rule"), `${words} ${rule}`.trim());
    }

    const redraw = drawing(byId("panel-attention"), () => {
        if (!shown) return;
        changed();
        const { settings, crossOut } = controls;
        heads.show(settings, [layer, head], (...place) => coloured(whatIfOf(roundedHead(...place))));
        const exact = exactHead();
        // Until the weights of this head come, the old drawings stay below their old titles.
        isWaiting = !exact;
        const error = isWaiting ? context.error : "";
        // The card of the context vector is hidden until a head has been drawn.
        if (error !== headError) say(byId("attention-error"), (headError = error));
        isBusy("attention-result", isWaiting && !error);
        if (isWaiting) return;
        byId("attention-result").hidden = false;
        const weights = whatIfOf(exact);
        byId("map-title").textContent = `Layer ${layer}, head ${head}: all tokens`;
        byId("heads-title").textContent =
            shown.layers.length === shown.model.layers ? "All heads" : `All heads of layer ${layer}`;
        byId("weight-scale").replaceChildren(...scale(WEIGHTS_OF_SCALE, weightShare, isDark()));
        labelledMap(byId("map"), shown.tokens, weights, coloured(weights), query, isDark());
        comparison.show({ shown, layer, head, query, row: row(weights), settings, isFaint, crossOut });
        drawWeights(titleOf(query), shown.tokens, row(exact), row(weights));
        drawLook(weights);
    });

    const redrawLook = drawing(byId("panel-attention"), () => {
        const exact = exactHead();
        if (exact) drawLook(whatIfOf(exact));
    });

    const titleOf = (position) => `token ${position} “${shown.tokens[position]}”, layer ${layer}, head ${head}`;
    const isFaint = (key) => heads.isDim && isSeparator(shown.tokens[key]);

    /** Draw where the token under the mouse looks, or else the chosen one. */
    function drawLook(weights) {
        const position = pointed ?? query;
        const [now, { crossedOut }] = [row(weights, position), controls.settings];
        sayFinding(shown.tokens, now, position, layer, head, isFaint);
        byId("lines-title").textContent = `Weights of ${titleOf(position)}`;
        chips.show(shown.tokens, now, query, DECIMALS, crossedOut);
        chips.paint(row(coloured(weights), position));
        const width = byId("lines").clientWidth;
        byId("lines").replaceChildren(
            linesDrawing(shown.tokens, now, position, width, DECIMALS, crossedOut, isFaint, controls.crossOut),
        );
    }

    byId("cross-out").addEventListener("click", () => controls.crossOut(query));
    offerExamples((example) => {
        controls.reset();
        wanted = example;
        input.show(TEXTS, example.text);
        tab.changed();
        byId("attention-form").scrollIntoView({ block: "nearest" });
    });
    layerChoice.addEventListener("change", () => choose(Number(layerChoice.value), head, query));
    headChoice.addEventListener("change", () => choose(layer, Number(headChoice.value), query));
    byId("truncate").addEventListener("click", truncate.run);
    const cellAt = ({ offsetX, offsetY }) => byId("map").cellAt?.(offsetX, offsetY);
    byId("map").addEventListener("click", (event) => {
        const cell = cellAt(event);
        if (cell) choose(layer, head, cell.query);
    });
    byId("map").addEventListener("mousemove", (event) => (byId("map").title = cellAt(event)?.words ?? ""));
    for (const [id, name] of Object.entries({ "download-png": "downloadPicture", "download-csv": "downloadWeights" }))
        byId(id).addEventListener("click", async () => {
            const downloads = await import("./attention_downloads.js");
            const [raw, { settings }] = [exactHead(), controls];
            if (raw) downloads[name]({ shown, layer, head, settings, raw, weights: whatIfOf(raw) });
        });

    const tab = loadedTab({
        use(description) {
            if (shown && !isSameModel(shown.model.model, description?.model)) forget();
            if (description && model?.model.name !== description.model.name) wanted = OPENING;
            model = description;
            if (!model) return;
            input.useModel(model);
            byId("examples-card").hidden = !model.takesTexts;
            comparison.useModel(model);
            setOptions(layerChoice, model.layers, (number) => `Layer ${number}`);
            setOptions(headChoice, model.heads, (number) => `Head ${number}`);
            head = Number(headChoice.value);
        },
        load,
        state: () => ({
            ...controls.settings,
            layer: Number(layerChoice.value),
            head,
            token: query,
            crossedOut: [...controls.settings.crossedOut],
            ...heads.state,
            ...comparison.state,
            ...input.state,
        }),
        restore(state) {
            input.show(state.kind ?? TEXTS, state.text);
            setOptions(layerChoice, model.layers, (number) => `Layer ${number}`, state.layer);
            setOptions(headChoice, model.heads, (number) => `Head ${number}`, state.head);
            controls.show(state);
            comparison.restore(state);
            heads.restore(state);
            head = Number(headChoice.value);
            query = state.token ?? query;
            if ([state.layer, state.head, state.token].some((each) => each !== undefined)) wanted = null;
            const isLoaded = shown?.text === input.text && shown.layers.includes(Number(layerChoice.value));
            if (isLoaded) choose(Number(layerChoice.value), head, query);
            else linkedText = input.text;
            return !isLoaded;
        },
    });
    return tab;
}
