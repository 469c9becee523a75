// The tab Attention: the weights of a layer, and the context vector of a token in a head.
import { linesDrawing } from "./attention_drawings.js";
import { attentionCsv } from "./attention_files.js";
import { chipBar } from "./attention_chips.js";
import { AS_COMPUTED, whatIfHead } from "./attention_maths.js";
import { weightShare } from "./colours.js";
import { contextCard } from "./context_card.js";
import { byId, download, drawing, element, isBusy, say, showTable, table } from "./dom.js";
import { headMaps } from "./head_maps.js";
import { WEIGHTS_OF_SCALE, labelledMap, picture, scale } from "./heat_maps.js";
import { layerWeights, mostTokens } from "./layer_weights.js";
import { loadedTab } from "./loaded_tab.js";
import { loader } from "./loader.js";
import { isSameModel } from "./models.js";
import { counted, fixed } from "./numbers.js";
import { TEXTS, TOKENS, requestInput, whyNoInput } from "./sequence_input.js";
import { isDark } from "./theme.js";
import { followed, truncated, withoutUnknown } from "./token_spans.js";
import { shortened, shownToken } from "./tokens.js";
import { typedInput } from "./typed_input.js";

const DECIMALS = 4;

/** Return the tab. */
export function attentionTab(models) {
    const layerChoice = byId("layer");
    const headChoice = byId("head");
    const temperature = byId("temperature");
    let model = null;
    let settings = AS_COMPUTED;
    // What is chosen.
    let head = 0;
    let query = 1;
    // The last reply, with what it was asked for.
    let shown = null;

    const labels = { [TEXTS]: "Text", [TOKENS]: "Token ids, with spaces between them and with the special tokens" };
    const input = typedInput("attention", labels, { [TOKENS]: "1 2 3 4" }, () => tab.changed());
    const chips = chipBar(byId("chips"), (position) => choose(head, position), crossOut);
    const heads = headMaps(byId("heads"), (index) => choose(index, query));
    const context = contextCard(models, () => settings);

    const load = loader(
        async (signal) => {
            const asked = model;
            const refusal =
                whyNoInput(asked) || (asked.attends ? "" : `${asked.model.name} offers no attention weights.`);
            if (refusal) throw new RangeError(refusal);
            if (!input.text.trim()) throw new RangeError("Type a text.");
            isBusy("attention-result", true);
            byId("attention-status").textContent = "Computing …";
            const layer = Number(layerChoice.value);
            const sequence = requestInput(input.kind, [input.text]);
            // Read before the call: the user may type on while the call runs.
            const ids = input.kind === TOKENS ? input.text.trim().split(/[\s,;]+/) : null;
            const text = input.text;
            const call = (method, request) => models.call(asked, method, request, { signal });
            const ask = (indices) => call("Attend", { ...sequence, layers: [layer], heads: indices });
            const result = await layerWeights(ask, asked.heads, ids?.length ?? mostTokens(text));
            const tokens = (ids ?? (await withoutUnknown(call, asked, text, result.tokens))).map(shownToken);
            return { ...result, model: asked, layer, heads: asked.heads, sequence, text, tokens, vectors: new Map() };
        },
        (result) => {
            tab.loaded();
            say(byId("attention-error"), "");
            byId("truncate").hidden = true;
            isBusy("attention-result", false);
            // A vector of another text says nothing beside these weights.
            if (JSON.stringify(result.sequence) !== JSON.stringify(shown?.sequence)) {
                context.forget();
                settings = { ...settings, crossedOut: new Set() };
            }
            if (shown) query = followed(shown.tokens, result.tokens, query);
            shown = result;
            byId("attention-result").hidden = false;
            byId("attention-status").textContent = 
                `${counted(shown.count, "token")}, weights of ${counted(shown.heads, "head")}`;
            choose(head, Math.min(query, shown.count - 1));
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
        shown = null;
        isBusy("attention-result", false);
        byId("truncate").hidden = true;
        byId("attention-result").hidden = true;
        byId("attention-status").textContent = "";
    }

    function rawHead(index) {
        const size = shown.count * shown.count;
        return shown.weights.subarray(index * size, (index + 1) * size);
    }

    /** Return the weights of a head under the settings. */
    function weightsOf(index) {
        return whatIfHead(rawHead(index), shown.count, settings);
    }

    function row(weights) {
        return weights.subarray(query * shown.count, (query + 1) * shown.count);
    }

    /** Choose a head and a token. */
    function choose(newHead, newQuery) {
        [head, query] = [newHead, newQuery];
        headChoice.value = String(head);
        if (!shown) return;
        redraw();
        context.load(shown, head, query);
    }

    const redraw = drawing(byId("panel-attention"), () => {
        if (!shown) return;
        const weights = weightsOf(head);
        const title = `token ${query} “${shown.tokens[query]}”, layer ${shown.layer}, head ${head}`;
        byId("lines-title").textContent = `Weights of ${title}`;
        byId("map-title").textContent = `Head ${head}: all tokens`;
        byId("heads-title").textContent = `All heads of layer ${shown.layer}`;
        byId("weight-scale").replaceChildren(...scale(WEIGHTS_OF_SCALE, weightShare, isDark()));
        chips.show(shown.tokens, row(weights), query, DECIMALS, settings.crossedOut);
        chips.paint(row(weights));
        byId("lines").replaceChildren(
            linesDrawing(
                shown.tokens,
                row(weights),
                query,
                byId("lines").clientWidth,
                DECIMALS,
                settings.crossedOut,
                crossOut,
            ),
        );
        labelledMap(byId("map"), shown.tokens, weights, query, isDark());
        heads.show(shown, settings, head, weightsOf);
        drawTable(title, row(rawHead(head)), row(weights));
    });

    function drawTable(title, raw, now) {
        const sum = now.reduce((total, weight) => total + weight, 0);
        const note = sum > 0 ? "" : " The masks leave this token nothing to look at.";
        const rows = Array.from(now, (weight, key) => [
            `${key}`,
            shown.tokens[key],
            fixed(raw[key], DECIMALS),
            fixed(weight, DECIMALS),
        ]);
        const caption = `Weights of ${title}. The shown weights add up to ${fixed(sum, DECIMALS)}.${note}`;
        const names = ["position", "token", "model’s weight", "shown weight"];
        showTable(byId("weights-table"), table(caption, names, rows, 2));
    }

    /** Hide a token from all others, or show it again. */
    function crossOut(position) {
        const crossedOut = new Set(settings.crossedOut);
        if (!crossedOut.delete(position)) crossedOut.add(position);
        settings = { ...settings, crossedOut };
        redraw();
        context.redraw();
    }

    function changeSettings() {
        settings = {
            ...settings,
            causal: byId("causal").checked,
            noSelf: byId("no-self").checked,
            temperature: Number(temperature.value),
        };
        byId("temperature-value").textContent = fixed(settings.temperature, 1);
        redraw();
        context.redraw();
    }

    for (const id of ["causal", "no-self", "temperature"]) byId(id).addEventListener("input", changeSettings);
    byId("reset").addEventListener("click", () => {
        byId("causal").checked = byId("no-self").checked = false;
        settings = AS_COMPUTED;
        temperature.value = "1";
        changeSettings();
    });
    layerChoice.addEventListener("change", () => tab.changed());
    headChoice.addEventListener("change", () => choose(Number(headChoice.value), query));
    byId("truncate").addEventListener("click", truncate.run);
    byId("map").addEventListener("click", ({ offsetX, offsetY }) => {
        const cell = byId("map").cellAt?.(offsetX, offsetY);
        if (cell) choose(head, cell.query);
    });
    byId("map").addEventListener("mousemove", ({ offsetX, offsetY }) => {
        byId("map").title = byId("map").cellAt?.(offsetX, offsetY)?.words ?? "";
    });
    byId("download-png").addEventListener("click", () => {
        const name = `attention-layer-${shown.layer}-head-${head}.png`;
        const { causal, noSelf, temperature, crossedOut } = settings;
        const title = [
            shown.model.model.name,
            `layer ${shown.layer}, head ${head}`,
            causal && "causal mask",
            noSelf && "self mask",
            crossedOut.size > 0 && `without ${[...crossedOut].map((key) => shown.tokens[key]).join(" ")}`,
            temperature !== 1 && `temperature ${temperature}`,
            shown.text,
        ];
        const parts = title.filter(Boolean).join(" · ");
        picture(byId("map"), parts, isDark()).toBlob((blob) => download(blob, name));
    });
    byId("download-csv").addEventListener("click", () => {
        const text = attentionCsv(shown.layer, head, shown.tokens, rawHead(head), weightsOf(head));
        download(new Blob([text], { type: "text/csv" }), `attention-layer-${shown.layer}-head-${head}.csv`);
    });

    const tab = loadedTab({
        use(description) {
            if (shown && !isSameModel(shown.model.model, description?.model)) forget();
            model = description;
            if (!model) return;
            input.useModel(model);
            setOptions(layerChoice, model.layers, "Layer");
            setOptions(headChoice, model.heads, "Head");
            head = Number(headChoice.value);
        },
        load,
    });
    return tab;
}

/** Offer the numbers below `count`, and keep the chosen one if it is among them. */
function setOptions(choice, count, word) {
    const chosen = Number(choice.value) < count ? Number(choice.value) : 0;
    choice.replaceChildren(
        ...Array.from({ length: count }, (_, index) => element("option", { value: index }, `${word} ${index}`)),
    );
    choice.value = String(chosen);
}
