// Starts the page: passes the chosen model to the tabs.
import { pageAddress } from "./address.js";
import { attentionTab } from "./attention_tab.js";
import { Calls } from "./calls.js";
import { copyCall } from "./copy_call.js";
import { byId, element, say } from "./dom.js";
import { addPanels, lateTab } from "./late_tab.js";
import { Models, isSameModel } from "./models.js";
import { tabsOf } from "./model_tabs.js";
import { counted, enumWords } from "./numbers.js";
import { signIn } from "./sign_in.js";
import { makeTabs } from "./tabs.js";

const calls = new Calls();
const models = new Models(calls);
const LATE = ["images", "rerank", "classify", "similarity", "latency", "cost", "models"];
let othersLoad = null;

/** Return the tabs that the page does not load at first. */
function others() {
    const load = async () => {
        const [{ otherTabs }] = await Promise.all([import("./other_tabs.js"), addPanels("other_tabs")]);
        return otherTabs(calls, models, () => address.changed());
    };
    return (othersLoad ??= load());
}

function lost(error) {
    othersLoad = null;
    say(byId("page-error"), `The server did not send this tab: reload the page (${error.message}).`);
}

// Each tab is an object of functions: `useModel(description, linked)` with the chosen model, or null if there is none, and
// with the state of the address if the address has led to the model; `shown()` and `left()` when the user comes and goes;
// and, if the address holds what the tab shows, `state()` and `useState()`.
const tabs = {
    attention: attentionTab(models, () => address.changed()),
    ...Object.fromEntries(LATE.map((name) => [name, lateTab(async () => (await others())[name], lost)])),
};
const choice = byId("model");
let used = null;
// The state of the address, until its model is there, or the server has said that there is no such model.
let due = null;

function showModels() {
    const { names, chosen, removed, error } = models;
    const note = removed && `${removed} is no longer served.`;
    say(byId("page-error"), error || (chosen ? "" : "The server has no model that answers requests at present."));
    say(byId("page-note"), note && chosen ? `${note} The page now shows ${chosen.model.name}.` : note);
    if (JSON.stringify([...choice.options].map(({ value }) => value)) !== JSON.stringify(names))
        choice.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
    choice.disabled = names.length < 2;
    choice.value = chosen?.model.name ?? "";
    byId("model-summary").textContent = chosen ? summary(chosen) : "";
    const linked = chosen && !error ? due : null;
    if (linked) due = null;
    if (used && isSameModel(used.model, chosen?.model)) {
        if (linked) showHere(linked);
        return;
    }
    used = chosen;
    tabList.offer(tabsOf(chosen));
    if (linked) tabList.show(linked.tab);
    for (const [name, tab] of Object.entries(tabs)) tab.useModel(chosen, name === linked?.tab ? linked : null);
    address.useModel(chosen?.model ?? null);
}

/** Return what the address holds, or null while there is no model, or not yet that of the address. */
function shownState() {
    const { name, digest } = used?.model ?? {};
    return used && !due && { ...tabs[tabList.shown].state?.(), tab: tabList.shown, model: name, digest };
}

/** Show what the address holds. */
function showState(state) {
    if (used && !due && [undefined, used.model.name].includes(state.model)) {
        showHere(state);
        return;
    }
    due = state;
    if (used) models.choose(state.model ?? used.model.name);
}

/** Show what the address holds of the chosen model. */
function showHere(state) {
    tabs[state.tab]?.useState?.(state);
    tabList.show(state.tab);
}

function summary({ model, execution, layers, heads }) {
    const parts = [
        model.version && `version ${model.version}`,
        enumWords(model.precision, "PRECISION_"),
        execution?.provider,
        `${counted(layers, "layer")} of ${counted(heads, "head")}`,
    ];
    return parts.filter(Boolean).join(" · ");
}

models.addEventListener("changed", showModels);
choice.addEventListener("change", () => {
    due = null;
    models.choose(choice.value);
});
calls.addEventListener("waiting", () => say(byId("page-waits"), calls.waitsFor && `${calls.waitsFor} Trying again …`));
signIn(calls);

const tabList = makeTabs(document.querySelector("[role=tablist]"), (name, before) => {
    if (before) tabs[before].left();
    tabs[name].shown();
    address.changed();
    showCopyCall();
});
const showCopyCall = copyCall(calls, () => tabList.shown);
const address = pageAddress(shownState, showState);
showState(address.opened);
tabList.show(address.opened.tab);
models.follow(address.opened.model);
