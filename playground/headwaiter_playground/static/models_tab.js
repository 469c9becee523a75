// The tab Models: what the server has loaded, and how far its numbers are from PyTorch's.
import { byId, element, say, table } from "./dom.js";
import { loader } from "./loader.js";
import { counted, enumWords, fixed, grouped, percent, scientific } from "./numbers.js";
import { TOLERANCES } from "./tolerances.js";

const MOST_LABELS = 24;
const READY = "MODEL_STATE_READY";

/** Return the tab. */
export function modelsTab(calls, chosen) {
    let isShown = false;
    const load = loader(
        async (signal) => {
            const call = (method, request) => calls.call(method, request, { signal });
            const { models, versions } = await call("ListModels", {});
            // A server that reports no versions lists only models that answer requests.
            const listed = versions.length ? versions : models.map((model) => ({ ...model, state: READY, reason: "" }));
            return Promise.all(
                listed.map(async (status) => {
                    if (status.state !== READY) return card(status);
                    return card(status, await call("GetModel", { name: status.name, version: status.version }));
                }),
            );
        },
        (cards) => {
            say(byId("models-error"), "");
            byId("model-cards").replaceChildren(...cards);
        },
        (error) => say(byId("models-error"), error.message),
    );

    chosen.addEventListener("changed", () => isShown && load.run());
    return {
        useModel() {},
        shown() {
            isShown = true;
            load.run();
        },
        left() {
            isShown = false;
        },
    };
}

/** Return the card of a version; only versions that answer requests have a description. */
function card(status, model) {
    const state = element("span", { class: "state" }, enumWords(status.state, "MODEL_STATE_"));
    const name = status.version ? `${status.name}, version ${status.version} ` : `${status.name} `;
    const title = element("h2", {}, name, state);
    const reason = status.reason ? [element("p", { class: "error" }, status.reason)] : [];
    return element("article", { class: "card" }, title, ...reason, ...(model ? describe(model) : []));
}

/** Return the facts of a model, and its numbers if the server has measured them. */
function describe(model) {
    return model.execution?.selfCheck ? [facts(model), ...numbers(model)] : [facts(model)];
}

function facts(model) {
    const { execution = {}, limits, head } = model;
    const inputs = [
        model.takesTexts && `texts of at most ${grouped(model.maxTextTokens)} tokens`,
        model.takesPairs && "pairs of texts",
        model.takesTokens && `token ids below ${grouped(model.vocabularySize)}`,
        model.takesImages && "JPEG and PNG files",
        model.takesFeatures && `feature vectors of ${grouped(model.featureWidth)} numbers`,
    ].filter(Boolean);
    const labels = head?.labels ?? [];
    const left = labels.length - MOST_LABELS;
    const rows = {
        tasks: model.tasks.map((task) => enumWords(task, "TASK_")).join(", "),
        labels: labels.slice(0, MOST_LABELS).join(", ") + (left > 0 ? ` and ${grouped(left)} more` : ""),
        precision: enumWords(model.model.precision, "PRECISION_"),
        runs: execution.graph && `${execution.graph} on ${execution.provider}`,
        "why not the preferred device": execution.fallbackReason,
        inputs: inputs.join("; "),
        sequences:
            model.minTokens === model.maxTokens
                ? `exactly ${counted(model.maxTokens, "token")}`
                : `${grouped(model.minTokens)} to ${grouped(model.maxTokens)} tokens`,
        vectors: `${grouped(model.width)} numbers${model.normalized ? ", of unit length" : ""}`,
        pooling: enumWords(model.pooling, "POOLING_"),
        encoder: `${counted(model.layers, "layer")} of ${counted(model.heads, "head")}`,
        prompts: model.prompts.map(({ name, text }) => `${name} “${text}”`).join(", "),
        "a request has at most": `${counted(limits.maxSequences, "sequence")}, ${counted(limits.maxTokens, "token")}`,
        "a batch has at most": execution.tokenBudget && `${grouped(execution.tokenBudget)} tokens`,
        digest: model.model.digest.slice(0, 16),
        "digest of results": model.model.resultsDigest?.slice(0, 16),
    };
    const shown = Object.entries(rows).filter(([, text]) => text);
    return element(
        "dl",
        { class: "facts" },
        ...shown.flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)]),
    );
}

/** Return the numeric contract beside what the export and the server have measured. */
function numbers(model) {
    const { execution } = model;
    const start = execution.selfCheck;
    const exported = model.parity.find(({ graph }) => graph === execution.graph);
    const allowed = TOLERANCES[execution.precision] ?? {};
    const limit = (value) =>
        value === null || value === undefined ? `${scientific(allowed.maxRelative)} relative` : scientific(value);
    const row = (name, field, text, tolerance) => [
        name,
        text(start[field]),
        exported ? text(exported[field]) : "–",
        tolerance,
    ];
    const cosine = (value) => fixed(value, 7);
    const pooled = [
        row("pooled vectors, largest difference", "pooledMaxAbs", scientific, limit(allowed.pooled)),
        row("pooled vectors, relative", "pooledMaxRelative", scientific, scientific(allowed.maxRelative)),
    ];
    const rows = [
        ...(model.pooling === "POOLING_NONE" ? [] : pooled),
        row("hidden rows, largest difference", "hiddenMaxAbs", scientific, limit(allowed.hidden)),
        row("hidden rows, relative", "hiddenMaxRelative", scientific, scientific(allowed.maxRelative)),
        row("smallest cosine", "minCosine", cosine, `≥ ${allowed.minCosine}`),
        row("mean cosine", "meanCosine", cosine, "–"),
    ];
    if (model.head?.labels.length)
        rows.push(row("logits, largest difference", "logitsMaxAbs", scientific, limit(allowed.hidden)));
    const same = exported?.sameNearestNeighbour;
    const words = `The same nearest neighbour as float32 for ${percent(same)} of real sentences.`;
    const note = same === undefined ? [] : [element("p", { class: "hint" }, words)];
    const caption =
        `Differences from PyTorch in float32 over ${grouped(start.sequences)} golden inputs. ` +
        "The server refuses a model beyond the last column. The limits of largest differences hold for the absolute " +
        "or the relative difference, whichever is smaller. Hidden rows are the vectors of single tokens.";
    const region = { class: "scroll", tabindex: "0", role: "region", "aria-label": `Numbers of ${model.model.name}` };
    const scroll = element("div", region, table(caption, ["measure", "at start, here", "at export", "allowed"], rows));
    return [element("h3", {}, "Numeric contract and self-check"), scroll, ...note];
}
