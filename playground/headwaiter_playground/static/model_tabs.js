// Which tabs stand for a model.
import { kindsOf } from "./sequence_input.js";

const ALWAYS = ["latency", "cost", "models"];

/** Return the names of the tabs for what a model does; `model` is null if there is none. */
export function tabsOf(model) {
    if (!model) return ["attention", "similarity", ...ALWAYS];
    const { tasks, takesImages } = model;
    const takesTyped = kindsOf(model).length > 0;
    const reranks = tasks.includes("TASK_RERANK");
    const classifies = tasks.includes("TASK_CLASSIFY") || tasks.includes("TASK_CLASSIFY_TOKENS");
    return [
        // A model of features alone has a tab that says why there is nothing to see.
        (takesTyped || !takesImages) && "attention",
        takesImages && "images",
        reranks && "rerank",
        classifies && takesTyped && !reranks && "classify",
        takesTyped && tasks.includes("TASK_ENCODE") && "similarity",
        ...ALWAYS,
    ].filter(Boolean);
}
