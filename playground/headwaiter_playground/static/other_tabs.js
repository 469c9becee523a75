// The tabs that most visits do not need at once: a file of their own, which the page loads with the first of them.
import { classifyTab } from "./classify_tab.js";
import { costTab } from "./cost_tab.js";
import { imagesTab } from "./images_tab.js";
import { latencyTab } from "./latency_tab.js";
import { modelsTab } from "./models_tab.js";
import { rerankTab } from "./rerank_tab.js";
import { similarityTab } from "./similarity_tab.js";

/** Return the tabs by their names; they call `changed` whenever their state has changed. */
export function otherTabs(calls, models, changed) {
    return {
        images: imagesTab(models, changed),
        rerank: rerankTab(models, changed),
        classify: classifyTab(models, changed),
        similarity: similarityTab(models, changed),
        latency: latencyTab(calls, models, changed),
        cost: costTab(calls, changed),
        models: modelsTab(calls, models),
    };
}
