// The buttons below each tab that copy the call which the tab has just made, as a program.
import { LONG_RUN } from "./calls.js";
import { copied } from "./clipboard.js";
import { asCurl, asOpenAi, asPython } from "./copied_calls.js";
import { byId } from "./dom.js";

// The methods by which a tab asks for what it shows; a call of another method only helps it.
const METHODS = {
    attention: ["Attend"],
    images: ["Classify", "Attend"],
    rerank: ["Classify"],
    classify: ["Classify"],
    similarity: ["Encode"],
    cost: ["ListBatches"],
    models: ["ListModels"],
};
const FORMS = { curl: asCurl, python: asPython, openai: asOpenAi };

/** Return a function that shows the buttons for the tab whose name `shownTab` returns. */
export function copyCall(calls, shownTab) {
    const last = {}; // The last call of each tab.

    /** Return the program of a form, or an empty text if there is none. */
    function program(form) {
        const call = last[shownTab()];
        return call ? FORMS[form](call, new URL(".", location.href).href, calls.hasToken) : "";
    }

    function show() {
        byId("copy-call").hidden = !last[shownTab()];
        byId("copy-openai").hidden = !program("openai");
        byId("copied-call").textContent = "";
    }

    for (const form of Object.keys(FORMS))
        byId(`copy-${form}`).addEventListener("click", async () => {
            byId("copied-call").textContent = await copied(program(form));
        });
    calls.addEventListener("made", ({ method, request, lane }) => {
        const tab = lane === LONG_RUN ? "latency" : METHODS[shownTab()]?.includes(method) && shownTab();
        if (!tab) return;
        const isNew = JSON.stringify(last[tab]) !== JSON.stringify({ method, request });
        last[tab] = { method, request };
        if (isNew) show();
    });
    return show;
}
