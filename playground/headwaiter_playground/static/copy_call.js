// The buttons below each tab that copy the call which the tab has just made, as a program.
import { LONG_RUN } from "./calls.js";
import { copied } from "./clipboard.js";
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
const FORMS = { curl: "asCurl", python: "asPython", openai: "asOpenAi" };
// Whether OpenAI has such a call. It has no prompts: without its prompt, a text would have another vector.
const isOfOpenAi = ({ method, request }) =>
    method === "ListModels" || (method === "Encode" && request.texts && !request.texts.prompt);

/** Return a function that shows the buttons for the tab whose name `shownTab` returns. */
export function copyCall(calls, shownTab) {
    const last = {}; // The last call of each tab.

    function show() {
        const call = last[shownTab()];
        byId("copy-call").hidden = !call;
        byId("copy-openai").hidden = !call || !isOfOpenAi(call);
        byId("copied-call").textContent = "";
    }

    for (const form of Object.keys(FORMS))
        byId(`copy-${form}`).addEventListener("click", async () => {
            const call = last[shownTab()];
            const programs = await import("./copied_calls.js");
            const program = programs[FORMS[form]](call, new URL(".", location.href).href, calls.hasToken);
            byId("copied-call").textContent = await copied(program);
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
