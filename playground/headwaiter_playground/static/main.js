// Starts the page: loads the list of models, passes the chosen model to the tabs, and asks for a token if need be.
import { attentionTab } from "./attention_tab.js";
import { Calls, latestOnly } from "./calls.js";
import { costTab } from "./cost_tab.js";
import { byId, element, say } from "./dom.js";
import { latencyTab } from "./latency_tab.js";
import { modelsTab } from "./models_tab.js";
import { enumWords } from "./numbers.js";
import { similarityTab } from "./similarity_tab.js";
import { makeTabs } from "./tabs.js";

const calls = new Calls();
// Each tab is an object of functions: `useModel(description)`, and `shown()` and `left()` when the user comes and goes.
const tabs = {
    attention: attentionTab(calls),
    similarity: similarityTab(calls),
    latency: latencyTab(calls),
    cost: costTab(calls),
    models: modelsTab(calls),
};
const choice = byId("model");
let shown = "";

const loadModels = latestOnly(
    () => calls.call("ListModels", {}),
    ({ models }) => {
        say(byId("page-error"), models.length ? "" : "The server has no model that answers requests at present.");
        const chosen = choice.value;
        choice.replaceChildren(...models.map(({ name }) => element("option", { value: name }, name)));
        choice.disabled = models.length < 2;
        if (models.some(({ name }) => name === chosen)) choice.value = chosen;
        if (models.length) loadModel();
    },
    (error) => say(byId("page-error"), error.message),
);

const loadModel = latestOnly(
    () => calls.call("GetModel", { name: choice.value }),
    (model) => {
        say(byId("page-error"), "");
        byId("model-summary").textContent = [
            model.model.version && `version ${model.model.version}`,
            enumWords(model.model.precision, "PRECISION_"),
            model.execution?.provider,
            `${model.layers} layers of ${model.heads} heads`,
        ]
            .filter(Boolean)
            .join(" · ");
        for (const tab of Object.values(tabs)) tab.useModel(model);
    },
    (error) => say(byId("page-error"), error.message),
);

choice.addEventListener("change", loadModel);
calls.addEventListener("token-needed", () => {
    byId("sign-in").hidden = false;
});
byId("sign-in").addEventListener("submit", (event) => {
    event.preventDefault();
    calls.token = byId("token").value.trim();
    byId("token").value = "";
    byId("sign-in").hidden = true;
    loadModels();
    // What the tab asked without the token was refused.
    tabs[shown].shown();
});

makeTabs(document.querySelector("[role=tablist]"), (name, before) => {
    if (before) tabs[before].left();
    shown = name;
    tabs[name].shown();
});
loadModels();
