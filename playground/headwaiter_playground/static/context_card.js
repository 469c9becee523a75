// The cards of the context vector, what a token gets from a head under the settings of the what-if, and of its steps.
import { contextDrawing } from "./attention_drawings.js";
import { contextOf, isAsComputed, whatIfRow } from "./attention_maths.js";
import { byId, drawing, element, isBusy, say } from "./dom.js";
import { loader } from "./loader.js";
import { fixed } from "./numbers.js";
import { drawSteps } from "./steps_card.js";
import { float32Values } from "./tensors.js";

const DECIMALS = 4;

/** Return the card; `settings` returns those of the what-if, and `ended` is called after each call, with or without success. */
export function contextCard(models, settings, ended) {
    // What the next call asks for; and the last reply, with what it was asked for.
    let asked = null;
    let vector = null;

    const titleOf = ({ layer, head, query, tokens }) =>
        `Context vector of token ${query} “${tokens[query]}”, layer ${layer}, head ${head}`;

    const loading = loader(
        async (signal) => {
            const { shown, layer, head, query } = asked;
            const { model, sequence, tokens, exact, vectors } = shown;
            const named = { layer, head, query, tokens };
            const key = `${layer}/${head}/${query}`;
            if (!vectors.has(key)) {
                setBusy(true);
                byId("context-status").textContent = `Computing ${titleOf(named)} …`;
                const request = { ...sequence, layers: [layer], heads: [head], query, vectors: true };
                const reply = await models.call(model, "Attend", request, { signal });
                const weights = float32Values(reply.weights);
                exact.set(`${layer}/${head}`, weights);
                vectors.set(key, {
                    context: float32Values(reply.context),
                    weights: weights.subarray(query * tokens.length, (query + 1) * tokens.length),
                    values: reply.values ? float32Values(reply.values) : null,
                    keys: reply.keys ? float32Values(reply.keys) : null,
                    queryVector: reply.queryVector ? float32Values(reply.queryVector) : null,
                });
            }
            return { ...named, ...vectors.get(key), error: "" };
        },
        show,
        (error) => show({ context: null, error: error.message }),
    );

    function setBusy(busy) {
        for (const id of ["context-card", "steps-card"]) isBusy(id, busy);
    }

    function show(newest) {
        vector = newest;
        setBusy(false);
        byId("context-status").textContent = "";
        redraw();
        ended();
    }

    /** Return the context vector of the last reply under the settings, as far as its values are known. */
    function shownValues() {
        if (isAsComputed(settings()) || !vector.values) return vector.context;
        return contextOf(whatIfRow(vector.weights, vector.query, settings()), vector.values);
    }

    function hint() {
        if (vector?.context && !vector.values) {
            const advice = "Export the model again with this version to see it under masks and at other temperatures.";
            return `The sum of the head’s values, weighted by the model’s own weights. ${advice}`;
        }
        return "The sum of the head’s values, weighted by the shown weights.";
    }

    // The results are hidden until the weights of a head have come: a drawing has no width before.
    const redraw = drawing(byId("attention-result"), () => {
        const values = vector?.context ? shownValues() : null;
        say(byId("context-error"), vector?.error ?? "");
        byId("context-hint").textContent = hint();
        byId("context-title").textContent = values ? titleOf(vector) : "Context vector";
        byId("context").replaceChildren(...(values ? [contextDrawing(values, byId("context").clientWidth)] : []));
        byId("context-numbers").replaceChildren(
            ...Array.from(values ?? [], (value) => element("li", {}, fixed(value, DECIMALS))),
        );
        drawSteps(vector, settings());
    });

    return {
        redraw,
        /** Why the server refused the last call, or an empty text. */
        get error() {
            return loading.isRunning ? "" : (vector?.error ?? "");
        },
        /** Show the vector of a token in a head. */
        load(shown, layer, head, query) {
            asked = { shown, layer, head, query };
            redraw();
            loading.run();
        },
        /** Show nothing of the last reply. */
        forget() {
            loading.cancel();
            vector = null;
        },
    };
}
